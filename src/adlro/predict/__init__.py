"""What a job is like and how long it will run: hypervectors, a memory of past jobs, and runtime prediction."""
