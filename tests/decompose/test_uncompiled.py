"""The same predictions come from the same code uncompiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.decompose.past import METHODS, jobs_of

from adlro.decompose.following import as_they_came, seconds_of, traits_of

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "import json; from tests.decompose.test_uncompiled import predicted; print(json.dumps(predicted()))"


def predicted() -> dict[str, list[list[float]]]:
    """What both predictors say of a few jobs."""
    jobs = jobs_of(60)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    events = as_they_came(traits["submit"], seconds)
    return {name: METHODS[name]().follow(traits, seconds, events).tolist() for name in ("habits", "memory")}


def test_both_predictors_say_the_same_uncompiled() -> None:
    plain = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    there, here = json.loads(plain.stdout), predicted()
    for name, rows in here.items():
        for one, other in zip(rows, there[name], strict=True):
            assert one == pytest.approx(other, rel=1e-9)
