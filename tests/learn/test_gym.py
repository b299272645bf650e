"""The Gymnasium environments, seen by clients that we did not write."""

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import adlro
from adlro.core.errors import UsageError
from adlro.learn.gym import BAR, CELL, FREE_CELL, LEGAL, ClusterEnv, ClusterVectorEnv

NAME = "adlro/Cluster-v0"


@pytest.mark.parametrize(
    "options",
    [{}, {"reward": "shaped"}, {"cluster": "random", "worlds": 3, "load": (0.5, 1.5), "failures": 0.5, "sigma": 0.5}],
    ids=["plain", "shaped", "random"],
)
def test_gymnasium_has_nothing_to_complain_of(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(NAME, jobs=8, **options).unwrapped)


@pytest.mark.parametrize("order", ["adlro, gymnasium", "gymnasium, adlro"])
def test_the_name_is_known_whichever_is_imported_first(order: str) -> None:
    script = f"import {order}; print(gymnasium.spec('{NAME}').entry_point)"
    found = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "adlro.learn.gym:ClusterEnv"


def test_importing_the_package_does_not_import_gymnasium() -> None:
    script = "import sys, adlro; print([name for name in ('gymnasium', 'numpy', 'numba') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert adlro.__version__


def episode(env: Any, seed: int | None, actions_seed: int = 0) -> list[tuple[float, float]]:
    random = np.random.default_rng(actions_seed)
    seen, info = env.reset(seed=seed)
    told = []
    while True:
        assert env.observation_space.contains(seen)
        action = random.choice(np.flatnonzero(info["action_mask"]))
        seen, reward, terminated, truncated, info = env.step(action)
        assert not truncated
        told.append((float(seen.sum()), reward))
        if terminated:
            assert info["mean_jct"] > 0.0
            assert not seen.any()
            return told


def test_the_same_seed_gives_the_same_episodes() -> None:
    env = gymnasium.make(NAME, jobs=12)
    first, second = [episode(env, 5), episode(env, None)], [episode(env, 5), episode(env, None)]
    assert first == second
    assert first[0] != first[1]
    assert episode(env, 6) != first[0]


def test_in_a_vector_each_environment_goes_the_way_it_goes_alone() -> None:
    many = ClusterVectorEnv(3, threads=2, jobs=6)
    alone = [ClusterEnv(jobs=6) for _ in range(3)]
    seen, info = many.reset(seed=7)
    singles = [env.reset(seed=7 + i) for i, env in enumerate(alone)]
    random = np.random.default_rng(1)
    ended = 0
    for _ in range(60):
        for i, (single, told) in enumerate(singles):
            np.testing.assert_array_equal(seen[i], single)
            np.testing.assert_array_equal(info["action_mask"][i], told["action_mask"])
        actions = np.array([random.choice(np.flatnonzero(told["action_mask"])) for _, told in singles])
        seen, rewards, over, _, info = many.step(actions)
        singles = []
        for i, env in enumerate(alone):
            single, reward, terminated, _, told = env.step(actions[i])
            assert (reward, terminated) == (rewards[i], over[i])
            if terminated:
                ended += 1
                np.testing.assert_array_equal(info["final_obs"][i], single)
                assert info["final_info"]["mean_jct"][i] == told["mean_jct"]
                single, told = env.reset()
            singles.append((single, told))
    assert ended >= 3


def test_in_a_vector_what_follows_a_seed_follows_from_it() -> None:
    many = ClusterVectorEnv(2, jobs=6)
    first = [many.reset(seed=0)[0], many.reset()[0]]
    second = [many.reset(seed=0)[0], many.reset()[0]]
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).any()
    many.reset(seed=0)
    kept = many.reset(seed=[5, None])[0]  # None: as if there were no seed
    np.testing.assert_array_equal(kept[1], first[1][1])
    alone = ClusterEnv(jobs=6)
    np.testing.assert_array_equal([alone.reset(seed=0)[0], alone.reset()[0]], [first[0][0], first[1][0]])


def test_without_a_seed_every_environment_begins_elsewhere() -> None:
    seen = np.concatenate([ClusterVectorEnv(2, jobs=6).reset()[0] for _ in range(2)])
    assert len(np.unique(seen, axis=0)) == 4


@pytest.mark.parametrize(
    "seed", [np.int64(3), np.array(3), [3, 4], (3, 4), np.array([3, 4]), [np.int32(3), np.uint8(4)]]
)
def test_a_seed_may_be_a_whole_number_of_any_kind(seed: Any) -> None:
    many = ClusterVectorEnv(2, jobs=6)
    np.testing.assert_array_equal(many.reset(seed=seed)[0], many.reset(seed=3)[0])
    alone, kind = ClusterEnv(jobs=6), seed if np.ndim(seed) == 0 else seed[0]
    np.testing.assert_array_equal(alone.reset(seed=kind)[0], many.reset(seed=3)[0][0])


@pytest.mark.parametrize(
    ("seed", "text"),
    [
        ([1], "a list of 1; expected 2, one for each"),
        ([1, 2, 3], "a list of 3; expected 2, one for each"),
        (2.5, "seed is 2.5; expected a whole number from 0"),
        ([1, 2.5], "seed is 2.5; expected a whole number from 0"),
        (-1, "seed is -1; expected a whole number from 0"),
    ],
)
def test_another_seed_is_refused_and_changes_nothing(seed: Any, text: str) -> None:
    many = ClusterVectorEnv(2, jobs=6)
    many.reset(seed=0)
    expected = many.reset()[0]
    many.reset(seed=0)
    with pytest.raises(UsageError, match=text):
        many.reset(seed=seed)
    np.testing.assert_array_equal(many.reset()[0], expected)


@pytest.mark.parametrize("action", [-1, -2, -(2**31), 2**31, 2**32, 2**70, "the number of actions"])
def test_a_number_that_is_no_action_waits(action: Any) -> None:
    waits, other, many = ClusterEnv(jobs=12), ClusterEnv(jobs=12), ClusterVectorEnv(2, jobs=12)
    wait = waits.batch.actions - 1
    number = action if isinstance(action, int) else wait + 1
    for env in (waits, other, many):
        env.reset(seed=2)
    for _ in range(4):
        seen, reward, _, _, _ = waits.step(np.int64(wait))
        found, same, _, _, _ = other.step(number)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, seen)
        assert same == reward
        found = many.step([number, 0])[0][0]  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, seen)


@pytest.mark.parametrize("actions", [[1], [], [1, 1, 1], 1, [[1], [1]], [1, [1]], [1.5, 1.0], [None, 1]])
def test_actions_of_another_shape_or_kind_are_refused(actions: Any) -> None:
    many = ClusterVectorEnv(2, jobs=6)
    many.reset(seed=0)
    with pytest.raises(UsageError, match="expected 2 whole numbers, one for each environment"):
        many.step(actions)
    alone: Any = ClusterEnv(jobs=6)
    alone.reset(seed=0)
    for action in ([1], 1.5, None):
        with pytest.raises(UsageError, match="expected a whole number"):
            alone.step(action)


def test_after_steps_beyond_the_end_an_episode_begins_at_its_beginning() -> None:
    env: Any = ClusterEnv(jobs=6)
    episode(env, 0)
    for _ in range(2):
        env.step(int(np.flatnonzero(env.batch.seen.legal[0])[0]))
    assert env.batch.envs.state[0].steps == 2
    env.reset()
    assert env.batch.envs.state[0].steps == 0
    episode(env, 0)
    begun = env.batch.envs.jobs[0].submit.copy()
    env.reset()  # and without such steps none is left out
    np.testing.assert_array_equal(env.batch.envs.jobs[0].submit, begun)


def test_make_vec_steps_the_batch_and_says_how_it_resets() -> None:
    many: Any = gymnasium.make_vec(NAME, num_envs=4, jobs=6)
    assert isinstance(many.unwrapped, ClusterVectorEnv)
    assert many.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, _ = many.reset(seed=[1, 1, 2, None])
    np.testing.assert_array_equal(seen[0], seen[1])
    assert (seen[0] != seen[2]).any()
    assert many.observation_space.contains(seen)
    many.close()


def test_stable_baselines_learns_on_it_and_plays_an_episode_to_its_end() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own, on import
        from stable_baselines3 import DQN
        from stable_baselines3.common.env_checker import check_env as check_for_baselines
    env: Any = ClusterEnv(jobs=12, rows=4)
    check_for_baselines(env)
    agent = DQN("MlpPolicy", env, policy_kwargs={"net_arch": [16]}, learning_starts=200, buffer_size=3000, seed=0)
    agent.learn(3000)
    seen, _ = env.reset(seed=1)
    for _ in range(500):
        action, _ = agent.predict(seen, deterministic=True)
        seen, _, terminated, _, info = env.step(action)
        if terminated:
            assert info["mean_jct"] > 0.0
            return
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reward": "gold"}, "expected time or shaped"),
        ({"jobs": 0}, "jobs is 0"),
        ({"load": (1.0, 0.5)}, "the smaller first"),
        ({"failures": 2.0}, "from 0 to 1"),
        ({"sigma": -1.0}, "sigma is -1.0; expected a number from 0 to 5"),
        ({"sigma": "1"}, "sigma is '1'; expected a number from 0 to 5"),
        ({"load": (1, 2, 3)}, r"load is \(1, 2, 3\); expected a number above 0, or two of them"),
        ({"load": "1"}, "load is '1'; expected a number above 0"),
        ({"load": [0.5, float("inf")]}, "expected a number above 0"),
        ({"bursts": None}, "bursts is None; expected the share of episodes"),
        ({"window": (0, 1, 2)}, r"window is \(0, 1, 2\); expected two whole numbers"),
        ({"window": [0, 1.5]}, r"window is \[0, 1.5\]; expected two whole numbers"),
        ({"window": 5}, "window is 5; expected two whole numbers"),
        ({"window": [0, 10]}, "window is for a trace"),
        ({"jobs": 2.5}, "jobs is 2.5; expected a whole number from 1"),
        ({"rows": "4"}, "rows is '4'; expected a whole number from 1"),
        ({"worlds": 1.5, "cluster": "random"}, "worlds is 1.5; expected a whole number from 1"),
        ({"worlds_seed": -1, "cluster": "random"}, "worlds_seed is -1; expected a whole number from 0"),
        ({"backlog": float("nan")}, "backlog is nan; expected a whole number from 0"),
        ({"backlog": 2.0}, "backlog is 2.0; expected a whole number from 0"),
        ({"cluster": 16}, "cluster is 16; expected a name or the path of a file"),
        ({"workload": None}, "workload is None; expected a name or the path of a file"),
        ({"window": (0, 10)}, "window is for a trace"),
        ({"cluster": "random", "window": (0, 10)}, "window is for a trace"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClusterEnv(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"threads": -1}, "threads is -1; expected a whole number from 0"),
        ({"threads": 1.5}, "threads is 1.5; expected a whole number from 0"),
        ({"num_envs": 0}, "num_envs is 0; expected a whole number from 1"),
        ({"num_envs": 2.5}, "num_envs is 2.5; expected a whole number from 1"),
    ],
)
def test_so_is_one_of_a_vector(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClusterVectorEnv(**options)


def test_numbers_of_any_kind_are_options_and_a_list_stands_for_two() -> None:
    plain = ClusterEnv(jobs=6, load=(1.0, 2.0), sigma=1.0, backlog=2)
    other = ClusterEnv(jobs=np.int64(6), load=[1, np.float32(2)], sigma=1, backlog=np.uint8(2))
    assert other.batch.draw == plain.batch.draw
    assert [type(each) for each in other.batch.draw] == [type(each) for each in plain.batch.draw]


@pytest.mark.parametrize(("jobs", "pause"), [(64, 0.84), (500, 0.81)])
def test_bursts_add_load_as_the_document_says(jobs: int, pause: float) -> None:
    plain, bursts = (
        ClusterVectorEnv(64000 // jobs, jobs=jobs, bursts=each).batch.envs.jobs["submit"][:, -1].mean()
        for each in (0.0, 1.0)
    )
    assert bursts / plain == pytest.approx(pause, abs=0.02)


def test_a_window_of_a_trace_is_played_in_its_order(tmp_path: Any) -> None:
    from adlro.experiment.instance import load_jobs
    from adlro.ingest.traces.own import write_own

    jobs = load_jobs("paper", 0, 60)
    path = tmp_path / "jobs.parquet"
    write_own(jobs, str(path))
    env = ClusterEnv(workload=path, window=[20, 16], jobs=16, load=1.0)
    env.reset(seed=0)
    np.testing.assert_allclose(env.batch.envs.work[0], jobs.work[20:36])
    np.testing.assert_allclose(np.diff(env.batch.envs.jobs[0].submit), np.diff(jobs.table.submit[20:36]), atol=1e-5)
    with pytest.raises(UsageError, match="of the 60 jobs"):
        ClusterEnv(workload=str(path), window=(50, 16), jobs=16)
    with pytest.raises(UsageError, match="Ask for 16 or fewer"):
        ClusterEnv(workload=str(path), window=(20, 16), jobs=17)


def test_action_masks_say_what_the_info_says() -> None:
    env = ClusterEnv(jobs=4, rows=4)
    _seen, info = env.reset(seed=3)
    over = False
    while not over:
        masks = env.action_masks()
        assert masks.dtype == np.bool_
        np.testing.assert_array_equal(masks, info["action_mask"] == 1)
        _seen, _reward, over, _, info = env.step(np.int64(np.flatnonzero(masks)[0]))
    np.testing.assert_array_equal(env.action_masks(), info["action_mask"] == 1)
    many = ClusterVectorEnv(2, jobs=4, rows=4)
    _seen, told = many.reset(seed=3)
    np.testing.assert_array_equal(many.action_masks(), told["action_mask"] == 1)


def test_a_picture_shows_legal_pairs_in_green_and_free_gpus_as_bars() -> None:
    env = gymnasium.make(NAME, jobs=4, rows=4, render_mode="rgb_array").unwrapped
    assert isinstance(env, ClusterEnv)
    env.reset(seed=3)
    image = env.render()
    assert image is not None
    pools = (env.batch.actions - 1) // 4
    assert image.shape == (4 * CELL + BAR + 1, pools * CELL + 1, 3)
    legal = env.action_masks()[:-1].reshape(4, pools)
    middles = image[CELL // 2 : 4 * CELL : CELL, CELL // 2 :: CELL]
    np.testing.assert_array_equal((middles == LEGAL).all(axis=2), legal)
    assert legal.any()
    assert not legal.all()
    assert (image[-2, CELL // 2 :: CELL] == FREE_CELL).all()  # nothing runs yet
    assert ClusterEnv(jobs=4).render() is None
    with pytest.raises(UsageError, match="render_mode is 'human'; expected 'rgb_array'"):
        ClusterEnv(jobs=4, render_mode="human")


def test_a_vector_of_stable_baselines_goes_the_way_of_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own, on import
        from stable_baselines3 import DQN

        from adlro.learn.sb3 import ClusterSb3Env
    theirs, ours = ClusterSb3Env(3, jobs=6, rows=4, render_mode="rgb_array"), ClusterVectorEnv(3, jobs=6, rows=4)
    theirs.seed(7)
    seen, (same, _info) = theirs.reset(), ours.reset(seed=7)
    ended = 0
    for _ in range(40):
        np.testing.assert_array_equal(seen, same)
        masks = np.stack(theirs.env_method("action_masks"))  # as SB3-contrib asks a vector
        np.testing.assert_array_equal(masks, ours.action_masks())
        actions = masks.argmax(axis=1)
        seen, rewards, over, infos = theirs.step(actions)
        same, expected, ends, _, told = ours.step(actions.astype(np.int32))
        np.testing.assert_array_equal(rewards, expected.astype(np.float32))
        np.testing.assert_array_equal(over, ends)
        for i in np.flatnonzero(over):
            ended += 1
            assert infos[i]["mean_jct"] == told["final_info"]["mean_jct"][i]
            assert not infos[i]["terminal_observation"].any()
    assert ended >= 3
    assert len(theirs.get_images()) == 3
    assert theirs.has_attr("action_masks")
    agent = DQN("MlpPolicy", theirs, policy_kwargs={"net_arch": [8]}, learning_starts=30, buffer_size=300, seed=0)
    agent.learn(90)
    theirs.close()
    ours.close()
