"""Who waits where, for whom, and why: the report of a hang."""
