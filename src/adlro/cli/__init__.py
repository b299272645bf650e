"""The command line: `adlro compare`, `simulate`, `bench`, and lists of what there is (docs/guide.md, docs/json.md)."""

from adlro.cli.app import main

__all__ = ["main"]
