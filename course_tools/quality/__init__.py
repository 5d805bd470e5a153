"""What guards the course itself: its architecture, and mutants of the labs' solutions."""
