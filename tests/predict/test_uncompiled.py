"""The same predictions come from the same code uncompiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.predict.past import METHODS, jobs_of

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.plan import plan_cluster
from adlro.decide.catalogue import find_policy
from adlro.ingest.traces.windows import cut
from adlro.normalise.pack import pack
from adlro.predict.following import as_they_came, seconds_of, traits_of, untold
from adlro.predict.online import Predicting
from adlro.simulation.simulator import simulate

PLAN = plan_cluster(load_cluster("paper16"))
ROOT = Path(__file__).parent.parent.parent
SCRIPT = "import json; from tests.predict.test_uncompiled import predicted; print(json.dumps(predicted()))"


def predicted() -> dict[str, list[list[float]]]:
    """What both predictors say of a few jobs, and what becomes of some of them in a run with predictions."""
    jobs = jobs_of(60)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    events = as_they_came(traits["submit"], seconds)
    said = {name: METHODS[name]().follow(traits, seconds, events).tolist() for name in ("habits", "memory")}
    few = cut(untold(jobs), 0, 25)
    few.table["submit"] /= 8
    outcome = simulate(pack(PLAN, few, speed_of), few.work, find_policy("sjf"), player=Predicting.new(traits_of(few)))
    return said | {"run": [[float(event.time), float(event.job)] for event in outcome.events]}


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
