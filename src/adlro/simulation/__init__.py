"""The simulator: what runs a policy on a cluster that is not there, faster than time."""
