"""The learned policies: what the network sees, and the network itself, without PyTorch."""
