"""Learning: many clusters stepped at once, the networks, and how they are trained."""
