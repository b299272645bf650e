"""The GPUs of this machine: jobs are its processes."""
