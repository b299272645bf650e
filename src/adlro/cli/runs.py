"""The commands that run something: compare, simulate, bench."""

import sys
from collections import Counter
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adlro import __version__
from adlro.cli.lists import Json
from adlro.cli.options import Reading, Windows, World, spread
from adlro.cli.output import print_json, progress, say, say_if_it_compiles
from adlro.cli.report import Reporting, Times, keep_times, write_report
from adlro.core.errors import UsageError

if TYPE_CHECKING:  # these import the compiler, which commands that only list things need not wait for
    from adlro.core.policy import Policy
    from adlro.core.run import Run
    from adlro.experiment import Comparison, Scenario
    from adlro.measure.hyperscore import Weights
    from adlro.measure.statistics import Against

DEFAULT_POLICIES: Final = (
    "fcfs", "static-affinity", "fcfs-easy", "sjf", "sjf-picky", "srtf", "adlro", "adlro-lookahead",
)  # fmt: skip
EVERY_POLICY: Final = "all"
DEFAULT_SEEDS: Final = 10

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


@spread
def compare(
    cluster: ClusterName = "paper16",
    workload: WorkloadName = "paper",
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "-p", metavar="NAMES", show_default="fcfs, static-affinity, sjf, adlro and others",
            help="Names separated by commas (adlro policies), 'all', path.py:function, or FILE.safetensors of "
            "adlro train. "
            "The first is what the others are compared with.",
        ),
    ] = ",".join(DEFAULT_POLICIES),
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="NAME", help="The policy to compare with. Default: the first policy."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", metavar="N", min=1, max=100_000,
            help="Number of seeds. Default: 10; for a trace 1, because its jobs are the same for every seed.",
        ),
    ] = None,
    first_seed: Annotated[
        int | None, typer.Option("--first-seed", metavar="N", min=0, help="The first seed. Default: 0.")
    ] = None,
    jobs: JobCount = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, max=1024, help="Runs in parallel. Default: one per core."),
    ] = None,
    hyperscore: Annotated[
        str | None,
        typer.Option(
            "--hyperscore", metavar="FILE",
            help="Show the paper's HyperScore, with the weights in a TOML file, or 'equal': docs/statistics.md.",
        ),
    ] = None,
    regression: Annotated[
        bool,
        typer.Option("--regression", help="Show the regression of completion time on utilisation, queue and load."),
    ] = False,
    as_json: Json = False,
    windows: Windows = None,
    *,
    reporting: Reporting,
    reading: Reading,
    world: World,
) -> None:  # fmt: skip
    """Compare policies on the same jobs, over several seeds.

    Means over the seeds, with 95 % intervals, and which differences are more than chance: docs/statistics.md.
    On paper16 with the workload paper it also prints the paper's Table 1.
    """
    from adlro import experiment
    from adlro.cli.tables import show_comparison, show_regressions, show_scores
    from adlro.measure.hyperscore import scores
    from adlro.measure.statistics import FEWEST_OBSERVATIONS, regressions

    weights = experiment.find_weights(hyperscore)

    scenario = load(cluster, workload, jobs, windows, reading, world)
    chosen = find_policies(policies)
    which = seeds_of(scenario, seeds, first_seed)
    kind = "window" if windows else "seed"
    if regression and len(which) < FEWEST_OBSERVATIONS:
        raise UsageError(
            f"--regression with {len(which)} {kind}s; expected at least {FEWEST_OBSERVATIONS}: pass --{kind}s."
        )
    reporting.check([policy.name for policy in chosen])
    times: Times = {}
    say_if_it_compiles()
    runs = f"{counted(len(chosen), 'policy', 'policies')} on {counted(len(which), kind)}"
    with progress(f"Comparing {runs}", len(chosen) * len(which)) as tell:
        if len(which) > 1:  # loading it takes as long as the runs, which leave Python alone
            Thread(target=import_module, args=["scipy.stats"]).start()
        comparison = experiment.compare(
            scenario, chosen, which, threads, lambda what, done, _total: tell(what, done), baseline,
            keep_times(times) if reporting.report else lambda _run: None,
        )  # fmt: skip
    is_the_papers = (cluster, workload, world.load) == ("paper16", "paper", None)
    regressed = regressions(comparison.metrics, comparison.load) if regression else None
    if as_json or reporting.report:
        result = (
            comparison_as_dict(comparison, is_the_papers, weights)
            | ({"regression": {name: asdict(each) for name, each in regressed.items()}} if regressed else {})
            | provenance(scenario, world.disturbances)
        )
        if reporting.report:
            write_report(reporting, comparison, chosen, times, result)
        if as_json:
            print_json(result)
            return
    show_comparison(comparison, is_the_papers)
    if hyperscore is not None:
        show_scores(scores(comparison.metrics, weights), weights)
    if regressed:
        show_regressions(regressed)


@spread
def simulate(
    cluster: ClusterName = "paper16",
    workload: WorkloadName = "paper",
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="A policy (adlro policies), or path.py:function.")
    ] = "sjf-picky",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", min=0, help="Random seed; with --windows: the index of the window, from 0."
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
    reading: Reading,
    world: World,
) -> None:
    """Run one policy on one seed; print every measure and why jobs were refused, and write the event log."""
    from adlro import experiment
    from adlro.cli.tables import show_run
    from adlro.decide.catalogue import find_policy
    from adlro.measure.bounds import lower_bounds
    from adlro.measure.events import write_events
    from adlro.measure.metrics import measure

    if events is not None and (events.is_dir() or not events.absolute().parent.is_dir()):
        raise UsageError(f"--events: cannot write '{events}'; expected a file in a folder that exists.")
    scenario = load(cluster, workload, jobs, windows, reading, world)
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
            | provenance(scenario, world.disturbances)
        )
    else:
        part = f", window {seed} of {len(scenario.windows)}" if scenario.windows else ""
        show_run(run, f"{scenario.workload.name}{part}", metrics, bounds, reasons)
    if events is not None:
        say(f"Wrote {events}.")


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
        print_json(found | {"version": __version__, "command": command()})
    else:
        show_bench(found)


def load(
    cluster: str, workload: str, jobs: int | None, windows: int | None, reading: Reading, world: World
) -> "Scenario":
    """The scenario that the options of a command ask for."""
    from adlro.experiment import Hazards, find_disturbances, load_scenario
    from adlro.simulate.simulator import Settings

    listed = find_disturbances(world.disturbances) if world.disturbances else ()
    settings = Settings(world.restart_s, world.kill_at_limit, world.queue_window)
    hazards = Hazards(world.mtbf_h, world.repair_h, world.wear_per_day, listed)
    return load_scenario(
        cluster, workload, jobs, settings, hazards, world.estimates, reading.options(), windows, world.load
    )


def seeds_of(scenario: "Scenario", seeds: int | None, first_seed: int | None) -> range:
    """The seeds of a comparison: those asked for, the windows of a trace, or as many as make sense."""
    if scenario.windows:
        if seeds is not None or first_seed is not None:
            raise UsageError("with --windows, windows take the place of seeds. Leave out --seeds and --first-seed.")
        return range(len(scenario.windows))
    count = seeds if seeds is not None else DEFAULT_SEEDS if scenario.varies else 1
    return range(first_seed or 0, (first_seed or 0) + count)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its word in the right form."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def find_policies(names: str) -> "list[Policy]":
    """The policies of a list with commas, each once, in this order."""
    from adlro.decide.catalogue import CHECKPOINT, find_policy
    from adlro.decide.catalogue import policies as catalogue

    words = [word.strip() for word in names.split(",") if word.strip()]
    if not words:
        raise UsageError(f"--policies is {names!r}; expected names separated by commas, as in fcfs,sjf.")
    found: dict[str, Policy] = {}
    of_files = Counter(Path(word).stem for word in dict.fromkeys(words) if word.endswith(CHECKPOINT))
    for word in dict.fromkeys(words):
        for each in catalogue() if word == EVERY_POLICY else [find_policy(word)]:
            policy = each
            if word.endswith(CHECKPOINT) and of_files[Path(word).stem] > 1:  # best of several trainings
                policy = replace(each, name=f"{Path(word).absolute().parent.name}/{each.name}")
            if found.setdefault(policy.name, policy) is not policy:
                raise UsageError(f"--policies: two policies are called '{policy.name}'. Rename your function or file.")
    return list(found.values())


def refused_by_reason(run: "Run") -> list[dict[str, Any]]:
    """Why jobs were refused, the most frequent reason first."""
    return [{"reason": reason, "jobs": jobs} for reason, jobs in Counter(run.refusals.values()).most_common()]


def comparison_as_dict(
    comparison: "Comparison", is_the_papers: bool, weights: "Weights | None" = None
) -> dict[str, Any]:
    """A comparison for JSON: docs/json.md."""
    from adlro.cli.tables import table_1
    from adlro.experiment import metric_names, over_seeds
    from adlro.measure.hyperscore import EQUAL, scores
    from adlro.measure.statistics import against, mean_intervals

    per_seed = comparison.per_seed(metric_names())
    bootstrap = mean_intervals(per_seed)
    differences = against(per_seed, comparison.baseline)
    scored = scores(comparison.metrics, weights or EQUAL)
    policies: dict[str, Any] = {}
    for name, values in per_seed.items():
        means = {key: over_seeds(each) for key, each in values.items()}
        score = scored[name]
        policies[name] = {key: mean.value for key, mean in means.items()} | {
            "interval": {key: None if mean.low is None else [mean.low, mean.high] for key, mean in means.items()},
            "bootstrap": bootstrap[name],
            "against": against_as_dict(differences[name]) if name in differences else None,
            "hyperscore": asdict(score) if score else None,
            "per_seed": values,
        }
    return {
        "cluster": comparison.scenario.cluster.name,
        "workload": comparison.scenario.workload.name,
        "seeds": list(comparison.seeds),
        "load": list(comparison.load),
        "baseline": comparison.baseline,
        "hyperscore_weights": (weights or EQUAL).shares(),
        "policies": policies,
    } | ({"table_1": table_1(comparison)} if is_the_papers else {})


def against_as_dict(differences: "dict[str, Against | None]") -> dict[str, Any]:
    """The differences of a policy to the baseline, by measure, for JSON."""
    return {
        key: None
        if each is None
        else {
            "difference": each.difference,
            "interval": None if each.low is None else [each.low, each.high],
            "relative": each.relative,
            "wilcoxon_p": each.wilcoxon_p,
            "wilcoxon_p_holm": each.wilcoxon_p_holm,
            "t_p": each.t_p,
            "cliffs_delta": each.cliffs_delta,
            "significant": each.significant,
            "verdict": each.verdict,
        }
        for key, each in differences.items()
    }


def provenance(scenario: "Scenario", disturbances: str | None) -> dict[str, Any]:
    """What a result was made with, so that it can be made again."""
    import platform

    import numba
    import numpy

    from adlro.experiment import Recorded

    hazards, workload = scenario.hazards, scenario.workload
    return {
        "trace": asdict(workload.report) if isinstance(workload, Recorded) else None,
        "windows": [asdict(window) for window in scenario.windows] or None,
        "settings": {"jobs": scenario.jobs or scenario.workload.jobs}
        | {"estimates": scenario.workload.estimates.source, "estimate_sigma": scenario.workload.estimates.sigma}
        | asdict(scenario.settings)
        | {"mtbf_h": hazards.mtbf_h, "repair_h": hazards.repair_h, "wear_per_day": hazards.wear_per_day}
        | {"disturbances": disturbances, "load": scenario.load},
        "version": __version__,
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__, "numba": numba.__version__},
        "command": command(),
    }


def command() -> str:
    """The command line of this process, as it was typed."""
    import shlex

    return shlex.join(["adlro", *sys.argv[1:]])
