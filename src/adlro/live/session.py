"""A policy session:

the memory of a policy lives as long as the daemon, and survives a restart.

Jobs have other numbers in each turn's scene. So the policy is made again for each turn and continues with its memory;
the session translates job numbers to ids, and times to seconds since 1970.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, final

from adlro.core.driver import made
from adlro.core.policy import Choose, Policy
from adlro.core.remembering import Remembered, Remembers
from adlro.core.tables import NOBODY, View
from adlro.live.scene import Scene
from adlro.live.telling import Heard, Notes

SESSION: Final = "policy_session"
"""The name under which the memory keeps the policy's session."""

_GONE: Final = NOBODY - 1
"""The numbers of jobs that are gone go down from here."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a policy remembers, in terms that are valid in every turn. Times are seconds since 1970."""

    policy: str
    random: int  # the state of the policy's random generator
    models: tuple[str, ...] = ()  # the pools and nodes that its numbers refer to
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()  # ids
    by_job: Mapping[str, list[Any]] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)


@final
class Session:
    """One policy over many turns. `lost` says once, in words, what could not be carried over."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.choose: Choose | None = None  # what answers in this turn
        self.lost = ""
        self._saved: Saved | None = None
        self._before: Saved | None = None  # as it was before the latest turn
        self._random = 0  # at the beginning of the turn
        self._draws = False  # the policy has used its random generator

    def for_turn(self, scene: Scene, view: View) -> Policy:
        """The policy for one turn on a copy of the scene's view; it continues from the last turn."""
        if self._saved is not None:
            view.clock[0].random = self._saved.random
        self._random = int(view.clock[0].random)
        self.choose = self.policy.choose
        if self.policy.make is None:
            return self.policy

        def make(view: View, seed: int) -> Choose:
            self.choose = made(self.policy, view, seed)
            self._recall(scene, view, self.choose)
            return self.choose

        return replace(self.policy, make=make)

    def _recall(self, scene: Scene, view: View, choose: Choose) -> None:
        """Give the policy its memory back."""
        saved = self._saved
        if saved is None or not isinstance(choose, Remembers) or not (saved.jobs or saved.times or saved.rest):
            return
        if (saved.models, saved.nodes) != names_of(scene):
            self.lost = "the nodes of the cluster are others than before"
            return
        numbers = tuple(scene.index.get(id, _GONE - at) for at, id in enumerate(saved.jobs))
        times = {name: time_s - scene.epoch_s for name, time_s in saved.times.items()}
        if not choose.recall(view, Remembered(numbers, saved.by_job, times, saved.rest)):
            self.lost = "what it remembered does not suit the cluster any more"

    def keep(self, scene: Scene, view: View) -> None:
        """Save the policy's memory after this turn."""
        self._before = self._saved
        random = int(view.clock[0].random)
        self._draws = self._draws or random != self._random
        saved = Saved(self.policy.name, random)
        if isinstance(self.choose, Remembers):
            kept = self.choose.remembered()
            # A job that was gone already keeps a name that no job has.
            ids = tuple(scene.live[j].id if j >= 0 else "" for j in kept.jobs)
            times = {name: scene.time_s(time) for name, time in kept.times.items()}
            models, nodes = names_of(scene)
            saved = Saved(self.policy.name, random, models, nodes, ids, kept.by_job, times, kept.rest)
        self._saved = saved

    def undo(self) -> None:
        """Forget the latest turn, which could not be carried out: the policy is asked again from where it was."""
        self._saved = self._before

    def as_text(self) -> str:
        """The text that survives a restart; "" if there is nothing to remember."""
        saved = self._saved
        if saved is None or not (self._draws or saved.jobs or saved.times or any(saved.rest.values())):
            return ""
        return json.dumps(asdict(saved))

    def resume(self, text: str) -> None:
        """Continue after a restart with the text of `as_text`.

        Text that cannot be read, or of another policy, is ignored.
        """
        try:
            found = json.loads(text)
            saved = Saved(
                str(found["policy"]), int(found["random"]), tuple(found["models"]), tuple(found["nodes"]),
                tuple(found["jobs"]), dict(found["by_job"]), dict(found["times"]), dict(found["rest"]),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError):
            self.lost = "what it remembered before the restart cannot be read"
            return
        if saved.policy == self.policy.name:
            self._saved, self._draws = saved, True


def names_of(scene: Scene) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pools and nodes of a scene, in the order in which they are numbered."""
    return scene.plan.models, tuple(node.name for node in scene.plan.cluster.nodes)


@final
class KeptSession:
    """The session as it was last written down."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._text: str | None = None

    def resume(self, session: Session, time_s: float, heard: Heard) -> None:
        """In the first turn, continue from before the restart."""
        if self._text is None:
            self._text = self._notes.write(heard, time_s, lambda: self._notes.memory.get(SESSION), None) or ""
            if self._text:
                session.resume(self._text)

    def keep(self, session: Session, name: str, time_s: float, heard: Heard) -> None:
        """Record what the policy remembers, if that has changed; report what it has lost."""
        if session.lost:
            self._notes.tell(heard, time_s, "session", f"{name} starts again without its memory: {session.lost}.")
            session.lost = ""
        if (text := session.as_text()) != self._text:
            self._text = text
            self._notes.write(heard, time_s, lambda: self._notes.memory.put(SESSION, text), None)
