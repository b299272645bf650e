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
from adlro.learn.gym import ClusterEnv, ClusterVectorEnv

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
        ({"sigma": -1.0}, "sigma -1.0"),
        ({"window": (0, 10)}, "window is for a trace"),
        ({"cluster": "random", "window": (0, 10)}, "window is for a trace"),
    ],
)
def test_a_wrong_option_is_refused_with_what_was_expected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClusterEnv(**options)


def test_a_window_of_a_trace_is_played_in_its_order(tmp_path: Any) -> None:
    from adlro.experiment import load_jobs
    from adlro.ingest.traces.own import write_own

    jobs = load_jobs("paper", 0, 60)
    path = tmp_path / "jobs.parquet"
    write_own(jobs, str(path))
    env = ClusterEnv(workload=str(path), window=(20, 16), jobs=16, load=1.0)
    env.reset(seed=0)
    np.testing.assert_allclose(env.batch.envs.work[0], jobs.work[20:36])
    np.testing.assert_allclose(np.diff(env.batch.envs.jobs[0].submit), np.diff(jobs.table.submit[20:36]), atol=1e-5)
    with pytest.raises(UsageError, match="of the 60 jobs"):
        ClusterEnv(workload=str(path), window=(50, 16), jobs=16)
    with pytest.raises(UsageError, match="Ask for 16 or fewer"):
        ClusterEnv(workload=str(path), window=(20, 16), jobs=17)
