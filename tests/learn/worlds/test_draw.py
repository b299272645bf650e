"""What worlds are drawn, and how they are put side by side."""

from functools import cache
from pathlib import Path

import numpy as np
import numpy.lib.recfunctions
import pytest

from adlro.core.errors import TraceError
from adlro.core.tables import DOWN, REFUSED
from adlro.experiment.instance import draw as draw_instance
from adlro.experiment.scenario import load_scenario
from adlro.learn.worlds.batch import make_batch
from adlro.learn.worlds.draw import DrawnWorld, Range, capacity_load, make_world, random_worlds, stack
from adlro.learn.worlds.envs import Draw
from adlro.learn.worlds.episodes import FILLS, SMALL
from adlro.learn.worlds.file import load_worlds, save_worlds


@cache
def drawn() -> list[DrawnWorld]:
    return random_worlds(200, 1)


def test_drawn_clusters_have_8_to_256_gpus_of_1_to_6_models() -> None:
    gpus = [len(world.view.gpus) for world in drawn()]
    models = [len(world.view.pools) for world in drawn()]
    assert min(gpus) <= 12
    assert max(gpus) >= 180
    assert max(gpus) <= 280  # a share of the GPUs is rounded to whole nodes
    assert set(models) == {1, 2, 3, 4, 5, 6}
    assert models.count(1) > models.count(2) + 10, "clusters of one model are drawn more often"
    assert np.median(gpus) < 80, "sizes are drawn on a logarithmic scale"


def test_larger_clusters_are_drawn_where_they_are_asked_for() -> None:
    gpus = [len(world.view.gpus) for world in random_worlds(60, 1, Range(gpus=(8, 512)))]
    assert 300 <= max(gpus) <= 540


def test_drawn_jobs_have_gangs_of_many_sizes_and_some_worlds_none() -> None:
    sizes = [set(world.view.jobs.gpus[world.view.runs.state != REFUSED].tolist()) for world in drawn()]
    assert set().union(*sizes) == {1, 2, 3, 4, 6, 8, 12, 16, 32}
    assert any(found == {1} for found in sizes)
    wide = [bool((world.view.width > 1).any()) for world in drawn()]
    assert any(wide)
    assert not all(wide)


def times_as_long(world: DrawnWorld) -> float:
    """How many times as long as the median job those are that one in two hundred exceeds."""
    return float(np.quantile(world.jobs.work, 0.995) / np.median(world.jobs.work))


def test_where_giants_are_asked_for_a_few_jobs_are_much_longer() -> None:
    usual, giants = (random_worlds(40, 4, Range(giants=share)) for share in (0.0, 1.0))
    assert np.median([times_as_long(world) for world in giants]) > 150
    assert np.median([times_as_long(world) for world in usual]) < 100


def test_worlds_are_the_same_for_the_same_seed() -> None:
    for one, two in zip(random_worlds(3, 8), random_worlds(3, 8), strict=True):
        np.testing.assert_array_equal(one.view.rate, two.view.rate)
        np.testing.assert_array_equal(one.jobs.work, two.jobs.work)
    assert not np.array_equal(random_worlds(1, 9)[0].jobs.work, random_worlds(1, 8)[0].jobs.work)


def test_episodes_cover_loads_bursts_backlogs_errors_and_failures() -> None:
    worlds = stack(drawn()[:40])
    how = Draw(0.5, 1.5, backlog=12, burst=0.3, sigma=0.5, jitter=0.2, failures=0.3, shaped=False)
    batch = make_batch(worlds, 400, 64, 8, worlds.pools.shape[1], how, 2, 1)
    envs, info = batch.envs, worlds.info[batch.envs.state.world]
    assert len(set(batch.envs.state.world.tolist())) == 40
    submit = envs.jobs.submit
    waiting = (submit == 0.0).sum(axis=1)
    assert waiting.min() == 0
    assert 8 <= waiting[info.gpus <= SMALL].max() <= 12
    assert 16 < waiting.max() <= 32  # on large clusters more, up to half of all
    load = (64 - waiting) * info.gap / submit[:, -1]
    assert np.quantile(load, 0.05) < 0.6
    assert np.quantile(load, 0.95) > 1.2
    error = np.log(envs.jobs.estimate / envs.work).std(axis=1)
    assert 0.4 < (error == 0.0).mean() < 0.6
    assert 0.3 < error.max() < 0.7
    failing = np.isfinite(envs.disturbances.time).any(axis=1) & (envs.disturbances.what == DOWN).any(axis=1)
    assert 0.15 < failing.mean() < 0.45
    gaps = np.diff(submit, axis=1)
    uneven = [float(row[row > 0].std() / row[row > 0].mean()) for row in gaps]
    assert max(uneven) > 1.4  # exponential gaps have 1, bursts far more
    assert np.median(uneven) < 1.2


def test_the_capacity_of_one_gpu_is_its_speed() -> None:
    scenario = load_scenario("paper16", "paper", 100)
    jobs = draw_instance(scenario, 0).jobs
    view = make_world(scenario.plan, jobs).view
    whole = capacity_load(view, jobs.work)
    assert capacity_load(view, 3.0 * jobs.work) == pytest.approx(3.0 * whole)
    fastest = view.fastest[view.jobs.demand]
    least = float((jobs.work / fastest * view.jobs.gpus * view.jobs.share / 1000).sum()) / 16
    assert whole >= least * 0.999


def test_side_by_side_each_world_keeps_what_it_is() -> None:
    some = drawn()[:5]
    worlds = stack(some)
    for n, world in enumerate(some):
        info, view = worlds.info[n], world.view
        np.testing.assert_array_equal(worlds.rate[n, : len(view.rate), : len(view.forms)], view.rate)
        np.testing.assert_array_equal(worlds.sites[n, : info.sites].free_gpus, view.sites.free_gpus)
        assert (info.gpus, info.pools, info.nodes) == (len(view.gpus), len(view.pools), len(view.nodes))
        assert info.menu == np.count_nonzero(view.runs.state != REFUSED)
        assert worlds.work[n, : info.menu].min() > 0.0


def test_an_episode_has_more_jobs_where_more_fill_the_cluster() -> None:
    worlds = stack(drawn()[:40])
    how = Draw(0.9, 0.9, backlog=0, burst=0.0, sigma=0.0, jitter=0.2, failures=0.0, shaped=False, jobs=24)
    state = make_batch(worlds, 200, 120, 8, worlds.pools.shape[1], how, 2, 1).envs.state
    crowd = worlds.info.crowd[state.world]
    np.testing.assert_array_equal(state.jobs, np.clip((FILLS * crowd).astype(int), 24, 120))
    assert {24, 120} < set(state.jobs.tolist())
    gpus = drawn()[3].view.jobs.gpus[drawn()[3].view.runs.state != REFUSED]
    assert worlds.info.crowd[3] == pytest.approx(len(drawn()[3].view.gpus) / gpus.mean())


def test_worlds_of_another_version_are_told_in_one_line(tmp_path: Path) -> None:
    worlds = stack(drawn()[:4])
    path = tmp_path / "worlds.npz"
    save_worlds(path, worlds)
    assert load_worlds(path).info.scale.tolist() == worlds.info.scale.tolist()
    older = np.asarray(worlds.info)[[name for name in worlds.info.dtype.names if name != "crowd"]]
    save_worlds(path, worlds._replace(info=np.lib.recfunctions.repack_fields(older)))
    with pytest.raises(TraceError, match=r"'info' has other columns.*Make it again"):
        load_worlds(path)


def test_worlds_whose_columns_stand_in_another_order_are_read(tmp_path: Path) -> None:
    worlds = stack(drawn()[:1])
    names = worlds.jobs.dtype.names
    backwards = np.zeros(worlds.jobs.shape, [(name, worlds.jobs.dtype[name]) for name in reversed(names)])
    for name in names:
        backwards[name] = worlds.jobs[name]
    save_worlds(tmp_path / "worlds.npz", worlds._replace(jobs=backwards.view(np.recarray)))
    back = load_worlds(tmp_path / "worlds.npz").jobs
    assert back.dtype == worlds.jobs.dtype
    assert (back == worlds.jobs).all()
