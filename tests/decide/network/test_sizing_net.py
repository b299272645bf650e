"""The network that resizes jobs: it begins as the rule, and what it sees changes what jobs get."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.rules.test_sizing import problem_of

from adlro.core.errors import CheckpointError
from adlro.core.tables import NOBODY
from adlro.decide.catalogue import find_policy
from adlro.decide.network.sizing_net import JOB_INPUTS, SIZE_INPUTS, SizingWeights, learned_sizing
from adlro.decide.network.sizing_q import ELASTIC, shipped_weights, sizing_weights
from adlro.decide.rules.elastic import SizingProblem
from adlro.decide.rules.sizing import rank_sizing
from adlro.decide.rules.timelines import MOST_STARTS
from adlro.learn.train.checkpoint import write_checkpoint


def looking_at(name: str, strength: float = 1.0) -> SizingWeights:
    """A network of one unit that makes configurations worth more, the larger this input is."""
    job, configuration = np.zeros((len(JOB_INPUTS), 1)), np.zeros((len(SIZE_INPUTS), 1))
    (job if name in JOB_INPUTS else configuration)[(JOB_INPUTS if name in JOB_INPUTS else SIZE_INPUTS).index(name)] = 1
    return SizingWeights(job, configuration, np.zeros(1), np.full(1, strength))


@given(st.data())
def test_with_answers_of_0_the_network_is_rank_elastic(data: st.DataObject) -> None:
    work = data.draw(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=8))
    problem = problem_of(work, [1, 2, 4], data.draw(st.sampled_from([1.0, 3.0, 8.0])), restart=30.0)
    now = data.draw(st.lists(st.integers(-1, 2), min_size=len(work), max_size=len(work)))
    running = [NOBODY if c < 0 else 3 * i + c for i, c in enumerate(now)]
    problem = problem._replace(now=np.array(running, np.int32))
    weights = SizingWeights(*(np.full(each.shape, 0.5) for each in shipped_weights()))._replace(
        answer=np.zeros(shipped_weights().answer.shape)
    )
    assert learned_sizing(problem, weights).tolist() == rank_sizing(problem).tolist()


def two_equal(sizes: list[int], gpus: float) -> SizingProblem:
    """Two equal jobs, of which `rank-elastic` serves the first."""
    problem = problem_of([100.0, 100.0], sizes, gpus)
    assert rank_sizing(problem).tolist() == [len(sizes) - 1, NOBODY]
    return problem


def test_a_network_is_told_which_jobs_may_be_stopped() -> None:
    problem = two_equal([1], 1.0)._replace(stoppable=np.array([True, False]))
    assert learned_sizing(problem, looking_at("may be stopped", 2.0)).tolist() == [NOBODY, 1]
    assert learned_sizing(problem, looking_at("may be stopped", -2.0)).tolist() == [0, NOBODY]


def test_a_network_is_told_which_jobs_have_one_size_only() -> None:
    # The first job could have one or two GPUs, the second only two.
    problem = two_equal([1, 2], 2.0)
    keep = np.array([True, True, False, True])
    owned = {name: getattr(problem, name)[keep] for name in ("owner", "pool", "gpus", "size", "rate")}
    problem = problem._replace(**owned)
    assert learned_sizing(problem, looking_at("may be resized", 2.0)).tolist() == [NOBODY, 2]
    assert learned_sizing(problem, looking_at("may be resized", -2.0)).tolist() == [1, NOBODY]


def test_a_network_that_dislikes_changes_leaves_a_job_as_it_is() -> None:
    problem = problem_of([1000.0], [1, 4], 4.0)._replace(now=np.array([0], np.int32))
    assert learned_sizing(problem, looking_at("change", 0.0)).tolist() == [1]
    assert learned_sizing(problem, looking_at("change", -4.0)).tolist() == [0]


def test_a_job_that_was_started_very_often_stays_whatever_the_network_says() -> None:
    problem = problem_of([1000.0, 1.0], [1, 4], 4.0)._replace(now=np.array([0, NOBODY], np.int32))
    fond = looking_at("change", 4.0)
    assert learned_sizing(problem, fond).tolist() == [NOBODY, 3]
    tired = problem._replace(starts=np.array([MOST_STARTS + 1.0, 0.0]))
    assert learned_sizing(tired, fond).tolist() == [0, 2]


def test_a_checkpoint_of_ones_own_is_a_policy_that_resizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    write_checkpoint(path, {name: each.astype(np.float32) for name, each in shipped_weights()._asdict().items()}, {
        "preset": ELASTIC,
    })  # fmt: skip
    policy = find_policy(str(path))
    assert policy.name == "mine"
    assert policy.resizes
    assert policy.preemptive


def test_a_checkpoint_with_a_missing_or_misshapen_array_is_refused() -> None:
    arrays = dict(shipped_weights()._asdict())
    with pytest.raises(CheckpointError, match="'answer' is missing"):
        sizing_weights({name: each for name, each in arrays.items() if name != "answer"}, "x")
    with pytest.raises(CheckpointError, match="'job' has the shape"):
        sizing_weights(arrays | {"job": arrays["job"][1:]}, "x")
