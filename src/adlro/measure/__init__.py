"""The results of a run: events, metrics, bounds."""
