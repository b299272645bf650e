"""`python -m adlro` is the same as `adlro`."""

from adlro.cli import main

if __name__ == "__main__":
    main()
