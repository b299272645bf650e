"""The defaults and conditions of an experiment: what the commands and `import adlro` share.

This module imports hardly anything, so that commands which only print their help start at once.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from adlro.core.errors import UsageError

DEFAULT_CLUSTER: Final = "paper16"
DEFAULT_JOBS: Final = "paper"
DEFAULT_POLICIES: Final = (
    "fcfs", "static-affinity", "fcfs-easy", "sjf", "sjf-picky", "srtf", "adlro", "adlro-lookahead",
)  # fmt: skip
DEFAULT_POLICY: Final = "sjf-picky"
DEFAULT_SEEDS: Final = 10
EVERY_POLICY: Final = "all"
JOB_WEIGHTS: Final = ("equal", "priority")
"""What jobs can count by."""


def _option(default: Any, help: str, metavar: str | None = None, low: int | None = None) -> Any:
    """A condition with its help text, the placeholder of its value and its least value."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "min": low})


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a run besides its cluster, jobs and policy.

    Each field is a flag of the commands and a keyword of `adlro.compare` and `adlro.simulate`.
    """

    load: float | None = _option(
        None, "Offered load; 1.0 saturates the cluster. Default: as the workload says.", metavar="X"
    )
    estimates: str | None = _option(
        None,
        "What policies know about runtimes: oracle (the truth), user (the requested time limit), noisy:SIGMA "
        "(the truth with a log-normal error), or predicted (from the jobs that have ended so far in the run). "
        "Default: as the workload says.",
        metavar="SOURCE",
    )
    restart_s: float = _option(30.0, "Restart cost: seconds that a job loses each time it starts again.", metavar="S")
    kill_at_limit: bool = _option(False, "End jobs at their walltime limit.")
    queue_window: int = _option(0, "Policies see only the first N jobs of the queue; 0: all.", metavar="N", low=0)
    mtbf_h: float | None = _option(
        None, "Mean hours between two failures of a node. Default: nodes never fail.", metavar="H"
    )
    repair_h: float = _option(4.0, "Mean hours until a failed node is back.", metavar="H")
    wear_per_day: float = _option(0.0, "Fraction of its speed that a GPU loses per day, on average.", metavar="X")
    weights: str = _option(
        "equal",
        "What a job counts: equal (all the same), or priority (in proportion to its priority, for the policies that "
        "know weights: docs/policies.md).",
        metavar="WHAT",
    )
    disturbances: str | None = _option(
        None, "A list of node failures and speed changes: docs/workloads.md.", metavar="FILE"
    )
    thermal: bool = _option(False, "GPUs become hot and lower their clocks: docs/semantics.md#heat.")
    room_c: float = _option(25.0, "With --thermal: temperature of the air that enters the nodes.", metavar="C")
    slow_gpus: float = _option(
        0.0, "Fraction of the GPUs that are slow from the start, chosen by the seed.", metavar="X"
    )
    slow_speed: float = _option(0.6, "With --slow-gpus: speed of these GPUs, relative to their model.", metavar="X")
    measured_pace: bool = _option(
        False,
        "Policies see how fast each GPU was when a job last ran on it, and jobs get the fastest free GPUs of a node: "
        "docs/semantics.md#measured-pace.",
    )
    speeds: str = _option(
        "known",
        "What policies know about speeds: known (the table), prior (the datasheet, by a family guessed from the name), "
        "agnostic (all GPUs alike), or learned (the prior, corrected by the jobs that ran): docs/speeds.md.",
        metavar="KNOWLEDGE",
    )
    speed_table: str | None = _option(
        None,
        "A speed table of your own in CSV, which is looked up before those that ship; 'adlro speeds --csv' prints such "
        "tables: docs/speeds.md.",
        metavar="FILE",
    )


UNCHANGED: Final = Conditions()
"""The default conditions."""


def check_job_weights(weights: str) -> None:
    """Raise UsageError unless jobs can count by this."""
    if weights not in JOB_WEIGHTS:
        raise UsageError(f"weights is {weights!r}; expected {' or '.join(JOB_WEIGHTS)}.")
