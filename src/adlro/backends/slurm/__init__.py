"""A Slurm cluster: how it is read, what it is told, and how it is set up."""
