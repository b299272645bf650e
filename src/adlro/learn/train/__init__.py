"""Training: the networks in PyTorch, the loop, what it keeps, and what it is examined by."""
