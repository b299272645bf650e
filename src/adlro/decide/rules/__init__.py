"""Policies that are rules: the classic ones, those that reserve, stop jobs, or solve a program."""
