"""Learned speeds for people and for programs."""

import math
from collections import Counter
from dataclasses import asdict
from urllib.parse import quote

from pydantic import TypeAdapter
from rich.markup import escape

from adlro.catalogue.speeds import speed_table
from adlro.cli.asking import DaemonClient, Where, printable
from adlro.cli.output import print_json, show_list, stdout
from adlro.core.learned import JobSpeeds, LearnedSpeed, LearnedTable


def show_learned(
    cluster: str, history: str | None, ran_on: str | None, job: str | None, workload: str, policy: str, seed: int,
    jobs: int | None, as_json: bool, as_csv: bool = False,
) -> None:  # fmt: skip
    """Print what a history, or else one run with learned speeds, says about speeds."""
    # They import the compiler, which questions to a daemon do without.
    from adlro.core.toml import read_text
    from adlro.experiment.learned_speeds import learn_for_job, learn_history, learn_run
    from adlro.ingest.traces.tabulate import TraceOptions
    from adlro.predict.evaluate import read_job
    from adlro.predict.job_parts import JobParts

    if history is not None and job is not None:
        asked = read_job(read_text(job, "job file"), job)
        parts = JobParts(
            asked.user, asked.name, asked.gpus, asked.cpus, asked.memory_gb, asked.gpu_memory_gb,
            math.inf if asked.limit_s is None else asked.limit_s, asked.submit_s or 0.0,
        )  # fmt: skip
        speeds = learn_for_job(history, cluster, TraceOptions(ran_on=ran_on), parts)
        if as_json:
            print_json(asdict(speeds))
        else:
            _print_job(speeds)
        return
    if history is not None:
        found = learn_history(history, cluster, TraceOptions(ran_on=ran_on))
    else:
        found = learn_run(cluster, workload, policy, seed, jobs)
    _show_table(found, as_json, as_csv)


def show_live(where: Where, job: str | None, as_json: bool, as_csv: bool) -> None:
    """Print what a daemon has learnt about speeds: about one job, or the families that it found."""
    with DaemonClient(where) as daemon:
        path = f"/jobs/{quote(job, safe='')}/speeds" if job is not None else "/speeds"
        reply = daemon.get(path)
    if job is not None and as_json:
        print(reply.text)
    elif job is not None:
        _print_job(TypeAdapter(JobSpeeds).validate_python(reply.value))
    else:
        _show_table(TypeAdapter(LearnedTable).validate_python(reply.value), as_json, as_csv)


def _show_table(found: LearnedTable, as_json: bool, as_csv: bool) -> None:
    if as_csv:
        print(csv_of(found), end="")
    elif as_json:
        print_json(asdict(found))
    else:
        print_learned(found)


def csv_of(found: LearnedTable) -> str:
    """The families found as a speed table, which `speed_table` of a daemon's config reads."""
    rows: list[tuple[str, str, float]] = []
    names: Counter[str] = Counter()
    for family in found.families:
        name = "found/" + ("-".join(family.words) or "jobs")
        names[name] += 1
        name += f"-{names[name]}" if names[name] > 1 else ""
        rows += [(name, model, speed.value) for model, speed in family.speeds.items()]
    comment = f"Speeds of one GPU against one {found.reference}, learnt from {found.jobs:,} jobs of {found.source}."
    return speed_table(rows, comment)


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
        f"; {found.skipped:,} jobs were left out: shorter than 10 s, or the history does not say on which GPUs "
        "they ran (--ran-on says it)"
        if found.skipped
        else ""
    )
    stdout().print(
        f"[dim]Against one {found.reference} with the same jobs; in brackets eight in ten cases, then the jobs of the "
        f"family that ran there. From {found.jobs:,} jobs of {found.source}{skipped}.[/dim]"
    )


def _print_job(found: JobSpeeds) -> None:
    """What is believed of one job, and the past jobs behind it."""
    show_list(
        (("GPU", "name"), ("speed", "right"), ("eight in ten cases", "right"), ("past jobs there", "right")),
        [
            (model, f"{each.value:.2f}", f"{each.low:.2f}–{each.high:.2f}", str(each.jobs))
            for model, each in found.speeds.items()
        ],
    )
    stdout().print(f"[dim]Against one {found.reference} with the same job. It rests most on:[/dim]")
    show_list(
        (("user", "name"), ("name", "left"), ("ran on", "left"), ("weight", "right"), ("in common", "text")),
        [
            (_plain(each.user), _plain(each.name), each.model, f"{each.share:.0%}", _plain(", ".join(each.parts)))
            for each in found.because
        ],
    )


def _plain(text: str) -> str:
    """A user's words, so that they can neither move the cursor nor colour the screen."""
    return escape(printable(text))


def _cell(speed: LearnedSpeed) -> str:
    """A speed with its interval and what it rests on."""
    return f"{speed.value:.2f} ({speed.low:.2f}–{speed.high:.2f}) {speed.jobs}"
