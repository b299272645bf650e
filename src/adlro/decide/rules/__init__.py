"""Policies without a network: the classic rules, backfilling, preemptive rules, and those with a solver."""
