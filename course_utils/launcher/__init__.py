"""From the kernel to the ranks and back: fork, watch, carry results home, stop."""
