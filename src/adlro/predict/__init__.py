"""Runtime prediction: hypervectors of jobs, a memory of past jobs, and predictors."""
