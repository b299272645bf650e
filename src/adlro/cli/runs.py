"""The commands that run something: compare, simulate, sweep, bench."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adlro import __version__
from adlro.cli.lists import Json
from adlro.cli.options import RAY, Ray, ReadingOptions, Windows, spread_into_flags
from adlro.cli.output import print_json, progress, progress_of_runs, say, say_if_it_compiles
from adlro.cli.report import Reporting, write_report_and_tell
from adlro.core.errors import UsageError
from adlro.experiment.conditions import (
    DEFAULT_CLUSTER,
    DEFAULT_JOBS,
    DEFAULT_POLICIES,
    DEFAULT_POLICY,
    JOB_WEIGHTS,
    Conditions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adlro.core.policy import Policy
    from adlro.experiment.scenario import Scenario

ClusterName = Annotated[
    str, typer.Option("--cluster", "-c", help="A cluster that ships (adlro clusters), or a TOML file.", metavar="NAME")
]
WorkloadName = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="A workload that ships (adlro workloads), a TOML file, or a trace (adlro trace).",
        metavar="NAME",
    ),
]
JobCount = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        max=100_000_000,
        help="Number of jobs (with --windows: in each window). Default: as the workload says.",
    ),
]

ThreadCount = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, max=1024, help="Runs in parallel. Default: one per core."),
]

DEFAULT_POLICY_NAMES: Final = ",".join(DEFAULT_POLICIES)
PolicyNames = Annotated[
    str,
    typer.Option(
        "--policies",
        "-p",
        metavar="NAMES",
        show_default="fcfs, static-affinity, sjf, adlro and others",
        help="Names separated by commas (adlro policies), 'all', path.py:function, or FILE.safetensors of adlro train. "
        "The others are compared with the first.",
    ),
]
BaselineName = Annotated[
    str | None,
    typer.Option("--baseline", metavar="NAME", help="The policy to compare with. Default: the first policy."),
]
SeedCount = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        max=100_000,
        help="Number of seeds. Default: 10; for a trace 1, because its jobs are the same for every seed.",
    ),
]
FirstSeed = Annotated[int | None, typer.Option("--first-seed", metavar="N", min=0, help="The first seed. Default: 0.")]
HyperScoreFile = Annotated[
    str | None,
    typer.Option(
        "--hyperscore",
        metavar="FILE",
        help="Show the paper's HyperScore, with the weights in a TOML file, or 'equal': docs/statistics.md.",
    ),
]
WithRegression = Annotated[
    bool,
    typer.Option("--regression", help="Show the regression of completion time on utilisation, queue and load."),
]
WithRegret = Annotated[
    bool,
    typer.Option(
        "--regret",
        help="Also run the policies with known speeds, and show what not knowing them costs; with --speeds.",
    ),
]


@spread_into_flags
def compare(
    cluster: ClusterName = DEFAULT_CLUSTER,
    workload: WorkloadName = DEFAULT_JOBS,
    policies: PolicyNames = DEFAULT_POLICY_NAMES,
    baseline: BaselineName = None,
    seeds: SeedCount = None,
    first_seed: FirstSeed = None,
    jobs: JobCount = None,
    threads: ThreadCount = None,
    ray: Ray = None,
    hyperscore: HyperScoreFile = None,
    regression: WithRegression = False,
    regret: WithRegret = False,
    as_json: Json = False,
    windows: Windows = None,
    *,
    reporting: Reporting,
    reading: ReadingOptions,
    conditions: Conditions,
) -> None:
    """Compare policies on the same jobs, over several seeds.

    Means over the seeds, with 95 % intervals, and which differences are more than chance: docs/statistics.md.
    On paper16 with the workload paper, without other conditions, it also prints
    the paper's Table 1.
    """
    from adlro.cli.tables import show_comparison, show_regressions, show_scores
    from adlro.experiment.policies import find_policies
    from adlro.experiment.public import compare as compare_policies
    from adlro.measure.hyperscore import scores
    from adlro.measure.statistics import regressions

    chosen = find_policies(policies)
    reporting.check([policy.name for policy in chosen])
    say_ignored(conditions, chosen)
    with progress_of_runs() as tell:
        found = compare_policies(
            cluster, reading.jobs(workload), chosen, seeds=seeds, first_seed=first_seed, windows=windows,
            job_count=jobs, baseline=baseline, hyperscore=hyperscore, regression=regression, regret=regret,
            threads=threads, ray=ray, keep_times=reporting.report is not None, progress=tell, **asdict(conditions),
        )  # fmt: skip
    comparison = replace(found, command=_command())
    say_warnings(found.scenario)
    if as_json or reporting.report:
        result = comparison.as_dict()
        if reporting.report:
            write_report_and_tell(reporting, comparison, result)
        if as_json:
            print_json(result)
            return
    show_comparison(comparison)
    if hyperscore is not None:
        show_scores(scores(comparison.metrics, comparison.weights), comparison.weights)
    if regression:
        show_regressions(regressions(comparison.metrics, comparison.load))


@spread_into_flags
def simulate(
    cluster: ClusterName = DEFAULT_CLUSTER,
    workload: WorkloadName = DEFAULT_JOBS,
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="A policy (adlro policies), or path.py:function.")
    ] = DEFAULT_POLICY,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Random seed of the jobs; with --windows the number of the window, from 0.",
        ),
    ] = 0,
    jobs: JobCount = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="FILE", help="Write the event log, as JSON lines: docs/metrics.md."),
    ] = None,
    as_json: Json = False,
    windows: Windows = None,
    *,
    reading: ReadingOptions,
    conditions: Conditions,
) -> None:
    """Run one policy on one seed, and print every measure and why jobs were refused; --events writes the event log."""
    from adlro.cli.tables import show_run
    from adlro.experiment.policies import policy as find_policy
    from adlro.experiment.public import simulate as simulate_policy

    if events is not None and (events.is_dir() or not events.absolute().parent.is_dir()):
        raise UsageError(f"--events: cannot write '{events}'; expected a file in a folder that exists.")
    say_ignored(conditions, [find_policy(policy)])
    with progress_of_runs() as tell:
        found = simulate_policy(
            cluster, reading.jobs(workload), policy, seed=seed, windows=windows, job_count=jobs, progress=tell,
            **asdict(conditions),
        )  # fmt: skip
        simulation = replace(found, command=_command())
        say_warnings(found.scenario)
        if events is not None:
            tell(f"Writing {events}", 0, 1)
            simulation.write_events(events)
    if as_json:
        print_json(simulation.as_dict(str(events) if events else None))
    else:
        show_run(simulation)
    if events is not None:
        say(f"Wrote {events}.")


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep, a TOML file: docs/sweep.md.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The Parquet table. Default: beside the sweep, with the same name."),
    ] = None,
    threads: ThreadCount = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Try many clusters, workloads, policies and training settings: a grid or a random search into one Parquet table.

    The table can be resumed: a sweep that was ended goes on, and rows that are there already are not computed again.
    """
    from adlro.experiment.sweep import sweep as do_all

    with progress_of_runs() as tell:
        found = do_all(file, out, threads=threads, ray=ray, progress=tell)
    if as_json:
        print_json(found.as_dict() | {"command": _command()})
    else:
        print(f"{found}.")


def bench(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Measure only this (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory on this machine, and compare with the required values."""
    from adlro.bench import check_names, run_bench
    from adlro.cli.tables import show_bench

    chosen = tuple(only or ())
    check_names(chosen)  # before anything is compiled or measured
    say_if_it_compiles()
    with progress("Measuring; this takes some minutes") as tell:
        found = run_bench(lambda text: tell(text, 0), chosen)
    if as_json:
        print_json(found | {"version": __version__, "command": _command()})
    else:
        show_bench(found)


def say_ignored(conditions: Conditions, policies: "Sequence[Policy]") -> None:
    """Say which options have no effect: what they belong to was not given, or policies do not know of it."""
    usual = Conditions()
    for name, other in (("room_c", "thermal"), ("slow_speed", "slow_gpus"), ("repair_h", "mtbf_h")):
        if getattr(conditions, name) != getattr(usual, name) and not getattr(conditions, other):
            flag, needed = (f"--{each.replace('_', '-')}" for each in (name, other))
            say(f"adlro: {flag} has no effect without {needed}.")
    if conditions.weights != usual.weights and conditions.weights in JOB_WEIGHTS:
        from adlro.decide.catalogue import shipped_policies

        ours = {each.name for each in shipped_policies()}  # a user's own policy may count weights without saying so
        deaf = [each.name for each in policies if not each.weighs and each.name.partition("+")[0] in ours]
        if deaf:
            say(f"adlro: --weights has no effect on {', '.join(deaf)}.")


def say_warnings(scenario: "Scenario") -> None:
    """Print what a trace does not say, and what was assumed instead."""
    from adlro.experiment.scenario import Recorded, nowhere_allowed

    if isinstance(scenario.workload, Recorded):
        lost = nowhere_allowed(scenario.cluster, scenario.workload.all_jobs)
        for warning in (*scenario.workload.report.warnings, *([lost] if lost else [])):
            say(f"adlro: {scenario.workload.name}: {warning}")


def _command() -> str:
    """The command line of this process, as it was typed; without --ray, on which no result depends."""
    import shlex

    words = sys.argv[1:]
    while RAY in words:
        at = words.index(RAY)
        words = words[:at] + words[at + 2 :]
    return shlex.join(["adlro", *(word for word in words if not word.startswith(f"{RAY}="))])
