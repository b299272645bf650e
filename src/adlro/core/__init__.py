"""The vocabulary and the rules: what every stage shares. No input, no output, no clock of its own."""
