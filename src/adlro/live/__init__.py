"""The brain of the daemon: one turn, what it sees, how it decides, and why. It opens nothing and keeps no file."""
