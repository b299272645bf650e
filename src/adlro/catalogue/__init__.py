"""Data that ships with the package: GPU models, clusters, families of jobs, and how fast these run on those."""
