"""Drawn jobs follow the file: rates, mixes and durations, each aspect from a stream of its own."""

from typing import Any

import numpy as np
import pytest

from adlro.core.errors import UsageError
from adlro.core.tables import Jobs
from adlro.ingest.synthetic import generate, long_run_load, mean_duration
from adlro.ingest.workload_file import Duration, Workload, load_workload

N = 40_000
LEARNING = """
[[families]]
family = "learning"
weight = 3
gpus = { 1 = 0.5, 2 = 0.2, 4 = 0.2, 8 = 0.1 }
share = { 1000 = 0.5, 250 = 0.5 }
duration = { distribution = "lognormal", median_s = 600, sigma = 0.5 }
cpus_per_gpu = 2.5
memory_gb_per_gpu = 8
gpu_memory_gb = 6
checkpoint_s = 60
limit_factor = 4
models = ["V100", "T4"]
"""
DATA = """
[[families]]
family = "data"
duration = { distribution = "exponential", mean_s = 900 }
"""
POISSON = "[arrivals]\nprocess = 'poisson'\nmean_interarrival_s = 100\n"
UNIQUE = "[users]\nrecurrence = 0\n"  # every job a name of its own: independent draws


def workload(text: str = "", arrivals: str = POISSON, families: str = LEARNING + DATA) -> Workload:
    return load_workload(f'name = "test"\n{arrivals}\n{families}\n{text}', "test.toml")


def family(jobs: Jobs, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(jobs.table["family"] == jobs.families.index(name))


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    first, again, other = (generate(workload(), seed, 500) for seed in (7, 7, 8))
    assert first.table.tobytes() == again.table.tobytes()
    assert first.work.tobytes() == again.work.tobytes()
    assert first.names == again.names
    assert not np.array_equal(first.table["submit"], other.table["submit"])


def test_fewer_jobs_are_the_first_of_more_jobs() -> None:
    few, many = generate(workload(), 3, 50), generate(workload(), 3, 5000)
    assert few.table.tobytes() == many.table[:50].tobytes()
    assert np.array_equal(few.work, many.work[:50])


def test_an_estimate_error_changes_estimates_and_nothing_else() -> None:
    exact = generate(workload(), 1, 500)
    guessed = generate(workload('[estimates]\nsource = "lognormal"\nsigma = 0.5'), 1, 500)
    assert np.array_equal(exact.table["estimate"], exact.work)
    assert np.array_equal(exact.work, guessed.work)
    for field in set(exact.table.dtype.names or ()) - {"estimate", "limit"}:
        assert np.array_equal(exact.table[field], guessed.table[field]), field
    error = np.log(guessed.table["estimate"] / guessed.work)
    assert abs(error.mean()) < 0.1
    assert error.std() == pytest.approx(0.5, rel=0.1)


def test_the_error_of_an_estimate_does_not_depend_on_the_job() -> None:
    text = '[estimates]\nsource = "lognormal"\nsigma = 0.5\n[users]\nscatter = 1.0'
    jobs = generate(workload(text, families=DATA), 1, 5000)
    error = np.log(jobs.table["estimate"] / jobs.work)
    assert abs(np.corrcoef(error, np.log(jobs.work))[0, 1]) < 0.05


def test_other_durations_leave_arrivals_gangs_and_users_as_they_were() -> None:
    other = LEARNING.replace("median_s = 600, sigma = 0.5", "median_s = 60, sigma = 2")
    before, after = generate(workload(), 1, 500), generate(workload(families=other + DATA), 1, 500)
    for field in ("submit", "gpus", "share", "family", "user", "group", "priority"):
        assert np.array_equal(before.table[field], after.table[field]), field
    assert not np.array_equal(before.work, after.work)


def test_the_mix_the_gangs_and_the_shares_are_those_of_the_file() -> None:
    jobs = generate(workload(UNIQUE), 0, N)
    learning = jobs.table[family(jobs, "learning")]
    assert len(learning) / N == pytest.approx(0.75, abs=0.01)
    for gpus, weight in ((1, 0.5), (2, 0.2), (4, 0.2), (8, 0.1)):
        assert np.mean(learning["gpus"] == gpus) == pytest.approx(weight, abs=0.01)
    assert np.mean(learning["share"][learning["gpus"] == 1] == 250) == pytest.approx(0.5, abs=0.01)
    assert np.all(learning["share"][learning["gpus"] > 1] == 1000)


def test_what_a_job_needs_grows_with_its_part_of_the_gpus() -> None:
    jobs = generate(workload(), 0, 1000)
    mine = family(jobs, "learning")
    learning, work = jobs.table[mine], jobs.work[mine]
    units = learning["gpus"] * learning["share"] / 1000
    assert np.array_equal(learning["cpus"], 2500 * units)
    assert np.array_equal(learning["memory"], 8 * 1024 * units)
    assert np.all(learning["gpu_memory"] == 6 * 1024)
    assert np.array_equal(learning["checkpoint"], 60 * units)
    assert np.allclose(learning["limit"], 4 * work / units)
    assert {jobs.allowed[row] for row in learning["allowed"]} == {frozenset({"V100", "T4"})}
    others = jobs.table[~mine]
    assert np.all(np.isinf(others["limit"]) & np.isinf(others["checkpoint"]))
    assert {jobs.allowed[row] for row in others["allowed"]} == {frozenset()}


def test_an_estimate_from_the_limit_is_the_limit_on_the_reference_model() -> None:
    text = '[estimates]\nsource = "limit"'
    table = generate(workload(text, families=LEARNING), 0, 200).table
    assert np.allclose(table["estimate"], table["limit"] * table["gpus"] * table["share"] / 1000)


DURATIONS = {
    '"lognormal", median_s = 600, sigma = 0.8': 600 * np.exp(0.32),
    '"weibull", scale_s = 600, shape = 2': 600 * np.sqrt(np.pi) / 2,
    '"exponential", mean_s = 600': 600,
    '"fixed", value_s = 600': 600,
    '"loguniform", pieces = [{ low_s = 100, high_s = 1000 }]': 900 / np.log(10),
    '"loguniform", pieces = [{ low_s = 10, high_s = 10 }, { weight = 3, low_s = 50, high_s = 50 }]': 40,
    '"quantiles", at = [0, 0.5, 1], seconds = [100, 100, 100]': 100,
    '"quantiles", at = [0, 1], seconds = [100, 1000]': 900 / np.log(10),
    '"exponential", mean_s = 600, max_s = 600': 600 * (1 - np.exp(-1)),
}


@pytest.mark.parametrize("text", DURATIONS)
def test_durations_have_the_mean_of_their_distribution(text: str) -> None:
    families = f'[[families]]\nfamily = "data"\nduration = {{ distribution = {text} }}'
    drawn = generate(workload(UNIQUE, families=families), 0, N).work
    read = workload(families=families).families[0].duration
    assert mean_duration(read) == pytest.approx(DURATIONS[text], rel=2e-3)
    assert drawn.mean() == pytest.approx(DURATIONS[text], rel=0.03)


def test_a_weibull_of_shape_1_is_exponential() -> None:
    weibull = Duration(distribution="weibull", scale_s=50.0, shape=1.0)
    assert mean_duration(weibull) == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize(
    "arrivals",
    [
        "process = 'poisson'",
        "process = 'diurnal'\nday_swing = 0.8\nweekend_factor = 0.3",
        "process = 'bursty'\nburst_size_mean = 5",
    ],
)
def test_every_process_keeps_the_long_run_rate_and_the_order(arrivals: str) -> None:
    read = workload(UNIQUE, arrivals=f"[arrivals]\n{arrivals}\nmean_interarrival_s = 100\n")
    submit = generate(read, 0, N).table["submit"]
    assert np.all(np.diff(submit) >= 0)
    assert submit[0] > 0
    assert submit[-1] == pytest.approx(100 * N, rel=0.04)


def test_all_at_once_is_time_0() -> None:
    assert not generate(workload(arrivals="[arrivals]\nprocess = 'all-at-once'\n"), 0, 100).table["submit"].any()


def test_diurnal_arrivals_are_dense_at_the_peak_and_thin_on_the_weekend() -> None:
    text = "[arrivals]\nprocess = 'diurnal'\nmean_interarrival_s = 100\nday_swing = 0.8\nweekend_factor = 0.5\n"
    submit = generate(workload(arrivals=text), 0, 7 * 864 * 6).table["submit"]
    hour, day = submit / 3600 % 24, submit // 86400 % 7
    peak, trough = np.sum(abs(hour - 14) < 1), np.sum(abs(hour - 2) < 1)
    assert peak / trough == pytest.approx(1.8 / 0.2, rel=0.25)
    assert np.mean(day >= 5) == pytest.approx(1 / 6, abs=0.01)  # two half days of six


def test_bursts_bring_jobs_close_together() -> None:
    text = "[arrivals]\nprocess = 'bursty'\nmean_interarrival_s = 100\nburst_size_mean = 10\nburst_spread_s = 5\n"
    gaps = np.diff(generate(workload(arrivals=text), 0, N).table["submit"])
    assert np.mean(gaps < 5) == pytest.approx(0.9, abs=0.03)


SURGE = '[surge]\nfamily = "data"\nstart_fraction = 0.5\nduration_s = 200_000\nrate_factor = 4\n'


def test_a_surge_raises_the_rate_of_its_family_only_and_only_while_it_lasts() -> None:
    calm, surging = generate(workload(), 5, 20_000), generate(workload(SURGE), 5, 20_000)
    start = 0.5 * 20_000 * 100

    def arrived(jobs: Jobs, name: str, low: float, high: float) -> int:
        submit = jobs.table["submit"][family(jobs, name)]
        return int(np.sum((submit >= low) & (submit < high)))

    during = start, start + 200_000
    assert arrived(surging, "data", *during) / arrived(calm, "data", *during) == pytest.approx(4, rel=0.12)
    assert arrived(surging, "data", 0, start) == arrived(calm, "data", 0, start)
    assert arrived(surging, "data", during[1], np.inf) == arrived(calm, "data", during[1], np.inf)
    assert arrived(surging, "learning", 0, np.inf) == arrived(calm, "learning", 0, np.inf)


def test_the_jobs_of_a_workload_without_its_surge_are_all_in_the_one_with_it() -> None:
    calm, surging = generate(workload(), 5, 2000), generate(workload(SURGE), 5, 2000)
    assert np.all(np.diff(surging.table["submit"]) >= 0)
    same = surging.table["group"] < len(calm.names)
    assert np.array_equal(surging.table[same], calm.table)
    assert np.array_equal(surging.work[same], calm.work)
    assert len(surging.names) == surging.table["group"].max() + 1


def test_jobs_of_one_name_have_one_user_and_shape_and_similar_work() -> None:
    jobs = generate(workload("[users]\nrecurrence = 0.8\nscatter = 0.2"), 0, 5000)
    groups: dict[int, list[tuple[Any, float]]] = {}
    for row, work in zip(jobs.table, jobs.work, strict=True):
        groups.setdefault(int(row.group), []).append((row, work))
    for rows in groups.values():
        assert len({(row.user, row.family, row.gpus, row.share, row.allowed) for row, _ in rows}) == 1
    learning = jobs.families.index("learning")
    within = [np.std(np.log([w for _, w in rows])) for rows in groups.values() if rows[0][0].family == learning]
    assert np.mean(within) < 0.2 * 0.5  # scatter times sigma
    assert len(groups) == pytest.approx(1000, rel=0.1)
    pairs = [(jobs.users[rows[0][0].user], jobs.names[group]) for group, rows in groups.items()]
    assert len(set(pairs)) == len(pairs)


def test_recurrence_and_scatter_leave_the_distribution_of_durations_alone() -> None:
    families = '[[families]]\nfamily = "data"\nduration = { distribution = "lognormal", median_s = 600, sigma = 1 }'
    log = np.log(generate(workload("[users]\nrecurrence = 0.5\nscatter = 0.6", families=families), 0, N).work)
    assert log.mean() == pytest.approx(np.log(600), abs=0.04)
    assert log.std() == pytest.approx(1, rel=0.03)


def test_users_follow_zipf() -> None:
    jobs = generate(workload("[users]\ncount = 3\nzipf = 1.0\nrecurrence = 0"), 0, N)
    assert jobs.users == ("user0", "user1", "user2")
    counts = np.bincount(jobs.table["user"]) / N
    assert np.allclose(counts, np.array([6, 3, 2]) / 11, atol=0.01)


def test_priorities_come_from_the_values_or_from_a_beta_distribution() -> None:
    chosen = generate(workload("[priorities]\nvalues = [0.25, 1.0]\nweights = [3, 1]"), 0, N).table["priority"]
    assert set(np.unique(chosen)) == {0.25, 1.0}
    assert chosen.mean() == pytest.approx(0.4375, abs=0.01)
    drawn = generate(workload("[priorities]\nbeta = [2, 6]"), 0, N).table["priority"]
    assert drawn.mean() == pytest.approx(0.25, abs=0.01)


def test_classes_are_drawn_as_often_as_they_were_seen() -> None:
    families = """
[[families]]
family = "data"
duration = { distribution = "fixed", value_s = 100 }
classes = [[0, 0, 1500, 2048, "", 1], [1, 250, 500, 1024, "T4|A10", 2], [4, 1000, 8000, 4096, "T4", 1]]
"""
    jobs = generate(workload(UNIQUE, families=families), 0, N)
    for gpus, seen, share, cpus, work in ((0, 1, 1000, 1500, 100), (1, 2, 250, 500, 25), (4, 1, 1000, 8000, 400)):
        rows = jobs.table["gpus"] == gpus
        assert rows.mean() == pytest.approx(seen / 4, abs=0.01)
        assert set(jobs.table["share"][rows]) == {share}
        assert set(jobs.table["cpus"][rows]) == {cpus}
        assert set(jobs.work[rows]) == {work}  # a job without GPUs works at rate 1
    assert set(jobs.allowed) == {frozenset(), frozenset({"T4", "A10"}), frozenset({"T4"})}


def test_the_offered_load_is_that_of_the_drawn_jobs() -> None:
    read = workload(UNIQUE)
    jobs = generate(read, 0, 4 * N)
    drawn = jobs.work.sum() / jobs.table["submit"][-1] / 16
    assert long_run_load(read, 16) == pytest.approx(drawn, rel=0.02)
    assert long_run_load(workload(arrivals="[arrivals]\nprocess = 'all-at-once'"), 16) == np.inf


def test_asking_for_no_jobs_or_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a whole number from 1"):
        generate(workload(), 0, 0)
    with pytest.raises(UsageError, match="expected a whole number from 0"):
        generate(workload(), -1)
