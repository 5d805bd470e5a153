"""What the course costs, what a server can bear, and what works on this machine's GPUs."""
