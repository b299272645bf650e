"""Names and units become ours, records become tables."""
