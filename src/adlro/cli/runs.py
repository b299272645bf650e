"""The commands that run something: compare, simulate, bench."""

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adlro import __version__
from adlro.cli.lists import Json
from adlro.cli.output import print_json, progress, say, say_if_it_compiles
from adlro.core.errors import UsageError

if TYPE_CHECKING:  # these import the compiler, which commands that only list things need not wait for
    from adlro.core.policy import Policy
    from adlro.core.run import Run
    from adlro.experiment import Comparison, Scenario

DEFAULT_POLICIES: Final = ("fcfs", "static-affinity", "fcfs-easy", "sjf", "sjf-picky", "eft", "srtf", "las")
EVERY_POLICY: Final = "all"

WORLD: Final = "The world"

ClusterName = Annotated[
    str, typer.Option("--cluster", "-c", help="A shipped cluster (adlro clusters), or a TOML file.", metavar="NAME")
]
WorkloadName = Annotated[
    str, typer.Option("--workload", "-w", help="A shipped workload (adlro workloads), or a TOML file.", metavar="NAME")
]
JobCount = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, max=100_000_000, help="How many jobs. Default: as many as the workload says."
    ),
]
EstimatesName = Annotated[
    str | None,
    typer.Option(
        "--estimates",
        metavar="SOURCE",
        help="What policies are told of the work: oracle, limit, or lognormal:SIGMA. Default: as the workload says.",
        rich_help_panel=WORLD,
    ),
]
RestartS = Annotated[
    float,
    typer.Option(
        "--restart-s",
        metavar="S",
        help="Seconds that a job loses each time it is started again.",
        rich_help_panel=WORLD,
    ),
]
KillAtLimit = Annotated[
    bool, typer.Option("--kill-at-limit", help="End jobs that reach their walltime limit.", rich_help_panel=WORLD)
]
Window = Annotated[
    int,
    typer.Option(
        "--window", metavar="N", min=0, help="Policies see so many jobs of the queue; 0: all.", rich_help_panel=WORLD
    ),
]
MtbfH = Annotated[
    float | None,
    typer.Option(
        "--mtbf-h",
        metavar="H",
        help="Nodes fail, after so many hours on average. Default: never.",
        rich_help_panel=WORLD,
    ),
]
RepairH = Annotated[
    float,
    typer.Option(
        "--repair-h", metavar="H", help="A failed node is back after so many hours on average.", rich_help_panel=WORLD
    ),
]
WearPerDay = Annotated[
    float,
    typer.Option(
        "--wear-per-day",
        metavar="X",
        help="GPUs lose this share of their speed in a day, on average.",
        rich_help_panel=WORLD,
    ),
]
DisturbanceFile = Annotated[
    str | None,
    typer.Option(
        "--disturbances",
        help="A list of failures and changes of speed: docs/workloads.md.",
        metavar="FILE",
        rich_help_panel=WORLD,
    ),
]


def compare(
    cluster: ClusterName = "paper16",
    workload: WorkloadName = "paper",
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "-p", metavar="NAMES", show_default="fcfs, static-affinity, sjf, sjf-picky and others",
            help="Names with commas between them (adlro policies), 'all', or path.py:function. "
            "The first is what the others are compared with.",
        ),
    ] = ",".join(DEFAULT_POLICIES),
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=100_000, help="On how many seeds.")] = 10,
    first_seed: Annotated[int, typer.Option("--first-seed", metavar="N", min=0, help="The first of them.")] = 0,
    jobs: JobCount = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, max=1024, help="Runs side by side. Default: one for each core."),
    ] = None,
    as_json: Json = False,
    estimates: EstimatesName = None,
    restart_s: RestartS = 30.0,
    kill_at_limit: KillAtLimit = False,
    window: Window = 0,
    mtbf_h: MtbfH = None,
    repair_h: RepairH = 4.0,
    wear_per_day: WearPerDay = 0.0,
    disturbances: DisturbanceFile = None,
) -> None:  # fmt: skip
    """Compare policies on the same jobs, over several seeds.

    Means over the seeds, with 95 % intervals. On paper16 with the workload paper it also prints the paper's Table 1.
    """
    from adlro import experiment
    from adlro.cli.tables import show_comparison

    scenario = load(
        cluster, workload, jobs, estimates,
        restart_s, kill_at_limit, window, mtbf_h, repair_h, wear_per_day, disturbances,
    )  # fmt: skip
    chosen = find_policies(policies)
    which = range(first_seed, first_seed + seeds)
    say_if_it_compiles()
    runs = f"{len(chosen)} {'policies' if len(chosen) > 1 else 'policy'} on {seeds} seed{'s' if seeds > 1 else ''}"
    with progress(f"Comparing {runs}", len(chosen) * seeds) as tell:
        comparison = experiment.compare(scenario, chosen, which, threads, lambda what, done, _total: tell(what, done))
    is_the_papers = (cluster, workload) == ("paper16", "paper")
    if as_json:
        print_json(comparison_as_dict(comparison, is_the_papers) | provenance(scenario, disturbances))
    else:
        show_comparison(comparison, is_the_papers)


def simulate(
    cluster: ClusterName = "paper16",
    workload: WorkloadName = "paper",
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="A policy (adlro policies), or path.py:function.")
    ] = "sjf-picky",
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What the jobs are drawn with.")] = 0,
    jobs: JobCount = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="Write everything that happened, as JSON lines: docs/metrics.md."
        ),
    ] = None,
    as_json: Json = False,
    estimates: EstimatesName = None,
    restart_s: RestartS = 30.0,
    kill_at_limit: KillAtLimit = False,
    window: Window = 0,
    mtbf_h: MtbfH = None,
    repair_h: RepairH = 4.0,
    wear_per_day: WearPerDay = 0.0,
    disturbances: DisturbanceFile = None,
) -> None:
    """Run one policy on one seed, and look closely: every measure, which jobs were refused and why, the event log."""
    from adlro import experiment
    from adlro.cli.tables import show_run
    from adlro.decide.catalogue import find_policy
    from adlro.measure.bounds import lower_bounds
    from adlro.measure.events import write_events
    from adlro.measure.metrics import measure

    if events is not None and (events.is_dir() or not events.absolute().parent.is_dir()):
        raise UsageError(f"--events: cannot write '{events}'; expected a file in a folder that exists.")
    scenario = load(
        cluster, workload, jobs, estimates,
        restart_s, kill_at_limit, window, mtbf_h, repair_h, wear_per_day, disturbances,
    )  # fmt: skip
    chosen = find_policy(policy)
    say_if_it_compiles()
    with progress(f"Simulating {chosen.name}") as tell:
        run = experiment.run_one(scenario, chosen, seed)
        tell("Measuring", 0)
        metrics, bounds = measure(run), lower_bounds(run)
        if events is not None:
            tell(f"Writing {events}", 0)
            write_events(run, events)
    reasons = refused_by_reason(run)
    if as_json:
        print_json(
            {"cluster": scenario.cluster.name, "workload": scenario.workload.name, "policy": chosen.name, "seed": seed}
            | metrics.as_dict()
            | {"lower_bounds": asdict(bounds), "refusals": reasons, "events": str(events) if events else None}
            | provenance(scenario, disturbances)
        )
    else:
        show_run(run, scenario.workload.name, metrics, bounds, reasons)
    if events is not None:
        say(f"Wrote {events}.")


def bench(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Measure only this; may be given several times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure speed and memory on this machine, next to what we promise."""
    from adlro.bench import run_bench
    from adlro.cli.tables import show_bench

    say_if_it_compiles()
    with progress("Measuring; this takes some minutes") as tell:
        found = run_bench(lambda text: tell(text, 0), tuple(only or ()))
    if as_json:
        print_json(found | {"version": __version__, "command": command()})
    else:
        show_bench(found)


def load(
    cluster: str, workload: str, jobs: int | None, estimates: str | None,
    restart_s: float, kill_at_limit: bool, window: int,
    mtbf_h: float | None, repair_h: float, wear_per_day: float, disturbances: str | None,
) -> "Scenario":  # fmt: skip
    """The scenario that the options of a command ask for."""
    from adlro.act.simulator import Settings
    from adlro.experiment import Hazards, find_disturbances, load_scenario

    listed = find_disturbances(disturbances) if disturbances else ()
    settings = Settings(restart_s, kill_at_limit, window)
    return load_scenario(cluster, workload, jobs, settings, Hazards(mtbf_h, repair_h, wear_per_day, listed), estimates)


def find_policies(names: str) -> "list[Policy]":
    """The policies of a list with commas, each once, in this order."""
    from adlro.decide.catalogue import find_policy
    from adlro.decide.catalogue import policies as catalogue

    words = [word.strip() for word in names.split(",") if word.strip()]
    if not words:
        raise UsageError(f"--policies is {names!r}; expected names with commas between them, as in fcfs,sjf.")
    found: dict[str, Policy] = {}
    for word in dict.fromkeys(words):
        for policy in catalogue() if word == EVERY_POLICY else [find_policy(word)]:
            if found.setdefault(policy.name, policy) is not policy:
                raise UsageError(f"--policies: two policies are called '{policy.name}'. Rename your function.")
    return list(found.values())


def refused_by_reason(run: "Run") -> list[dict[str, Any]]:
    """Why jobs were refused, the most frequent reason first."""
    return [{"reason": reason, "jobs": jobs} for reason, jobs in Counter(run.refusals.values()).most_common()]


def comparison_as_dict(comparison: "Comparison", is_the_papers: bool) -> dict[str, Any]:
    """A comparison for JSON: docs/json.md."""
    from adlro.cli.tables import table_1
    from adlro.experiment import metric_names, over_seeds

    policies: dict[str, Any] = {}
    for name, results in comparison.metrics.items():
        per_seed = {key: [getattr(metrics, key) for metrics in results] for key in metric_names()}
        means = {key: over_seeds(values) for key, values in per_seed.items()}
        policies[name] = {key: mean.value for key, mean in means.items()} | {
            "interval": {key: None if mean.low is None else [mean.low, mean.high] for key, mean in means.items()},
            "per_seed": per_seed,
        }
    baseline = next(iter(policies))
    return {
        "cluster": comparison.scenario.cluster.name,
        "workload": comparison.scenario.workload.name,
        "seeds": list(comparison.seeds),
        "baseline": baseline,
        "policies": policies,
    } | ({"table_1": table_1(comparison)} if is_the_papers else {})


def provenance(scenario: "Scenario", disturbances: str | None) -> dict[str, Any]:
    """What a result was made with, so that it can be made again."""
    import platform

    import numba
    import numpy

    hazards = scenario.hazards
    return {
        "settings": {"jobs": scenario.jobs or scenario.workload.jobs}
        | {"estimates": scenario.workload.estimates.source, "estimate_sigma": scenario.workload.estimates.sigma}
        | asdict(scenario.settings)
        | {"mtbf_h": hazards.mtbf_h, "repair_h": hazards.repair_h, "wear_per_day": hazards.wear_per_day}
        | {"disturbances": disturbances},
        "version": __version__,
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__, "numba": numba.__version__},
        "command": command(),
    }


def command() -> str:
    """The command line of this process, as it was typed."""
    import shlex

    return shlex.join(["adlro", *sys.argv[1:]])
