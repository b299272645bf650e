"""Compile everything that a daemon needs before its first turn, by playing a short life of one on a simulated cluster.

The rehearsal uses the orchestrator itself: what a real turn, its predictions, the comparison with the fallback and a
what-if question call is compiled, or loaded from the cache, because the rehearsal called it too.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numba.core.event

from adlro.backends.simulated.backend import Simulated
from adlro.backends.simulated.clock import ByHand
from adlro.backends.simulated.demo import demo_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.errors import AdlroError
from adlro.core.learned import KNOWN_SPEEDS, LEARNED_SPEEDS
from adlro.core.ports import Submission
from adlro.core.records import WHOLE_GPU, Job
from adlro.daemon.store import open_store
from adlro.decide.catalogue import find_policy
from adlro.live.corrections import Corrections
from adlro.live.foresee import CHEAP
from adlro.live.forward import play_forward, usual_work
from adlro.live.limits import GuardTable, PreemptTable
from adlro.live.said import as_said
from adlro.live.scene import Scenes
from adlro.live.service import WhatIf
from adlro.live.turn import Orchestrator, TurnSettings
from adlro.simulation.simulator import BY_PRIORITY

_LONG_S: Final = 3600.0
"""Time for one decision of the rehearsal: it may have to be compiled first."""

PATIENT: Final = TurnSettings(
    decide_s=_LONG_S, decision_s=_LONG_S, compare_s=0.0, starts_s=0.01, what_if_s=0.05,
    preempt=PreemptTable(is_on=True, least_run_s=0.0),
)  # fmt: skip
_TURNS: Final = 5
TURN_S: Final = 400.0
"""Turns of the rehearsal, and seconds of the simulated cluster between two of them: most of its jobs end within."""

AT_S: Final = 1.7e9
"""When the rehearsal plays, in seconds since 1970."""


class StoppedError(Exception):
    """Somebody asked for the end before everything was compiled."""


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """How far it is: the step that goes on is number `done` + 1 of `total`."""

    done: int
    total: int
    step: str  # "" when all is done
    function: str = ""  # that is being compiled; "" if none is
    compiled: int = 0  # functions that were not in the cache
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """As in: compiling: 5 of 12 (decisions of adlro)."""
        return f"compiling: {self.done} of {self.total}" + (f" ({self.step})" if self.step else "")


@dataclass(frozen=True, slots=True)
class Warmed:
    """What came of it. `failed` has what went wrong, a line for each step that broke off."""

    steps: tuple[str, ...]
    compiled: tuple[str, ...]
    seconds: float
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and what it is called."""

    name: str
    do: Callable[[], object]


TellProgress = Callable[[WarmProgress], None]


def no_word(progress: WarmProgress) -> None:
    """Tell nobody."""


def warm_all(
    steps: Iterable[Step], tell: TellProgress = no_word, is_stopping: Callable[[], bool] = lambda: False
) -> Warmed:
    """Do all steps; `tell` hears of every step and of every function that is compiled. Raises StoppedError.

    A step that breaks off, because a user's policy does, does not keep the others from being done.
    """
    todo, began = tuple(steps), time.monotonic()
    done, compiled, failed = 0, list[str](), list[str]()

    def hear(function: str) -> None:
        """A function is about to be compiled; its end, if the name is empty."""
        if function:
            if is_stopping():
                raise StoppedError
            compiled.append(function)
        tell(WarmProgress(done, len(todo), todo[done].name, function, len(compiled), time.monotonic() - began))

    with hearing_compilations(hear):
        for done, step in enumerate(todo):  # noqa: B007  (hear tells it)
            if is_stopping():
                raise StoppedError
            hear("")
            try:
                step.do()
            except StoppedError:
                raise
            except Exception as error:
                if is_stopping():
                    raise StoppedError from error
                failed.append(f"{step.name}: {error if isinstance(error, AdlroError) else repr(error)}")
    seconds = time.monotonic() - began
    tell(WarmProgress(len(todo), len(todo), "", "", len(compiled), seconds))
    return Warmed(tuple(step.name for step in todo), tuple(compiled), seconds, tuple(failed))


@contextmanager
def hearing_compilations(hear: Callable[[str], None]) -> Iterator[None]:
    """Call `hear` with the name of each function that Python calls and that must be compiled, and with "" after it."""

    class Listener(numba.core.event.Listener):  # type: ignore[misc]
        depth = 0

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1:
                hear(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                hear("")

    listener = Listener()
    numba.core.event.register("numba:compile", listener)
    try:
        yield
    finally:
        numba.core.event.unregister("numba:compile", listener)


# ---- what a daemon needs -----------------------------------------------------------------------------------------


def warm_daemon(
    policies: Sequence[str], tell: TellProgress = no_word, is_stopping: Callable[[], bool] = lambda: False
) -> Warmed:
    """Compile everything that a daemon needs with these policies, the fallback the last of them."""
    return warm_all(daemon_steps(policies), tell, is_stopping)


def daemon_steps(policies: Sequence[str]) -> Iterator[Step]:
    """Everything that a daemon needs with these policies, the fallback the last of them."""
    for name in policies:
        find_policy(name)  # one that is not there is told at once
    rehearsal = Rehearsal(tuple(dict.fromkeys(policies)))
    yield from rehearsal.steps()


def comparison_steps(policies: Sequence[str]) -> Iterator[Step]:
    """Everything that `adlro compare` needs with these policies."""
    from adlro.experiment.compare import judge_few
    from adlro.experiment.scenario import load_scenario

    scenario = load_scenario("paper16", "paper")
    for name in policies:
        found = find_policy(name)
        yield Step(f"simulating {name}", lambda found=found: judge_few(scenario, found, 0))  # type: ignore[misc]


@final
@dataclass
class Rehearsal:
    """A short life of a daemon, with jobs of every kind: wide, partial, without GPUs, put back, ended, overdue."""

    policies: tuple[str, ...]
    clock: ByHand = field(default_factory=ByHand)

    def __post_init__(self) -> None:
        self.backend = Simulated(demo_cluster(), speed_of, clock=self.clock, start_s=AT_S, restart_s=30.0)
        self.fallback = self.policies[-1]
        self.lives: dict[str, Orchestrator] = {}

    def steps(self) -> Iterator[Step]:
        """What is played, in order. The last step closes what the first one opened."""
        yield Step("tables of the cluster", self.look)
        for name in dict.fromkeys([*CHEAP, *self.policies]):
            yield Step(f"predictions with {name}", lambda name=name: self.play(name))  # type: ignore[misc]
        for name in reversed(self.policies):
            yield Step(f"decisions of {name}", lambda name=name: self.live(name))  # type: ignore[misc]
        yield Step("what-if questions", self.ask)
        yield Step("learning from the past", self.look_back)

    def look(self) -> None:
        """Fill the cluster with jobs, and read it."""
        self.memory = open_store("sqlite::memory:")
        self.hand_in()
        self.scene = Scenes().scene(self.backend.read(), as_said)
        worn = Corrections(gpus={(self.backend.cluster.nodes[0].name, 0): 0.5})
        Scenes(places_gpus=True).scene(self.backend.read(), as_said, corrections=worn)  # the pace of each GPU is seen
        Scenes(weights=BY_PRIORITY).weights_of(self.scene.live)  # the policy and the fallback are compared by weight

    def hand_in(self) -> None:
        """Jobs of every kind."""
        job = Job("simulation", 300.0, user="warm", name="up", estimate=300.0)
        kinds = [
            job,
            replace(job, family="learning", gpus=2, work=400.0, estimate=None, limit_s=900.0),
            replace(job, family="data", gpus=0, cpus=4.0, memory_gb=8.0),
            replace(job, gpus=8, work=2400.0, estimate=2400.0, checkpoint=60.0),
            replace(job, share=WHOLE_GPU // 2, gpu_memory_gb=4.0),
            replace(job, models=frozenset(["t4"]), name="named"),
            replace(job, sizes="1,2,4", name="resized"),
        ]
        for each in kinds:
            self.backend.submit(Submission(replace(each, restartable=True)))

    def play(self, name: str) -> None:
        """Play the first picture forward."""
        play_forward(self.scene.view, usual_work(self.scene.view)[0], find_policy(name), _LONG_S)

    def live(self, name: str) -> None:
        """Turns in which jobs wait, start, end and are put back, a node goes and comes, and all is asked why."""
        settings = replace(PATIENT, guard=GuardTable(max_wait_s=TURN_S))
        life = self.lives[name] = Orchestrator(
            self.backend, self.memory, name, self.fallback, settings, clock=lambda: self.backend.now_s
        )
        node, model = self.backend.cluster.nodes[0].name, self.backend.cluster.nodes[0].gpus[0].model
        long = Job("simulation", 10 * TURN_S, models=frozenset([model]), user="warm", estimate=10 * TURN_S)
        for turn in range(_TURNS):
            self.hand_in()
            if turn == 0:
                self.backend.submit(Submission(replace(long, restartable=True)))
            if turn == 1:  # it waits for the long one: nodes are kept for it
                gpus = sum(
                    group.count for each in self.backend.cluster.nodes for group in each.gpus if group.model == model
                )
                self.backend.submit(Submission(replace(long, gpus=gpus)))
            life.tick()
            for job in life.state().snapshot.jobs:
                life.why(job.id)
            self.clock.move(TURN_S)
            if turn == 1:
                self.backend.fail_node(node)
            if turn == 2:
                self.backend.return_node(node)
                self.backend.wear(node, 0, 0.5)

    def ask(self) -> None:
        """What would be, with other jobs, nodes and policies."""
        life = self.lives[self.policies[0]]
        new = Submission(Job("simulation", 300.0, gpus=2, user="warm", estimate=300.0))
        last = self.backend.cluster.nodes[-1].name
        life.what_if(WhatIf(jobs=(new,)))
        life.what_if(WhatIf(add_nodes=(("t4", 4, 1),), remove_nodes=(last,), policy=self.fallback))

    def look_back(self) -> None:
        """A daemon that starts again, with what the one before wrote down."""
        for speeds in (KNOWN_SPEEDS, LEARNED_SPEEDS):
            settings = replace(PATIENT, speeds=speeds)
            Orchestrator(self.backend, self.memory, self.policies[0], self.fallback, settings).tick()
        self.memory.close()
