"""Answers that are graded: kept as text, run in ranks only, read as data."""
