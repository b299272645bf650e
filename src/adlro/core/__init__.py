"""The vocabulary and the rules that all stages share. Nothing here does input or output, or reads a clock."""
