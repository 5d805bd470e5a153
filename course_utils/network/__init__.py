"""A recording run again on a virtual clock."""
