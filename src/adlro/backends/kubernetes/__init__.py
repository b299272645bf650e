"""A Kubernetes cluster."""
