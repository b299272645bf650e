"""The associative memory: it recalls what is alike, keeps no more than it may, and forgets the oldest first."""

from pathlib import Path

import numpy as np
import pytest
from tests.predict.past import jobs_of

from adlro.core.errors import UsageError
from adlro.predict.encoder import encode_jobs
from adlro.predict.following import P10, P50, P90, as_they_came, seconds_of, traits_of
from adlro.predict.memory import CHAINS, SEARCHED, Memory, ones


def test_the_most_similar_jobs_are_of_the_same_user_and_program_and_nearest_first() -> None:
    jobs = jobs_of(200)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    memory = Memory.new(500)
    memory.remember(traits, seconds, np.arange(199))
    like = memory.like(traits[199:].view(np.recarray))
    assert [jobs.table["group"][one.number] for one in like] == [jobs.table["group"][199]] * 5
    assert [one.similarity for one in like] == sorted((one.similarity for one in like), reverse=True)
    assert all(one.seconds == pytest.approx(seconds[one.number]) for one in like)


def test_the_same_job_has_similarity_1() -> None:
    traits, seconds = traits_of(jobs_of(5)), seconds_of(jobs_of(5))
    memory = Memory.new(8)
    memory.remember(traits, seconds, np.arange(5))
    assert memory.like(traits)[0].similarity == 1.0


def test_a_similarity_is_the_cosine_of_the_two_vectors() -> None:
    traits, seconds = traits_of(jobs_of(2)), seconds_of(jobs_of(2))
    memory = Memory.new(2)
    memory.remember(traits, seconds, np.array([1]))
    one, other = (2.0 * np.unpackbits(row.view(np.uint8)) - 1.0 for row in encode_jobs(traits))
    assert memory.like(traits)[0].similarity == pytest.approx(one @ other / len(one))


def test_it_remembers_as_many_jobs_as_it_may_and_the_newest_of_them() -> None:
    traits, seconds = traits_of(jobs_of(100)), seconds_of(jobs_of(100))
    memory = Memory.new(10)
    memory.follow(traits, seconds, ~np.arange(100))
    assert len(memory) == 10
    assert sorted(memory.state.number.tolist()) == list(range(90, 100))
    assert {one.number for one in memory.like(traits, 20)} == set(range(90, 100))


def test_a_large_memory_recalls_as_well_as_if_it_were_searched_whole() -> None:
    count = 2 * (CHAINS + 1) * SEARCHED
    jobs = jobs_of(count)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    memory = Memory.new(count)
    memory.remember(traits, seconds, np.arange(count - 50))
    vectors = 2.0 * np.unpackbits(encode_jobs(traits).view(np.uint8), axis=1) - 1.0
    found = memory.like_each(traits[-50:].view(np.recarray))
    for j, like in zip(range(count - 50, count), found, strict=True):
        alike = vectors[:-50] @ vectors[j] / vectors.shape[1]
        assert len(like) == 5
        for one in like:
            assert one.similarity == pytest.approx(alike[one.number])
        assert [one.similarity for one in like] == sorted((one.similarity for one in like), reverse=True)
        assert len({one.number for one in like}) == 5
        assert like[0].similarity > np.sort(alike)[-5] - 0.05


def test_a_job_forgotten_is_not_found_by_its_chain() -> None:
    count = 4 * (CHAINS + 1) * SEARCHED
    traits, seconds = traits_of(jobs_of(count)), seconds_of(jobs_of(count))
    traits["user"][: count // 2] = traits["group"][: count // 2] = 1
    memory = Memory.new(count // 2)
    memory.remember(traits, seconds, np.arange(count // 2))
    memory.remember(traits, seconds, np.arange(count // 2, count))
    # The chain of that user ends at a row that the newest job has taken: it is not the user's, nor another job.
    asked = traits[-1:].copy().view(np.recarray)
    asked["user"] = asked["group"] = 1
    like = memory.like(asked, 20)
    assert all(one.number >= count // 2 for one in like)
    assert len({one.number for one in like}) == 20
    assert count - 1 in {one.number for one in like}


def test_several_jobs_at_once_recall_what_each_does_alone() -> None:
    traits, seconds = traits_of(jobs_of(60)), seconds_of(jobs_of(60))
    memory = Memory.new(64)
    memory.remember(traits, seconds, np.arange(50))
    alone = [memory.like(traits[j : j + 1].view(np.recarray)) for j in range(50, 60)]
    assert memory.like_each(traits[50:].view(np.recarray)) == alone


def test_a_memory_of_nothing_recalls_nothing() -> None:
    assert Memory.new(4).like(traits_of(jobs_of(1))) == []


def test_runtimes_of_programs_that_run_alike_come_back_within_their_noise_and_interval() -> None:
    jobs = jobs_of(2000)
    traits, seconds = traits_of(jobs), seconds_of(jobs)
    out = Memory.new(1000).follow(traits, seconds, as_they_came(traits["submit"], seconds))
    late = slice(500, None)
    assert np.median(np.abs(out[late, P50] - seconds[late]) / seconds[late]) < 0.1
    assert 0.75 < np.mean((out[late, P10] <= seconds[late]) & (seconds[late] <= out[late, P90])) < 0.85


def test_what_was_saved_recalls_the_same(tmp_path: Path) -> None:
    traits, seconds = traits_of(jobs_of(50)), seconds_of(jobs_of(50))
    memory = Memory.new(20)
    memory.remember(traits, seconds, np.arange(50))
    memory.save(tmp_path / "memory.npz")
    assert Memory.load(tmp_path / "memory.npz").like(traits) == memory.like(traits)


def test_a_file_that_holds_no_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", other=np.zeros(3))
    with pytest.raises(UsageError, match="cannot read the memory"):
        Memory.load(tmp_path / "x.npz")


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0])
def test_bits_are_counted(word: int) -> None:
    assert ones(np.uint64(word)) == word.bit_count()  # type: ignore[arg-type]
