"""Environments on the nodes of a Ray cluster, for a learner in this process (docs/ray.md).

Each node steps a slice of every group of environments. As on one machine, the learner chooses the actions: it sends
them to the nodes and receives observations and results, so the network learns the same as on one machine. While one
group steps, the learner works on the other.

The state of the environments is fetched from time to time. A lost node is replaced: its slice starts from the state
fetched last and repeats the actions since then.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, Final, final

import numpy as np

from adlro.core.errors import BackendError
from adlro.decide.checkpoint import Arrays
from adlro.experiment.on_ray import RayCluster
from adlro.learn.train.config import TrainConfig
from adlro.learn.train.loop import TrainingState
from adlro.learn.train.presets import find_preset
from adlro.learn.train.state import changing
from adlro.learn.worlds.envs import Worlds

FETCH_EVERY: Final = 1000
"""Steps of a group between two fetches of its state: the most that a lost node has to repeat."""

_SHARED: Final = ("batch.envs.mix",)
"""Arrays without a row for each environment."""

ATTEMPTS: Final = 8
"""How often a slice is replaced in one step before the training fails."""


class Slice:
    """Some environments of every group, in a process on a node. It becomes a Ray actor."""

    def __init__(self, preset: str, config: TrainConfig, worlds: Worlds, counts: list[int], threads: int) -> None:
        self.preset = find_preset(preset)
        writable = type(worlds)(*(np.array(each) for each in worlds))  # arrays in Ray's object store are read-only
        self.batches = [self.preset.make_batch(config, writable, count, 0, threads) for count in counts]
        self.done = [0 for _ in counts]  # steps of each group since the training began

    def begin(self, group: int, arrays: Arrays, done: int) -> None:
        """Continue from the state after `done` steps."""
        self.done[group] = done
        batch = self.batches[group]
        for name, array in changing(batch):
            if name in arrays:
                array[: len(arrays[name])] = arrays[name]

    def step(self, group: int, number: int, actions: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Take the actions of this step in the environments of a group, unless they were already taken.

        Returns the new observations and the results.
        """
        batch = self.batches[group]
        if self.done[group] < number:
            self.preset.step(batch, np.array(actions))
            self.done[group] = number
        return tuple(batch.seen), tuple(batch.came)

    def repeat(self, group: int, actions: list[Any]) -> None:
        """Take earlier actions again, in order."""
        for each in actions:
            self.step(group, self.done[group] + 1, each)

    def state(self, group: int) -> Arrays:
        """The state of the environments of a group."""
        batch = self.batches[group]
        return state_rows(batch, 0, batch.count)


def state_rows(batch: Any, first: int, last: int) -> Arrays:
    """The state of some environments of a batch."""
    return {name: array.copy() if name in _SHARED else array[first:last].copy() for name, array in changing(batch)}


@dataclass(slots=True)
class Member:
    """A slice as the learner sees it. Mutable; owned by the crew."""

    actor: Any
    threads: int
    bounds: list[tuple[int, int]]  # by group: first and last + 1 of its environments
    saved: list[Arrays] = field(default_factory=list)  # by group: the state fetched last


@final
class Crew(AbstractContextManager["Crew"]):
    """The environments of a training on the nodes of a cluster. The training's own batches show their state."""

    def __init__(self, training: TrainingState, place: RayCluster) -> None:
        self.training, self.place = training, place
        self.here = training.preset.step
        self.members: list[Member] = []
        self.since: list[list[Any]] = [[] for _ in training.batches]  # by group: actions since the last fetch
        self.fetched = [0 for _ in training.batches]  # by group: the step of the last fetch
        self.changing = RLock()  # groups step at the same time, and a lost slice belongs to both

    def __enter__(self) -> "Crew":
        """Send the environments to the nodes, in their current state."""
        self.place.__enter__()
        training = self.training
        cores = self.cores()
        shares = np.cumsum([0, *cores.values()]) / sum(cores.values())
        self.worlds = self._ray.put(training.worlds)
        for number, (node, threads) in enumerate(cores.items()):
            bounds = [
                (round(shares[number] * batch.count), round(shares[number + 1] * batch.count))
                for batch in training.batches
            ]
            if any(first < last for first, last in bounds):
                member = Member(None, threads, bounds)
                member.saved = [
                    state_rows(batch, *each) for batch, each in zip(training.batches, bounds, strict=True)
                ]  # fmt: skip
                self.members.append(member)
                self.start(member, node)
        training.preset = replace(training.preset, step=self.step)
        return self

    def __exit__(self, *_: object) -> None:
        self.training.preset = replace(self.training.preset, step=self.here)
        for member in self.members:
            self._ray.kill(member.actor)  # at once: the next user of this connection needs the cores
        self.place.__exit__()

    @property
    def _ray(self) -> Any:
        return self.place.ray

    def cores(self) -> dict[str, int]:
        """The cores of each node that runs environments."""
        found = {
            node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]
        }  # fmt: skip
        used = {node: count for node, count in found.items() if count}
        if not used:
            raise BackendError("--ray: no node of the Ray cluster has a core for environments.")
        return used

    def start(self, member: Member, node: str | None) -> None:
        """Start the process of a slice on a node (or on any node), with its state and the actions since then."""
        options: dict[str, Any] = {"num_cpus": 0}
        if node is not None:
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
            options = {"num_cpus": member.threads, "scheduling_strategy": strategy}
        counts = [last - first for first, last in member.bounds]
        training = self.training
        actor = (
            self._ray.remote(Slice)
            .options(max_restarts=0, **options)
            .remote(training.preset.name, training.config, self.worlds, counts, member.threads)
        )
        for group, (first, last) in enumerate(member.bounds):
            actor.begin.remote(group, member.saved[group], self.fetched[group])
            if self.since[group]:
                actor.repeat.remote(group, [actions[first:last] for actions in self.since[group]])
        member.actor = actor  # last, so that requests of another group come after the above

    def step(self, batch: Any, actions: Any) -> None:
        """Step a group on the nodes and copy the results here; any other batch is stepped here."""
        groups = [number for number, each in enumerate(self.training.batches) if each is batch]
        if not groups:
            self.here(batch, actions)
            return
        (group,) = groups
        self.since[group].append(np.array(actions))  # first, so that a slice replaced meanwhile takes it too
        asked = [self.ask(member, group) for member in self.members]
        for member, (actor, answer) in zip(self.members, asked, strict=True):
            seen, came = self.answer(member, group, actor, answer)
            first, last = member.bounds[group]
            for mine, theirs in zip((*batch.seen, *batch.came), (*seen, *came), strict=True):
                mine[first:last] = theirs
        if len(self.since[group]) >= FETCH_EVERY:
            self.fetch(group)

    def ask(self, member: Member, group: int) -> tuple[Any, Any]:
        """Ask a slice for the latest step; returns the actor asked and the reference to its answer."""
        (first, last), since, actor = member.bounds[group], self.since[group], member.actor
        return actor, actor.step.remote(group, self.fetched[group] + len(since), since[-1][first:last])

    def answer(self, member: Member, group: int, actor: Any, asked: Any) -> Any:
        """The answer of a slice, or of its replacement if its process is lost."""
        errors = self._ray.exceptions
        for _ in range(ATTEMPTS):
            try:
                return self._ray.get(asked)
            except (errors.RayActorError, errors.ObjectLostError):
                self.replace(member, actor)
                actor, asked = self.ask(member, group)
        raise BackendError(f"--ray: a process with environments was lost {ATTEMPTS} times in one step.")

    def replace(self, member: Member, lost: Any) -> None:
        """Replace a lost process, unless another group has already done so."""
        with self.changing:
            if member.actor is lost:
                self.start(member, None)

    def fetch(self, group: int) -> None:
        """Fetch the state of a group into the training's batch, and keep it as the starting point of lost slices."""
        found = [self.state_of(member, group) for member in self.members]
        with self.changing:
            for member, arrays in zip(self.members, found, strict=True):
                member.saved[group] = {name: np.array(array) for name, array in arrays.items()}
            self.fetched[group] += len(self.since[group])
            self.since[group] = []
        for name, array in changing(self.training.batches[group]):
            for member in self.members:
                first, last = (0, len(array)) if name in _SHARED else member.bounds[group]
                array[first:last] = member.saved[group][name]

    def state_of(self, member: Member, group: int) -> Arrays:
        """The state of a slice, or of its replacement if its process is lost."""
        errors = self._ray.exceptions
        for _ in range(ATTEMPTS):
            actor = member.actor
            try:
                found: Arrays = self._ray.get(actor.state.remote(group))
                return found
            except (errors.RayActorError, errors.ObjectLostError):
                self.replace(member, actor)
        raise BackendError(f"--ray: a process with environments was lost {ATTEMPTS} times while its state was fetched.")

    def fetch_all(self) -> None:
        """Fetch all groups, for a state of the training that can be resumed anywhere."""
        for group in range(len(self.training.batches)):
            self.fetch(group)
