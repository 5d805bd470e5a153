"""Two hosts on one machine, and programs on them."""
