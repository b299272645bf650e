"""The memory of speeds: what one experience says about other jobs and other GPUs."""

import math

import numpy as np
import pytest

from adlro.catalogue.gpus import gpu_models
from adlro.catalogue.speeds import bound_profiles
from adlro.predict.encoder import unpacked
from adlro.predict.job_parts import JobParts, job_vectors, name_words, same_parts
from adlro.predict.speed_memory import SpeedMemory, similarities, spreads_believed

MODELS = [gpu_models()[name] for name in ("v100-sxm2-16gb", "p100-pcie-16gb", "k80")]
V100, P100, K80 = range(3)
BERT = job_vectors([JobParts("ann", "train-bert-1", 1)])[0]
BERT_AGAIN = job_vectors([JobParts("ann", "train-bert-2", 1)])[0]
OTHER = job_vectors([JobParts("bob", "solve-lattice", 4)])[0]


def memory(most: int = 64) -> SpeedMemory:
    return SpeedMemory(MODELS, np.array(bound_profiles(MODELS, "learning")), most)


def test_a_job_alike_is_believed_to_run_as_the_past_job_did_and_an_unlike_one_less_so() -> None:
    empty, taught = memory(), memory()
    before = empty.believe(np.array([BERT_AGAIN, OTHER])).shift[:, P100]
    for _ in range(5):
        taught.learn(BERT, P100, before[0] - 1.0)
    after = taught.believe(np.array([BERT_AGAIN, OTHER])).shift[:, P100]
    assert before[0] - 1.0 < after[0] < before[0] - 0.6
    assert after[0] < after[1] < before[1]


def test_it_is_surer_where_jobs_alike_ran_than_where_none_did() -> None:
    taught = memory()
    for _ in range(5):
        taught.learn(BERT, P100, 0.5)
    spread = taught.believe(np.array([BERT_AGAIN, OTHER])).spread
    assert spread[0, P100] < spread[0, K80] < memory().believe(np.array([BERT])).spread[0, K80]
    assert spread[0, P100] < spread[1, P100]


def test_before_anything_is_learnt_it_is_as_unsure_of_every_job() -> None:
    spread = memory().believe(np.array([BERT, OTHER])).spread
    assert spread == pytest.approx(np.array([memory().spread_at_first()] * 2))
    assert spreads_believed(spread, np.array([K80, -1])) == pytest.approx(np.array([[spread[0, K80], 0.0]] * 2))


def test_what_one_gpu_without_tensor_units_shows_is_expected_of_another() -> None:
    low, high = memory(), memory()
    for _ in range(5):
        low.learn(BERT, P100, 0.2)
        high.learn(BERT, P100, 1.4)
    assert high.believe(BERT[None]).shift[0, K80] > low.believe(BERT[None]).shift[0, K80] + 0.3
    assert abs(high.believe(BERT[None]).shift[0, V100] - low.believe(BERT[None]).shift[0, V100]) < 0.5


def test_a_revised_experience_counts_with_its_new_speed() -> None:
    taught, right = memory(), memory()
    taught.learn(BERT, P100, -2.0, number=7)
    right.learn(BERT, P100, 0.4, number=7)
    assert taught.revise(P100, 0.4, 7)
    assert not taught.revise(K80, 0.4, 7)
    assert taught.believe(OTHER[None]).shift == pytest.approx(right.believe(OTHER[None]).shift)


def test_a_model_that_slows_down_is_noticed_and_believed_within_twenty_jobs() -> None:
    taught, names = memory(256), [f"train-bert-{number}" for number in range(80)]
    vectors = job_vectors([JobParts("ann", name, 1) for name in names])
    rng = np.random.default_rng(0)
    changes = [taught.learn(vector, P100, 0.5 + 0.1 * rng.normal()) for vector in vectors[:60]]
    assert not any(changes)
    halved = [taught.learn(vector, P100, 0.5 - math.log(2.0) + 0.1 * rng.normal()) for vector in vectors[60:]]
    found = [change for change in halved if change is not None]
    assert found
    assert found[0].model == P100
    assert found[0].factor == pytest.approx(0.5, rel=0.25)
    belief = taught.believe(BERT_AGAIN[None]).shift[0]
    assert belief[P100] == pytest.approx(0.5 - math.log(2.0), abs=0.12)


def test_a_full_memory_keeps_the_rare_job_and_forgets_what_newer_ones_say_as_well() -> None:
    taught = memory(32)
    taught.learn(OTHER, K80, -1.0, number=1000)
    for number in range(100):
        taught.learn(BERT, P100, 0.5, number=number)
    assert len(taught) < 32
    assert taught.vector_of(1000) is not None
    assert taught.vector_of(0) is None
    assert taught.believe(BERT[None]).shift[0, P100] == pytest.approx(0.5, abs=0.1)


def test_forgetting_leaves_the_beliefs_of_the_experiences_that_are_kept() -> None:
    few, many = memory(8), memory(64)
    for number in range(9):  # the ninth makes the small one forget
        few.learn(BERT, P100, 0.3, number=number)
    for _ in range(len(few)):
        many.learn(BERT, P100, 0.3)
    assert few.believe(OTHER[None]).shift == pytest.approx(many.believe(OTHER[None]).shift)


def test_a_belief_rests_most_on_the_job_that_is_most_alike() -> None:
    taught = memory()
    taught.learn(OTHER, P100, 1.0, number=1)
    taught.learn(BERT, P100, -1.0, number=2)
    number, share, alike = taught.shares(BERT_AGAIN, P100)[0]
    assert number == 2
    assert share > 0.5
    assert alike > 0.4


def test_unbinding_tells_which_parts_a_past_job_shared() -> None:
    asked = JobParts("ann", "train-bert-2", 1)
    shared = {(role, value) for role, value, _ in same_parts(asked, unpacked(BERT))}
    assert {("user", "ann"), ("word", "bert"), ("gpus", "1")} <= shared
    assert not {("user", "ann"), ("word", "bert"), ("gpus", "1")} & {
        (role, value) for role, value, _ in same_parts(asked, unpacked(OTHER))
    }


def test_the_profile_of_one_job_is_its_belief_with_its_spread() -> None:
    taught = memory()
    taught.learn(BERT, P100, 0.7)
    mean, covariance = taught.profile(BERT_AGAIN[None])
    belief = taught.believe(BERT_AGAIN[None])
    assert mean == pytest.approx(belief.shift[0])
    assert np.sqrt(np.diag(covariance)) == pytest.approx(belief.spread[0])


def test_words_keep_the_numbers_that_belong_to_them() -> None:
    assert name_words("Train_resnet18-b32-7") == ("train", "resnet18", "b32", "7")


def test_a_change_that_shows_first_in_overdue_jobs_is_noticed_when_they_end() -> None:
    taught, always = memory(256), memory(256)
    for number in range(60):
        taught.learn(BERT, P100, 0.3 + 0.05 * (number % 3), number)
    for number in range(60, 80):
        slow = -0.6 + 0.05 * (number % 3)
        taught.learn(BERT, P100, 0.1, number, is_final=False)
        assert taught.revise(P100, slow, number, is_final=True)
    for number in range(80):
        always.learn(BERT, P100, -0.6 + 0.05 * (number % 3), number)
    both = np.array([BERT_AGAIN, OTHER])
    assert taught.believe(both).shift[:, P100] == pytest.approx(always.believe(both).shift[:, P100], abs=0.05)


def test_followed_jobs_are_believed_as_if_asked_for_anew_whatever_is_learnt_revised_or_forgotten() -> None:
    taught, rng = memory(16), np.random.default_rng(1)
    parts = [JobParts(f"user{number % 3}", f"train-{number % 5}-x", 1 + number % 2) for number in range(12)]
    vectors = job_vectors(parts)
    early = taught.follow(vectors[:4])
    for number in range(10):
        taught.learn(vectors[rng.integers(12)], int(rng.integers(3)), float(rng.normal()), number, unsure=0.2)
    late = taught.follow(vectors[4:6])
    taught.revise(int(taught._model[3]), 0.1, 3)
    taught.unfollow(early[:1].tolist())
    again = taught.follow(vectors[6:7])
    for number in range(10, 40):  # it forgets several times
        taught.learn(vectors[rng.integers(12)], int(rng.integers(3)), float(rng.normal()), number)
        belief, asked = taught.followed(np.array([*early[1:], *late, *again])), taught.believe(vectors[1:7])
        assert belief.shift == pytest.approx(asked.shift)
        assert belief.spread == pytest.approx(asked.spread, abs=1e-6)


def test_the_reference_model_is_as_fast_as_its_seconds_say_where_work_is_told_in_them() -> None:
    bounds = np.array(bound_profiles(MODELS, "learning"))
    free, sure = SpeedMemory(MODELS, bounds), SpeedMemory(MODELS, bounds, on_reference=0.2)
    for taught in (free, sure):
        taught.learn(BERT, V100, -1.0)
    both = np.array([BERT_AGAIN, OTHER])
    assert (sure.believe(both).shift[:, V100] > free.believe(both).shift[:, V100] + 0.2).all()
    assert (sure.believe(both).spread[:, V100] < 0.25 * sure.believe(both).spread[:, P100]).all()
    # A job that is slow there was more work than was told, so it is slow elsewhere too.
    assert sure.believe(both).shift[0, P100] < free.believe(both).shift[0, P100] - 0.2


def test_a_number_in_a_name_says_less_than_a_word() -> None:
    same_number = job_vectors([JobParts("bob", "solve-7", 1)])[0]
    same_word = job_vectors([JobParts("bob", "bert-1", 1)])[0]
    asked = job_vectors([JobParts("ann", "bert-7", 1)])
    alike = similarities(asked, np.array([same_number, same_word]))[0]
    assert alike[1] > alike[0] + 0.2
