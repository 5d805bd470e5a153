"""The executed notebooks as slides."""
