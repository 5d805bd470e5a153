"""An answer tried in real workers, and judged."""
