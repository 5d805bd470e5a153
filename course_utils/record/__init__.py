"""What ranks write down while they run, and the kernel afterwards reads."""
