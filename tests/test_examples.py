"""What the documents show works: the example files, the policy in CONTRIBUTING.md, the numbers in the picture."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from adlro.core.tables import STARTED
from adlro.decide.catalogue import find_policy
from adlro.experiment.instance import run_one
from adlro.experiment.scenario import Scenario, load_scenario
from adlro.measure.metrics import measure

ROOT = Path(__file__).parent.parent
OWN_POLICY = ROOT / "examples/own_policy.py"
WIDEST_JOB = 32  # GPUs, of one model; the example says that nobody has so many


@pytest.fixture(scope="module")
def example() -> Scenario:
    return load_scenario(str(ROOT / "examples/my_cluster.toml"), str(ROOT / "examples/my_workload.toml"), 200)


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "scripts/picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(document: str, language: str) -> Iterator[str]:
    """The blocks of code of a language in a document, without the indent that they may have there."""
    for block in (ROOT / document).read_text(encoding="utf-8").split(f"```{language}\n")[1:]:
        code = block.split("```")[0]
        indent = len(code) - len(code.lstrip(" "))
        yield "\n".join(line[indent:] for line in code.splitlines()) + "\n"


@pytest.mark.parametrize("name", ["response_ratio", "largest_gang"])
def test_the_policies_of_the_example_finish_every_job_that_can_run(example: Scenario, name: str) -> None:
    run = run_one(example, find_policy(f"{OWN_POLICY}:{name}"), seed=0)
    assert (run.unfinished, run.illegal) == (0, 0)
    assert measure(run).finished == len(run.jobs) - len(run.refusals)


def test_the_example_workload_has_jobs_too_wide_for_the_cluster_and_only_those_are_refused(example: Scenario) -> None:
    run = run_one(example, find_policy("fcfs-first-fit"), seed=0)
    too_wide = [job for job in range(len(run.jobs)) if run.jobs.table[job].gpus == WIDEST_JOB]
    assert too_wide
    assert sorted(run.refusals) == too_wide


def test_static_affinity_keeps_to_the_map_of_the_example_cluster(example: Scenario) -> None:
    run = run_one(example, find_policy("static-affinity"), seed=0)
    starts = run.events[run.events.what == STARTED]
    used: dict[str, set[str]] = {}
    for event in starts:
        family = run.jobs.families[run.jobs.table[event.job].family]
        used.setdefault(family, set()).add(run.site_model[event.site])
    assert set(used) == set(example.cluster.affinity)
    assert {
        family: models for family, models in used.items() if not models <= set(example.cluster.affinity[family])
    } == {}


def test_the_policy_that_contributing_shows_works_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))  # nobody needs this one again
    (code,) = (block for block in code_blocks("CONTRIBUTING.md", "python") if "POLICIES" in block)
    file = tmp_path / "widest.py"
    file.write_text(code, encoding="utf-8")
    scenario = load_scenario("paper16", "paper", 40)
    policy = find_policy(f"{file}:widest")
    run = run_one(scenario, policy, seed=0)
    assert (run.unfinished, run.illegal) == (0, 0)


def test_the_numbers_in_the_picture_are_those_of_the_runs_that_it_shows(picture: ModuleType) -> None:
    scenario = picture.busy_scenario()
    runs = [run_one(scenario, find_policy(name), picture.SEED) for name in picture.POLICIES]
    for file in ("picture.svg", "picture-dark.svg"):
        drawn = (ROOT / "docs" / file).read_text(encoding="utf-8")
        for run in runs:
            assert f">{picture.jct_min(run):.0f} min<" in drawn, f"docs/{file} is old: run scripts/picture.py"
