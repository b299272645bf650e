"""The live orchestrator: reads a cluster, decides, acts, remembers, and answers questions."""
