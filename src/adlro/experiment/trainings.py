"""Trainings as runs of a place: each comes back as its best network and a record of how it went."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adlro.experiment.places import Tell


@dataclass(frozen=True, slots=True)
class Trainings:
    """Trainings by their number; each group is one."""

    arguments: tuple[dict[str, Any], ...]  # of `adlro.train`
    threads: int

    def warm_up(self, tell: Tell) -> None:
        """Nothing: a training compiles what it needs before its clock runs."""

    def prepare(self, number: int) -> dict[str, Any]:
        """The arguments of a training."""
        return self.arguments[number]

    def run(self, prepared: dict[str, Any], item: int) -> tuple[bytes, dict[str, Any]]:
        """Train; the best network as a file, and what came of it."""
        from adlro.experiment.training import train

        with TemporaryDirectory() as folder:
            found = train(Path(folder) / "training", threads=self.threads, **prepared)
            return found.best.read_bytes(), {
                "best_jct_against_rule": found.best_jct_against_rule,
                "trained_steps": found.steps,
                "trained_episodes": found.episodes,
                "trained_s": found.seconds,
            }
