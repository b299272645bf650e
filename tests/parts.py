"""Programs that some tests need and that are no Python packages; scripts/test_parts.sh installs them."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def required() -> bool:
    """Whether a missing program fails the test instead of skipping it."""
    return os.environ.get("CI") == "true" or os.environ.get("ADLRO_REQUIRE_PARTS", "0") == "1"


def tool(name: str) -> str:
    """The path of a program that a Python package of the extra dev brings: beside the interpreter, or in the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else program(name)


def program(name: str) -> str:
    """The path of an installed program; else the test is skipped, or fails where nothing may be missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")  # where daemons stand
    if found is None:
        reason = f"{name} is not installed: scripts/test_parts.sh does it on Debian."
        if required():
            pytest.fail(reason)
        pytest.skip(reason)
    return found
