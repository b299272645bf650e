"""The learned policies: the network's inputs, and the network itself without PyTorch."""
