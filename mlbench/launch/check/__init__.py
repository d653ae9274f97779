"""What is wrong with a set of machines: which of them, or which link, is slow or loses packets."""
