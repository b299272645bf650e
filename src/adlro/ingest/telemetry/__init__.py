"""Live figures of GPUs: from a Prometheus server, from an exporter's page, or from the drivers of this machine."""
