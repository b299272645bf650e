"""The many clusters of `learn/gym.py` as a vector environment of Stable-Baselines3.

Stable-Baselines3 has its own kind of vector environment and steps the members of a `DummyVecEnv` one by one in Python;
here all are stepped in one compiled call. It comes with `pip install 'adlro[sb3]'`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from adlro.core.errors import UsageError
from adlro.learn.gym import ClusterVectorEnv

_Indices = int | Iterable[int] | None


class ClusterSb3Env(VecEnv):
    """`ClusterVectorEnv` for Stable-Baselines3; the options are the same. It knows `action_masks` (SB3-contrib)."""

    def __init__(self, num_envs: int = 1, threads: int | None = None, **options: Any) -> None:
        self.envs = ClusterVectorEnv(num_envs, threads, **options)
        self.actions: Any = None
        self.first_seed: int | None = None
        super().__init__(self.envs.num_envs, self.envs.single_observation_space, self.envs.single_action_space)

    def reset(self) -> Any:
        """Begin an episode everywhere; with the seed of `seed()`, if one was given since the last time."""
        seen, _info = self.envs.reset(seed=self.first_seed)
        self.first_seed = None
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return seen

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset: environment i gets seed + i."""
        self.first_seed = seed
        return [None if seed is None else seed + i for i in range(self.num_envs)]

    def step_async(self, actions: Any) -> None:
        """Say what to do in the next step."""
        self.actions = actions

    def step_wait(self) -> Any:
        """Take the step: what is seen, rewards, which episodes are over, and a word on each environment."""
        seen, rewards, over, _truncated, info = self.envs.step(np.asarray(self.actions).reshape(-1))
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for i in np.flatnonzero(over).tolist():
            infos[i]["terminal_observation"] = info["final_obs"][i]
            infos[i]["mean_jct"] = float(info["final_info"]["mean_jct"][i])
        return seen, rewards.astype(np.float32), over, infos

    def close(self) -> None:
        """Let the threads go."""
        self.envs.close()

    def get_images(self) -> Sequence[Any]:
        """Pictures of all environments."""
        return self.envs.render() or ()

    def get_attr(self, attr_name: str, indices: _Indices = None) -> list[Any]:
        """An attribute, once for each environment; `action_masks` is a function for each of them."""
        if attr_name == "action_masks":
            return [lambda i=i: self.envs.action_masks()[i] for i in self._places(indices)]
        return [getattr(self.envs, attr_name) for _ in self._places(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: _Indices = None) -> None:
        """Refused: the environments share their state."""
        raise UsageError(f"{attr_name} cannot be set on some of many environments; pass it when you make them.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: _Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method answers for each environment; `action_masks` is the one that agents call."""
        if method_name != "action_masks":
            raise UsageError(f"there is no method {method_name!r} of a single environment here; expected action_masks.")
        masks = self.envs.action_masks()
        return [masks[i] for i in self._places(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: _Indices = None) -> list[bool]:
        """Nothing is wrapped around single environments."""
        return [False for _ in self._places(indices)]

    def _places(self, indices: _Indices) -> list[int]:
        return list(self._get_indices(indices))
