"""Learned speeds for people and for programs."""

from dataclasses import asdict

from adlro.cli.output import print_json, show_list, stdout
from adlro.experiment.learned_speeds import LearnedSpeed, LearnedTable, learn_history, learn_run
from adlro.ingest.traces.tabulate import TraceOptions


def show_learned(
    cluster: str, history: str | None, ran_on: str | None, workload: str, policy: str, seed: int, jobs: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Print what a history, or else one run with learned speeds, says about speeds."""
    if history is not None:
        found = learn_history(history, cluster, TraceOptions(ran_on=ran_on))
    else:
        found = learn_run(cluster, workload, policy, seed, jobs)
    if as_json:
        print_json(asdict(found))
    else:
        print_learned(found)


def print_learned(found: LearnedTable) -> None:
    """The table: one row for each family that was found."""
    models = list(found.families[0].speeds) if found.families else []
    show_list(
        (("family found", "name"), ("users", "right"), ("jobs", "right"), *((model, "right") for model in models)),
        [
            (
                " ".join(each.words) or "(no words)",
                str(len(each.users)),
                str(each.jobs),
                *map(_cell, each.speeds.values()),
            )
            for each in found.families
        ],
    )
    skipped = (
        f"; {found.skipped:,} jobs were left out: too short, or nobody says where they ran" if found.skipped else ""
    )
    stdout().print(
        f"[dim]Against one {found.reference} with the same jobs; in brackets eight in ten cases, then the jobs of the "
        f"family that ran there. From {found.jobs:,} jobs of {found.source}{skipped}.[/dim]"
    )


def _cell(speed: LearnedSpeed) -> str:
    """A speed with its interval and what it rests on."""
    return f"{speed.value:.2f} ({speed.low:.2f}–{speed.high:.2f}) {speed.jobs}"
