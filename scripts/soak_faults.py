"""What happens to the cluster in a soak: kills, crashes, drains, reservations and limits, by a schedule with a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from scripts.soak_jobs import MACHINES

KINDS: Final = {
    "daemon": (3, 0.5, 4.0),
    "slurmctld": (3, 0.5, 6.0),
    "slurmrestd": (2, 3.0, 12.0),
    "slurmrestd hangs": (1, 6.0, 12.0),
    "node": (2, 3.0, 20.0),
    "slurmd": (1, 1.0, 4.0),
    "drain": (2, 5.0, 20.0),
    "reservation": (2, 5.0, 20.0),
    "limit": (3, 0.0, 0.0),
}
"""What may happen, how often beside the others, and for how many seconds at least and at most."""
OF_ADLRO: Final = ("daemon", "slurmrestd", "slurmrestd hangs")
"""What has no meaning in a run with Slurm alone."""
FIRST_S: Final = 15.0
LAST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something happens, and is over after a while. `what` is the node it happens to, if it is one."""

    at_s: float
    kind: str
    what: str
    for_s: float


def faults(seconds: float, seed: int, kinds: Sequence[str], every_s: float) -> list[Fault]:
    """The faults of so long a soak, in order; each kind once before any comes again by chance."""
    random = Random(seed + 1)
    weights = {kind: KINDS[kind][0] for kind in kinds}
    if not weights:
        return []
    found: list[Fault] = []
    drawn = [*weights]
    random.shuffle(drawn)
    at = FIRST_S
    while at < seconds - LAST_S:
        drawn = drawn or random.choices(list(weights), list(weights.values()), k=8)
        kind = drawn.pop()
        node = random.choice([machine.name for machine in MACHINES if machine.gpus])
        found.append(Fault(at, kind, node, round(random.uniform(*KINDS[kind][1:]), 1)))
        at += random.uniform(0.5, 1.5) * every_s
    return found
