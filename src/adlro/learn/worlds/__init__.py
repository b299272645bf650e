"""What is learned in: worlds, and environments that step many of them at once."""
