"""What came of it: events, metrics, bounds."""
