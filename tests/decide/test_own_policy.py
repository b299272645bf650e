"""Policies from a user's own file. This file is one: every form of shortest job first stands in it."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.decide.conftest import Case, mixed_case, play

from adlro.core.compiled import compiled
from adlro.core.errors import CatalogueError, PolicyError
from adlro.core.policy import NEVER, Policy, starting, waiting
from adlro.core.rules import fits, in_queue, runtime, seen
from adlro.core.tables import FOREVER, NOBODY, START, WAIT, Choice, View
from adlro.decide.catalogue import find_policy
from adlro.decide.choosing import Pair
from adlro.experiment.instance import run_one
from adlro.experiment.scenario import load_scenario

# ---- what a user might write --------------------------------------------------------------------------------------


@compiled
def compiled_score(job: Any, site: Any, pair: Pair, now: float) -> float:
    """Shortest first, compiled.

    Only the first line is the summary.
    """
    return -pair.runtime_s


def plain_score(job: Any, site: Any, pair: Pair, now: float) -> float:
    """Shortest first, in plain Python."""
    return -pair.runtime_s


@compiled
def compiled_choose(view: View) -> Choice:
    """Shortest first, as a whole policy."""
    # Plain numbers of the tables, 32 bits wide: a user need not know what width the simulator wants.
    job, site, least = -1, -1, FOREVER
    for q in range(seen(view)):
        j = in_queue(view, q)
        for s in range(len(view.sites)):
            if fits(view, j, s) and runtime(view, j, s) < least:
                job, site, least = j, s, runtime(view, j, s)
    return Choice(START if site != NOBODY else WAIT, job, site, FOREVER)


def plain_choose(view: View) -> Choice:
    """Shortest first, as a whole policy in plain Python."""
    queue = [in_queue(view, q) for q in range(seen(view))]
    legal = [(runtime(view, j, s), j, s) for j in queue for s in range(len(view.sites)) if fits(view, j, s)]
    return starting(*min(legal)[1:]) if legal else waiting()


policy_object = Policy("mine", "shortest first, with a name of its own", make=lambda view, seed: plain_choose)


@compiled
def picky_score(job: Any, site: Any, pair: Pair, now: float) -> float:
    """Nowhere much slower than at best."""
    return NEVER if pair.runtime_s > 2.0 * pair.best_s else -pair.runtime_s


@compiled
def late_failure(view: View) -> Choice:
    """Wait for a while, then fail."""
    if view.clock[0].now > 5.0:
        raise ValueError("out of ideas")
    return Choice(WAIT, NOBODY, NOBODY, 6.0)


FORMS = ("compiled_score", "plain_score", "compiled_choose", "plain_choose", "policy_object")


@cache
def own(name: str) -> Policy:
    """A policy of this file, as a user names it."""
    return find_policy(f"{__file__}:{name}")


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_policy_does_the_same_as_the_one_that_ships(name: str) -> None:
    policy = own(name)
    for seed in range(3):
        case = mixed_case(seed)
        assert play(case, policy).events == play(case, "sjf").events


def test_a_score_of_never_waits_for_a_better_pair() -> None:
    policy = own("picky_score")
    cases = [mixed_case(seed) for seed in range(3)]
    found = [play(case, policy).events for case in cases]
    assert found == [play(case, "sjf-picky").events for case in cases]
    assert found != [play(case, "sjf").events for case in cases]


def test_a_policy_is_called_like_its_function_and_described_by_its_docstring() -> None:
    assert (own("plain_score").name, own("plain_score").summary) == ("plain_score", "Shortest first, in plain Python.")
    assert own("compiled_score").summary == "Shortest first, compiled."
    assert own("policy_object").name == "mine"


def test_a_compiled_policy_comes_from_the_cache_when_it_is_loaded_again() -> None:
    case = Case([("v100", 1)], [(0, 10), (0, 10)])
    for _ in range(2):
        with pytest.raises(ValueError, match="out of ideas"):
            play(case, find_policy(f"{__file__}:late_failure"))


# ---- what can be wrong --------------------------------------------------------------------------------------------

NO_FILE = r"^nowhere\.py: no such file; expected path\.py:NAME, a function in a Python file\.$"


def message(text: str, tmp_path: Path, name: str = "choose") -> str:
    """What a user is told of a policy in a file with this text; one line, that begins with the file."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        play(Case([("v100", 1)], [(0, 10)]), f"{path}:{name}")
    told = str(caught.value)
    assert told.startswith(str(path))
    assert "\n" not in told
    return told.removeprefix(str(path))


@pytest.mark.parametrize("name", ["nowhere.py:choose", "nowhere.py"])
def test_a_file_that_is_not_there_is_bad_usage(name: str) -> None:
    with pytest.raises(CatalogueError, match=NO_FILE):
        find_policy(name)


def test_a_function_that_is_not_there_is_bad_usage_and_the_nearest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("LIMIT = 3\n\ndef shortest(view):\n    return None\n")
    expected = f"{path}: no function 'shorter'. Did you mean 'shortest'?"
    with pytest.raises(CatalogueError, match=f"^{re.escape(expected)}$"):
        find_policy(f"{path}:shorter")
    with pytest.raises(CatalogueError, match="no function 'LIMIT'"):
        find_policy(f"{path}:LIMIT")


def test_a_file_without_a_function_is_bad_usage() -> None:
    expected = f"{__file__}: the name of a function is missing; expected {__file__}:NAME."
    for name in (__file__, f"{__file__}:"):
        with pytest.raises(CatalogueError, match=f"^{re.escape(expected)}$"):
            find_policy(name)


def test_a_shipped_policy_that_is_misspelt_is_bad_usage_and_the_nearest_is_named() -> None:
    with pytest.raises(CatalogueError, match=r"^there is no policy 'sjf-piky'\. Did you mean 'sjf-picky'\?"):
        find_policy("sjf-piky")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def choose(view:\n", r": cannot be loaded: SyntaxError: .*\(mine\.py, line 1\)$"),
        ("import no_such_thing\n", r": cannot be loaded: ModuleNotFoundError: No module named .* \(line 1\)$"),
        ("import sys\nsys.exit('gone')\n", r": cannot be loaded: SystemExit: gone \(line 2\)$"),
        (
            "def choose(view, now):\n    return None\n",
            r":choose takes 2 arguments; expected choose\(view\), or score\(",
        ),
        ("def choose(view):\n    return 1 / 0\n", r":choose failed: ZeroDivisionError: division by zero \(line 2\)$"),
        ("def choose(view):\n    raise OSError\n", r":choose failed: OSError:  \(line 2\)$"),
        ("def choose(view):\n    return None\n", r":choose answered None; expected starting\(job, site\), stopping"),
        (
            "def choose(view):\n    return 'wait'\n",
            r":choose answered 'wait'; expected starting\(job, site\), stopping",
        ),
        ("def choose(view):\n    return (1, 0, 0, 0.0)\n", r":choose answered \(1, 0, 0, 0\.0\); expected starting\("),
    ],
    ids=["syntax", "import", "exit", "arguments", "raises", "silent", "None", "text", "tuple"],
)
def test_a_policy_that_breaks_is_told_in_one_line(text: str, expected: str, tmp_path: Path) -> None:
    assert re.search(f"^{expected}", message(text, tmp_path))


def test_waiting_until_nan_is_told_in_one_line(tmp_path: Path) -> None:
    text = "from adlro.core.policy import waiting\n\ndef choose(view):\n    return waiting(float('nan'))\n"
    assert message(text, tmp_path) == ":choose waits until NaN; expected a time in seconds."


@pytest.mark.parametrize("answer", ["None", "'high'", "nan", "[1]"])
def test_a_score_that_is_no_number_is_told_in_one_line(answer: str, tmp_path: Path) -> None:
    text = f"from math import nan\n\ndef score(job, site, pair, now):\n    return {answer}\n"
    told = message(text, tmp_path, "score")
    assert told == f":score answered {answer} as a score; expected a number, or NEVER to wait instead."


@pytest.mark.parametrize(
    ("body", "expected"),
    [("return None", "failed to unpack none"), ("return view.nothing", "Unknown attribute 'nothing' of type View")],
)
def test_what_cannot_be_compiled_is_told_before_the_run(body: str, expected: str, tmp_path: Path) -> None:
    text = f"from adlro.core.compiled import compiled\n\n@compiled\ndef choose(view):\n    {body}\n"
    told = message(text, tmp_path)
    assert told.startswith(f":choose cannot be compiled: TypingError: {expected}")
    assert told.endswith("Remove @compiled to run it as plain Python.")


def test_a_compiled_policy_that_fails_in_the_run_is_told_with_its_name() -> None:
    with pytest.raises(PolicyError, match=r"^the policy 'late_failure' failed: ValueError: out of ideas$"):
        run_one(load_scenario("paper16", "paper", 40), own("late_failure"), 0)


def test_a_compiled_policy_that_creates_arrays_runs_too(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import numpy as np\n"
        "from adlro.core.compiled import compiled_allocating\n"
        "from adlro.core.tables import Choice\n"
        "@compiled_allocating\n"
        "def never(view):\n"
        '    """Waits."""\n'
        "    row = np.full(3, -1)\n"
        "    return Choice(0, row[0], row[1], np.inf)\n",
        encoding="utf-8",
    )
    assert find_policy(f"{file}:never").choose is not None
