"""Training: the networks in PyTorch, the loop, its files, and the evaluation."""
