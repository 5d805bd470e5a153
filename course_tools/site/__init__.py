"""The executed notebooks as a web site, with sliders under its recordings."""
