"""Recorded job traces become jobs: one file for each format, and a catalogue that tells them apart by content."""
