"""What the guard allows: the table [guard] of the daemon's config, and the times of a turn."""

from dataclasses import dataclass
from typing import Final

from pydantic import Field

from adlro.core.toml import Schema


class GuardTable(Schema):
    """[guard]: when the fallback decides instead."""

    max_wait_s: float = Field(
        default=604_800.0, ge=0, description="No job waits longer: from then on nodes are kept for it. 0 is no bound."
    )
    stale_s: float = Field(
        default=120.0, gt=0, description="A picture of the cluster whose time has not moved for so long is stale."
    )
    guarded_s: float = Field(
        default=600.0, ge=0, description="How long the fallback decides once the guard stepped in."
    )
    window_s: float = Field(
        default=21_600.0, gt=0, description="The time over which the policy is held against the fallback."
    )
    worse_by: float = Field(default=0.1, ge=0, description="By how much it may be predicted to be worse, as a share.")


DEFAULT: Final = GuardTable()


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
    guard: GuardTable = DEFAULT
