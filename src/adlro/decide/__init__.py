"""Which job goes where now: every policy."""
