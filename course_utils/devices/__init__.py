"""What this machine has, what a rank gets of it, and whether its kernel can fork."""
