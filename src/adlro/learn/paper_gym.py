"""The paper's task as a Gymnasium environment: "adlro/Paper-v0", with the paper's reward and its λ.

The observation is one flat vector: what is known about each GPU, what waits, and the rows of the waiting jobs
(`decide/network/paper_state.py`). Action w · n + g assigns the job of row w to GPU g. There is no action for waiting.
"""

from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from adlro.core.errors import UsageError
from adlro.decide.network.paper_state import WINDOW, PaperSeen
from adlro.learn.gym import (
    RENDER_MODES,
    ActionMask,
    DrawnImage,
    Load,
    given_world,
    loads_of,
    mode_of,
    picture_of_cells,
    state_from,
)
from adlro.learn.paper.envs import LAMBDA, PaperBatch, begin_paper, make_paper_batch, step_paper
from adlro.learn.worlds.envs import Draw

_Singles = npt.NDArray[np.float32]

_SHOWN: Final = 3
"""Arrays of PaperSeen in the observation: all but the legal actions."""


class PaperEnv(gymnasium.Env[Any, np.int64]):
    """One cluster with the paper's state, actions and reward.

    The reward of a step is −(time that all jobs spent in the system + λ · idle GPU time), in units of the typical
    runtime. `rows` is how many waiting jobs are seen; `sizes` and `keeps` as in docs/paper-preset.md. An episode ends
    with its last job.
    """

    metadata: dict[str, Any] = {"render_modes": [*RENDER_MODES], "render_fps": 4}  # noqa: RUF012  (Gymnasium's way)

    def __init__(
        self,
        cluster: str = "paper16",
        workload: str = "paper",
        jobs: int = 128,
        load: Load = 1.0,
        lam: float = LAMBDA,
        rows: int = WINDOW,
        sizes: bool = True,
        keeps: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = mode_of(render_mode)
        given: tuple[object, ...] = (jobs, rows)
        if not all(isinstance(number, int) and number > 0 for number in given):
            raise UsageError(f"jobs is {jobs!r} and rows {rows!r}; expected whole numbers from 1.")
        low, high = loads_of(load)
        world = given_world(str(cluster), str(workload), None)
        draw = Draw(low, high, 0, 0.0, 0.0, 0.0, 0.0, False)
        self.batch: PaperBatch = make_paper_batch(world, 1, jobs, draw, lam, 1, 1, rows, sizes, keeps)
        length = sum(array[0].size for array in self.batch.seen[:_SHOWN])
        self.observation_space = Box(0.0, 1.0, (length,), np.float32)
        self.action_space = Discrete(self.batch.actions)
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[_Singles, dict[str, Any]]:
        """Begin an episode; with a seed, it and all later episodes repeat those of that seed."""
        super().reset(seed=seed)
        self.batch.envs.state["random"][0] = state_from(self.np_random)
        begin_paper(self.batch)
        self._is_over = False
        return _flat(self.batch.seen), {"action_mask": self._mask()}

    def step(self, action: np.int64) -> tuple[_Singles, float, bool, bool, dict[str, Any]]:
        """Assign a job and go on to the next decision. An illegal action starts nothing; time moves on."""
        step_paper(self.batch, np.array([action], np.int32))
        came = self.batch.came
        self._is_over = bool(came.done[0])
        seen = _flat(self.batch.seen)
        info: dict[str, Any] = {"action_mask": self._mask()}
        if self._is_over:
            seen[:] = 0.0
            info = {"action_mask": np.zeros_like(info["action_mask"]), "mean_jct": float(came.score[0])}
        return seen, float(came.reward[0]), self._is_over, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, as SB3-contrib's MaskablePPO asks for it."""
        return self._mask().astype(np.bool_)

    def render(self) -> DrawnImage | None:
        """A picture of the jobs that wait and the GPUs, as of the other environment; None unless it was asked for."""
        if self.render_mode is None:
            return None
        seen = self.batch.seen
        there = (seen.jobs[0] > 0.0).any(axis=1)
        legal = seen.legal[0].reshape(len(there), -1)
        present = np.broadcast_to(there[:, None], legal.shape)
        return picture_of_cells(present, legal, 1.0 - seen.use[0, :, 0], self._is_over)

    def close(self) -> None:
        """Stop the threads."""
        self.batch.threads.shutdown()

    def _mask(self) -> ActionMask:
        return self.batch.seen.legal[0].astype(np.int8)


def _flat(seen: PaperSeen) -> _Singles:
    """The observation of the only environment as a vector."""
    return np.concatenate([array[0].reshape(-1) for array in seen[:_SHOWN]])
