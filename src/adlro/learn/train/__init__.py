"""Training: the networks in PyTorch, the loop, what it writes, and its evaluation."""
