"""What the guard allows: the table [guard] of the daemon's config, and the times of a turn."""

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


_DEFAULT: Final = GuardTable()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the guard allows in a turn. Seconds."""

    decide_s: float = 0.3
    """Processor time for the decisions of one turn; the next turn continues. By the clock it may take LONGEST times as
    long: with a limit by the clock, a busy machine would decide less and less."""
    decision_s: float = 0.5
    """Time that one decision may take; a policy that is slower is replaced by the fallback."""
    least_run_s: float = 300.0
    """A job that has started is not stopped before it ran so long."""
    guard: GuardTable = _DEFAULT
