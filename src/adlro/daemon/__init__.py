"""The daemon: the process around the turns, its config, what it keeps, and who leads."""
