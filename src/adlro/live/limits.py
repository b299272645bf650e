"""What the guard allows: the tables [guard] and [preempt] of the daemon's config, and the times of a turn."""

from dataclasses import dataclass
from typing import Final

from pydantic import Field

from adlro.core.toml import Schema


class GuardTable(Schema):
    """[guard]: when the fallback decides instead."""

    max_wait_s: float = Field(
        default=604_800.0,
        ge=0,
        description="Bound on the wait of a job, in seconds; nodes are reserved for it in time. 0: no bound.",
    )
    stale_s: float = Field(
        default=120.0, gt=0, description="A snapshot is stale if its time has not advanced for this many seconds."
    )
    guarded_s: float = Field(
        default=600.0, ge=0, description="Seconds for which the fallback decides once the guard is active."
    )
    window_s: float = Field(
        default=21_600.0, gt=0, description="Seconds over which the policy is compared with the fallback."
    )
    worse_by: float = Field(default=0.1, ge=0, description="How much worse than the fallback it may be, as a fraction.")


class PreemptTable(Schema):
    """[preempt]: which running jobs may be stopped, and how often (docs/preemption.md)."""

    is_on: bool = Field(
        default=False,
        description="Whether jobs that are marked as restartable may be stopped while they run. Others never are.",
    )
    least_run_s: float = Field(
        default=300.0, ge=0, description="A job that has started is not stopped before it ran this many seconds."
    )
    per_job: int = Field(default=10, ge=0, le=1000, description="How often one job may be stopped in its life.")
    per_user_hour: int = Field(default=20, ge=0, description="How many jobs of one user may be stopped in an hour.")
    per_hour: int = Field(
        default=100, ge=0, description="How many jobs may be stopped in an hour, on the whole cluster."
    )
    restart_s: float = Field(
        default=30.0,
        ge=0,
        description="Seconds that a restart costs a job. Policies add the time from a stop to its end, as measured.",
    )
    tell: str = Field(
        default="",
        description='A program that is run for each job that is stopped, with the stop in JSON on its input; "": none.',
    )


_DEFAULT: Final = GuardTable()
_NO_STOPS: Final = PreemptTable()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the guard allows in a turn. Seconds."""

    decide_s: float = 0.3
    """Processor time for the decisions of one turn; the next turn continues. By the clock it may take LONGEST times as
    long: with a limit by the clock, a busy machine would decide less and less."""
    decision_s: float = 0.5
    """Time that one decision may take; a policy that is slower is replaced by the fallback."""
    guard: GuardTable = _DEFAULT
    preempt: PreemptTable = _NO_STOPS
