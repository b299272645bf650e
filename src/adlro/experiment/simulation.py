"""One run with its measures: what `adlro.simulate` gives."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adlro.core.errors import UsageError
from adlro.core.run import Run
from adlro.experiment.scenario import Scenario
from adlro.measure.bounds import Bounds, lower_bounds
from adlro.measure.events import log_lines, write_events
from adlro.measure.metrics import Metrics

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """One policy on one seed: what happened, and its measures. Its text is what `adlro simulate` prints."""

    scenario: Scenario
    run: Run
    metrics: Metrics
    command: str = ""  # what made it

    @property
    def bounds(self) -> Bounds:
        """Lower bounds on the mean JCT: no policy can do better on these jobs."""
        return lower_bounds(self.run)

    @property
    def refusals(self) -> dict[int, str]:
        """Why jobs were refused, by the number of the job."""
        return self.run.refusals

    def events(self) -> Iterator[dict[str, Any]]:
        """What happened, event by event in time order; the first line says what run it is (docs/metrics.md)."""
        return log_lines(self.run)

    def write_events(self, file: str | Path) -> Path:
        """Write the events as JSON lines."""
        path = Path(file)
        write_events(self.run, path)
        return path

    def as_dict(self, events: str | None = None) -> dict[str, Any]:
        """All measures as plain values: what `adlro simulate --json` prints (docs/json.md)."""
        from adlro.experiment.results import simulation_as_dict

        return simulation_as_dict(self.scenario, self.run, self.metrics, self.bounds, events, self.command)

    def to_pandas(self, of: Literal["jobs", "events"] = "jobs") -> "DataFrame":
        """A DataFrame with a row for each job, or for each event."""
        from adlro.experiment.frames import of_events, of_jobs

        if of not in ("jobs", "events"):
            raise UsageError(f"of is {of!r}; expected 'jobs' or 'events'.")
        return of_jobs(self.run) if of == "jobs" else of_events(self.run)

    def __repr__(self) -> str:
        from adlro.experiment.tables import as_text, run_lines

        return as_text(run_lines(self.run, self.workload, self.metrics, self.bounds))

    @property
    def workload(self) -> str:
        """The name of the jobs, and which window of them it is."""
        scenario = self.scenario
        part = f", window {self.run.seed} of {len(scenario.windows)}" if scenario.windows else ""
        return f"{scenario.workload.name}{part}"
