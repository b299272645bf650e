"""The jobs of a soak: every shape in which users ask for GPUs, with what each needs of a node, written by hand.

What a job needs is said here a second time, apart from ADLRO's own reading of Slurm, so that the one can be held
against the other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from tests.slurm.lab import Machine

MACHINES: Final = (
    Machine("volta0", "v100", "nvidia_gpu_env", "nvidia,volta"),
    Machine("volta1", "v100", "nvidia_gpu_env", "nvidia,volta"),
    Machine("ampere0", "a100", "nvidia_gpu_env", "nvidia,ampere", gpus=8, cpus=32, memory_mib=128_000, sockets=2),
    Machine("turing0", "t4", "nvidia_gpu_env", "nvidia,turing", gpus=2),
    Machine("radeon0", "mi50", "amd_gpu_env", "amd,radeon"),
    Machine("plain0", "", "", "cpu", gpus=0),
)
GPUS: Final = sum(machine.gpus for machine in MACHINES)
PARTITION: Final = "gpu"
OTHER: Final = "other"
"""A second partition of the same nodes, which is left to Slurm."""
LIMITED: Final = "small"
"""The QOS with a limit on GPUs."""
LIMITS: Final = (2, 6)
"""The limit of that QOS: the lower one, and the one that all its jobs fit under."""
MEMORY_EACH_MIB: Final = 1000
"""DefMemPerCPU of the lab."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a job takes of the cluster. `each` GPUs on each of `nodes` nodes; or `in_all` GPUs wherever they are."""

    each: int = 0
    nodes: int = 1
    in_all: int = 0
    cpus: int = 1  # on each node
    memory_mib: int = MEMORY_EACH_MIB  # on each node
    whole: bool = False  # nobody else on its nodes
    kinds: frozenset[str] = frozenset()  # the GPU types it may have; none: all
    features: frozenset[str] = frozenset()  # one of which its nodes must have; none: any
    sockets: int = 1

    @property
    def gpus(self) -> int:
        """The GPUs it takes."""
        return self.in_all or self.each * self.nodes


@dataclass(frozen=True, slots=True)
class Free:
    """What is free on a node: the GPUs by their index, CPUs, memory, and whether nobody is on it."""

    gpus: frozenset[int]
    cpus: int
    memory_mib: int
    is_empty: bool

    def __and__(self, other: "Free") -> "Free":
        """What was free at both moments."""
        return Free(
            self.gpus & other.gpus,
            min(self.cpus, other.cpus),
            min(self.memory_mib, other.memory_mib),
            self.is_empty and other.is_empty,
        )


BY_NAME: Final = {machine.name: machine for machine in MACHINES}


def fits(need: Need, free: Mapping[str, Free]) -> bool:
    """Whether a job could start in this room for certain. In doubt it is no: this finds GPUs that idle.

    Slurm would split a job over GPUs of several models. ADLRO never does, so all nodes of a job are of one kind here.
    """
    kinds = {BY_NAME[name].kind for name in free}
    return any(_fits_on(need, {name: room for name, room in free.items() if BY_NAME[name].kind == k}) for k in kinds)


def _fits_on(need: Need, free: Mapping[str, Free]) -> bool:
    """The same for nodes of one kind."""
    good = {name: room for name, room in free.items() if _suits(need, BY_NAME[name], room)}
    if need.in_all:
        if any(len(room.gpus) >= need.in_all for room in good.values()) and need.nodes == 1:
            return True
        empty = {name: room for name, room in good.items() if room.is_empty and room.gpus}
        return len(empty) >= need.nodes and sum(len(room.gpus) for room in empty.values()) >= need.in_all
    return sum(len(room.gpus) >= need.each for room in good.values()) >= need.nodes


def _suits(need: Need, machine: Machine, room: Free) -> bool:
    """Whether a node could be one of a job's nodes, apart from its GPUs."""
    return (
        (not need.kinds or machine.kind in need.kinds)
        and (not need.features or bool(need.features & set(machine.features.split(","))))
        and machine.sockets >= need.sockets
        and room.cpus >= need.cpus
        and room.memory_mib >= need.memory_mib
        and (room.is_empty or not need.whole)
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """A job that will be handed in: when, by whom, how, and what happens to it afterwards."""

    name: str
    shape: str
    at_s: float
    user: str
    options: tuple[str, ...]
    need: Need
    seconds: float
    partition: str = PARTITION
    qos: str = ""
    tasks: int = 1  # of an array
    at_once: int = 0  # how many of them may run at a time; 0: all
    is_held: bool = False  # by its user
    begin_s: float = 0.0  # not before so long after it was handed in
    after: str = ""  # the name of the job that must have ended well
    is_impossible: bool = False
    may_requeue: bool = True
    then: tuple[tuple[str, float], ...] = ()  # what is done to it, and how long after it was handed in


Make = Callable[[Random, Wish], Wish]


def _gres(gpus: int) -> Make:
    return lambda random, wish: replace(wish, options=(f"--gres=gpu:{gpus}",), need=Need(each=gpus))


def _per_job(gpus: int) -> Make:
    return lambda random, wish: replace(wish, options=(f"--gpus={gpus}",), need=Need(in_all=gpus))


def _typed(random: Random, wish: Wish) -> Wish:
    kind = random.choice(["v100", "a100", "t4", "mi50"])
    return replace(wish, options=(f"--gres=gpu:{kind}:1",), need=Need(each=1, kinds=frozenset([kind])))


def _constraint(random: Random, wish: Wish) -> Wish:
    word = random.choice(["volta", "amd", "volta|ampere", "nvidia"])
    options = ("--gres=gpu:1", f"--constraint={word}")
    return replace(wish, options=options, need=Need(each=1, features=frozenset(word.split("|"))))


def _with_memory(random: Random, wish: Wish) -> Wish:
    options = ("--gres=gpu:1", "--cpus-per-task=4", "--mem=20G")
    return replace(wish, options=options, need=Need(each=1, cpus=4, memory_mib=20 * 1024))


def _impossible(random: Random, wish: Wish) -> Wish:
    options = random.choice(
        [("--gres=gpu:9",), ("--mem=999G",), ("--gres=gpu:v100:5",), ("--gpus=999",), ("--cpus-per-task=99",),
         ("--gres=gpu:1", "--constraint=nosuch")]
    )  # fmt: skip
    return replace(wish, options=options, is_impossible=True)


def _array(random: Random, wish: Wish) -> Wish:
    tasks = random.choice([3, 4, 6])
    options = ("--gres=gpu:1", f"--array=0-{tasks - 1}%2")
    return replace(wish, options=options, need=Need(each=1), tasks=tasks, at_once=2)


def _limited(random: Random, wish: Wish) -> Wish:
    gpus = random.choice([1, 1, 2, 4])
    return replace(wish, options=(f"--gres=gpu:{gpus}", f"--qos={LIMITED}"), need=Need(each=gpus), qos=LIMITED)


def _begin(random: Random, wish: Wish) -> Wish:
    later = random.choice([5, 15])
    return replace(wish, options=("--gres=gpu:1", f"--begin=now+{later}"), need=Need(each=1), begin_s=float(later))


def _then(*what: tuple[str, float, float]) -> Make:
    """A job of one GPU to which something happens after a while."""

    def make(random: Random, wish: Wish) -> Wish:
        then = tuple((verb, random.uniform(low, high)) for verb, low, high in what)
        return replace(wish, options=("--gres=gpu:1",), need=Need(each=1), then=then)

    return make


def _moved(random: Random, wish: Wish) -> Wish:
    """Moved to the other partition, mostly while it waits."""
    return replace(wish, options=("--gres=gpu:2",), need=Need(each=2), then=(("move", random.choice([0.0, 0.5, 3.0])),))


def _held(random: Random, wish: Wish) -> Wish:
    then = (("release", random.uniform(10, 25)),)
    return replace(wish, options=("--gres=gpu:1", "--hold"), need=Need(each=1), is_held=True, then=then)


def _plain(*options: str, **need: int | bool | frozenset[str]) -> Make:
    return lambda random, wish: replace(wish, options=options, need=Need(**need))  # type: ignore[arg-type]


def _no_requeue(random: Random, wish: Wish) -> Wish:
    return replace(wish, options=("--gres=gpu:1", "--no-requeue"), need=Need(each=1), may_requeue=False)


def _other(random: Random, wish: Wish) -> Wish:
    return replace(wish, options=("--gres=gpu:1",), need=Need(each=1), partition=OTHER)


SHAPES: Final[Mapping[str, tuple[int, Make]]] = {
    "gres 1": (14, _gres(1)),
    "gres 2": (7, _gres(2)),
    "gres 4": (4, _gres(4)),
    "gres 8": (1, _gres(8)),
    "gres of a type": (5, _typed),
    "gpus 1": (4, _per_job(1)),
    "gpus 2": (2, _per_job(2)),
    "gpus 6": (2, _per_job(6)),
    "gpus-per-node 2": (3, _plain("--gpus-per-node=2", each=2)),
    "gpus-per-task": (3, _plain("-n", "2", "--gpus-per-task=1", in_all=2, cpus=2, memory_mib=2 * MEMORY_EACH_MIB)),
    "gpus-per-socket": (
        2,
        _plain(
            "--gpus-per-socket=1", "--sockets-per-node=2", "-n", "2", "--ntasks-per-socket=1", each=2, sockets=2, cpus=2
        ),
    ),
    "2 nodes with GPUs": (2, _plain("-N", "2", "--gres=gpu:1", each=1, nodes=2)),
    "2 nodes without": (2, _plain("-N", "2", nodes=2)),
    "2 whole nodes": (1, _plain("-N", "2", "--gres=gpu:v100:4", each=4, nodes=2, kinds=frozenset(["v100"]))),
    "exclusive": (2, _plain("--exclusive", "--gres=gpu:1", each=1, whole=True)),
    "CPU only": (5, _plain("--cpus-per-task=2", cpus=2, memory_mib=2 * MEMORY_EACH_MIB)),
    "CPUs and memory": (3, _with_memory),
    "constraint": (4, _constraint),
    "array": (2, _array),
    "begin": (3, _begin),
    "dependency": (4, _plain("--gres=gpu:1", each=1)),
    "no-requeue": (3, _no_requeue),
    "held by its user": (4, _held),
    "over its QOS": (6, _limited),
    "impossible": (4, _impossible),
    "moved": (3, _moved),
    "cancelled": (4, _then(("cancel", 0.0, 12.0))),
    "put back": (2, _then(("requeue", 3.0, 10.0))),
    "other partition": (3, _other),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the jobs of a soak are made from."""

    jobs: int
    seconds: float
    seed: int
    users: tuple[str, ...]
    limited_user: str
    load: float = 1.0
    shapes: Mapping[str, tuple[int, Make]] = field(default_factory=lambda: SHAPES)


def wishes(plan: Plan) -> Iterator[Wish]:
    """The jobs of a plan, in the order in which they come; the same for the same seed."""
    random = Random(plan.seed)
    times = sorted(random.uniform(0, plan.seconds) for _ in range(plan.jobs))
    weights = {name: weight for name, (weight, _) in plan.shapes.items()}
    drawn = list(plan.shapes)  # each at least once, if there are enough jobs
    random.shuffle(drawn)
    # A job takes about two GPUs; with a load of 1 the GPUs are busy for three quarters of the time.
    usual = min(max(plan.load * GPUS * plan.seconds / plan.jobs / 2.0, 2.0), 60.0)
    before: Wish | None = None
    for number, at in enumerate(times):
        shape = drawn.pop() if drawn else random.choices(list(weights), list(weights.values()))[0]
        seconds = min(max(random.lognormvariate(0.0, 0.6) * usual * 0.85, 1.0), 4 * usual)
        base = Wish(f"s{number:05d}", shape, at, random.choice(plan.users), (), Need(), round(seconds, 1))
        wish = plan.shapes[shape][1](random, base)
        if wish.qos:
            wish = replace(wish, user=plan.limited_user)
        if shape == "dependency" and before is not None:
            wish = replace(wish, after=before.name)
        if wish.tasks == 1 and not wish.is_impossible and not wish.then:
            before = wish  # a chain grows if the next one of this kind comes soon
        yield wish
