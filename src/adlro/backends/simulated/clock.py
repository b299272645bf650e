"""A clock that is moved by hand."""


class ByHand:
    """A clock that stands still until it is moved: for tests, and for playing faster than any `speed`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.seconds

    def move(self, seconds: float) -> None:
        """Move the clock; a negative number sets it back."""
        self.seconds += seconds
