"""A clock that is moved by hand."""


class ByHand:
    """A clock that stands still until it is moved: for tests, and for whoever plays faster than any `speed`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """What it shows."""
        return self.seconds

    def move(self, seconds: float) -> None:
        """Let time pass; a negative number is a clock that was set back."""
        self.seconds += seconds
