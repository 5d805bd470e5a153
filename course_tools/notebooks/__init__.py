"""Notebooks built from their sources, and what is computed from them: course map, lesson plans."""
