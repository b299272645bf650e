"""A simulated cluster behind the interface of a live one."""
