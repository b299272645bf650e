"""The clusters that the daemon can run on, one folder each: what reads a cluster, and what carries out orders on it."""
