"""Who is guilty of a hang, told from the dumps of PyTorch's flight recorder."""
