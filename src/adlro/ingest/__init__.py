"""Foreign text and numbers become records: workloads, traces, telemetry."""
