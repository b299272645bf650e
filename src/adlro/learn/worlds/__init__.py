"""Worlds to train in, and environments that step many of them at once."""
