"""What carries a choice out: the simulator, and later real clusters."""
