"""Lists of policies, clusters, GPU models and workloads, and how fast jobs run on GPUs. One line each."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.asking import Where
from adlro.cli.options import spread_into_flags
from adlro.cli.output import print_json, show_list, stdout
from adlro.core.errors import UsageError
from adlro.core.records import MEASURED, Cluster, GpuModel, Placing, Speed

if TYPE_CHECKING:  # it imports the compiler
    from adlro.core.policy import Policy

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


def policies(as_json: Json = False) -> None:
    """List the policies: what each does, whether it stops or resizes jobs, and what it needs to know."""
    from adlro.decide.catalogue import shipped_policies as catalogue

    if as_json:
        keys = ("name", "summary", "preemptive", "resizes", "weighs", "needs")
        print_json(
            [{key: getattr(policy, key) for key in keys} | {"stops": policy.preemptive} for policy in catalogue()]
        )
        return
    show_list(
        (("policy", "name"), ("what it does", "text")),
        [(policy.name, "; ".join([policy.summary, *_remarks(policy)])) for policy in catalogue()],
    )


def _remarks(policy: "Policy") -> Iterator[str]:
    """What an operator must know before using it."""
    if policy.preemptive:
        yield "stops jobs"
    if policy.resizes:
        yield "resizes jobs"
    if policy.weighs:
        yield "knows --weights"
    if policy.needs:
        yield f"needs {', '.join(policy.needs)}"


def clusters(as_json: Json = False) -> None:
    """List the clusters that ship with ADLRO. Your own is a TOML file: docs/catalogue.md."""
    from adlro.catalogue.clusters import cluster_names, load_cluster

    found = [load_cluster(name) for name in cluster_names()]
    if as_json:
        print_json([cluster_as_dict(cluster) for cluster in found])
        return
    show_list(
        (("cluster", "name"), ("nodes", "right"), ("GPUs", "right"), ("what it is", "text")),
        [(c.name, f"{len(c.nodes):,}", f"{c.gpu_count:,}", c.summary) for c in found],
    )


def cluster_as_dict(cluster: Cluster) -> dict[str, object]:
    """A cluster in a few numbers."""
    models: Counter[str] = Counter()
    for node in cluster.nodes:
        for gpus in node.gpus:
            models[gpus.model] += gpus.count
    return {
        "name": cluster.name,
        "summary": cluster.summary,
        "nodes": len(cluster.nodes),
        "gpus": cluster.gpu_count,
        "models": dict(models),
        "network": asdict(cluster.network),
    }


def gpus(as_json: Json = False) -> None:
    """List the GPU models and their datasheet figures. Add your own in a cluster file: docs/catalogue.md."""
    from adlro.catalogue.gpus import gpu_models

    models = gpu_models().values()
    if as_json:
        print_json([asdict(model) for model in models])
        return
    figures = ("year", "GB", "GB/s", "FP64", "FP32", "FP16", "W")
    show_list(
        (("GPU", "name"), *((heading, "right") for heading in figures), ("title", "text")),
        [(model.name, *_figures_of(model), f"{model.vendor} {model.title}") for model in models],
    )
    stdout().print("[dim]FP64, FP32 and FP16 (tensor units where there are any, dense) in TFLOP/s; –: not known.[/dim]")


def _figures_of(model: GpuModel) -> Iterator[str]:
    """The figures of a datasheet as texts; a dash for unknown figures."""
    yield str(model.launch_year or "–")
    fp16 = model.fp16_tensor_tflops or model.fp16_vector_tflops
    for value in (
        model.memory_gb,
        model.memory_bandwidth_gb_s,
        model.fp64_tflops,
        model.fp32_tflops,
        fp16,
        model.tdp_w,
    ):
        yield "–" if value is None else f"{value:.4g}"


def workloads(as_json: Json = False) -> None:
    """List the workloads that ship with ADLRO. Your own is a TOML file: docs/workloads.md."""
    from adlro.catalogue.workloads import workload_names, workload_text
    from adlro.ingest.workload_file import load_workload

    found = {name: load_workload(*workload_text(name)) for name in workload_names()}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "summary": workload.summary,
                    "jobs": workload.jobs,
                    "arrivals": workload.arrivals.process,
                    "estimates": workload.estimates.source,
                    "families": sorted({family for part in workload.families for family in part.family}),
                }
                for name, workload in found.items()
            ]
        )
        return
    show_list(
        (("workload", "name"), ("jobs", "right"), ("arrivals", "left"), ("what it is", "text")),
        [(name, f"{w.jobs:,}", w.arrivals.process, w.summary) for name, w in found.items()],
    )


@spread_into_flags
def speeds(
    *,
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="A cluster that ships (adlro clusters), or a TOML file.")
    ] = "paper16",
    learn: Annotated[
        str | None,
        typer.Option(
            "--learn",
            metavar="FILE",
            help="Learn speeds from a trace of jobs that ran on the cluster, and show them with what they rest on.",
        ),
    ] = None,
    ran_on: Annotated[
        str | None,
        typer.Option("--ran-on", metavar="WHERE", help="With --learn: on which GPUs the jobs ran: docs/traces.md."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="With --learn: what that says about one job (a TOML file), and why. With --live: a job's id.",
        ),
    ] = None,
    learned: Annotated[
        bool,
        typer.Option(
            "--learned", help="Play a workload with learned speeds, and show the families that the memory finds."
        ),
    ] = False,
    workload: Annotated[str, typer.Option("--workload", "-w", help="With --learned: a workload.")] = "paper",
    policy: Annotated[str, typer.Option("--policy", "-p", help="With --learned: the policy.")] = "sjf",
    seed: Annotated[int, typer.Option("--seed", min=0, help="With --learned: the seed.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="With --learned: how many jobs.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask a daemon what it has learnt (adlro serve --speeds learned).")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print what was learnt as a speed table (docs/speeds.md).")
    ] = False,
    as_json: Json = False,
    where: Where,
) -> None:
    """List how fast each family of jobs runs on the GPU models of a cluster, and whether it was measured.

    With --learn, --learned or --live: the speeds that jobs have shown, by families that were found and not told.
    """
    if live:
        from adlro.cli.learned import show_live

        show_live(where, job, as_json, as_csv)
        return
    if learn is not None or learned:
        from adlro.cli.learned import show_learned

        show_learned(cluster, learn, ran_on, job, workload, policy, seed, jobs, as_json, as_csv)
        return
    for flag, is_given, needed in (
        ("--job", job is not None, "--learn FILE or --live"),
        ("--ran-on", ran_on is not None, "--learn FILE"),
        ("--csv", as_csv, "--learn FILE, --learned or --live"),
    ):
        if is_given:
            raise UsageError(f"{flag} is about learnt speeds: expected {needed} with it (docs/speeds.md).")
    from adlro.catalogue.clusters import load_cluster
    from adlro.catalogue.families import families

    here = load_cluster(cluster)
    found = {family.name: speeds_on(here, family.name) for family in families().values()}
    if as_json:
        print_json(
            [
                {"family": name, "summary": families()[name].summary, "speeds": {m: asdict(s) for m, s in row.items()}}
                for name, row in found.items()
            ]
        )
        return
    show_list(
        (("family", "name"), *((model, "right") for model in here.models)),
        [(name, *(speed_as_text(speed) for speed in row.values())) for name, row in found.items()],
    )
    stdout().print(
        "[dim]Against one V100 SXM2 16GB with the same jobs. m: measured, else modelled from the datasheet; "
        "–: does not run.[/dim]"
    )


def speeds_on(cluster: Cluster, family: str) -> dict[str, Speed]:
    """Speed of a job with one GPU on each model of the cluster."""
    from adlro.catalogue.speeds import speed_of

    link = {gpus.model: node.link for node in cluster.nodes for gpus in node.gpus}
    return {
        name: speed_of(family, Placing(model, 1, 1, link[name], cluster.network))
        for name, model in cluster.models.items()
    }


def speed_as_text(speed: Speed) -> str:
    """The number, with an m if it was measured."""
    if speed.value == 0:
        return "–  "
    return f"{speed.value:.2f} {'m' if speed.source == MEASURED else ' '}"
