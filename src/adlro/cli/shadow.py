"""`adlro shadow report`: what ADLRO would have done beside a cluster that schedules itself (docs/shadow.md)."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adlro.cli.lists import Json
from adlro.cli.output import print_json, progress, say_if_it_compiles, show_list, stdout
from adlro.cli.trace import length
from adlro.core.errors import StoreError, UsageError
from adlro.experiment.conditions import UNCHANGED, check_job_weights

if TYPE_CHECKING:
    from adlro.backends.shadow.priorities import WeightEffect
    from adlro.backends.shadow.record import Record
    from adlro.backends.shadow.report import Affected, Changed, Line, Report
    from adlro.backends.shadow.sizes import ResizeEffect
    from adlro.backends.shadow.stops import StopEffect

OTHERS: Final = "fcfs-first-fit,fcfs,fcfs-easy"
_MOST_USERS: Final = 5
_MOST_STOPPED: Final = 10

app = typer.Typer(
    help="Show what ADLRO would have done on a cluster that another scheduler runs (docs/shadow.md).",
    no_args_is_help=True,
)


@app.callback()
def shadow() -> None:
    """Keep `report` a command of its own while it is the only one."""


@app.command()
def report(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The daemon's config file, which says where its record is."),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            help="The daemon's database: use the record beside it or, without one, the jobs in the database.",
        ),
    ] = None,
    record: Annotated[Path | None, typer.Option("--record", metavar="FILE", help="The record, shadow.jsonl.")] = None,
    sacct: Annotated[
        str | None,
        typer.Option("--sacct", metavar="FILE", help="Without a daemon: the history of a site, printed by sacct."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            metavar="FILE",
            help="The cluster file for --sacct; its nodes must have the names that sacct prints.",
        ),
    ] = None,
    families: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="For --sacct, how jobs get their family: uniform, a family, hash:sia, column:NAME or a map (.toml).",
        ),
    ] = "uniform",
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="NAME", help="The policy that would have decided.")
    ] = "adlro",
    others: Annotated[
        str, typer.Option(metavar="NAMES", help="Further policies to replay, separated by commas.")
    ] = OTHERS,
    estimates: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="What policies know about runtimes: predicted (as in the daemon), limit or oracle."
        ),
    ] = "predicted",
    weights: Annotated[
        str,
        typer.Option(metavar="WHAT", help="What a job counts: equal, or priority (docs/policies.md)."),
    ] = UNCHANGED.weights,
    as_json: Json = False,
) -> None:
    """Compare what ADLRO would have done with what happened, and say whether the comparison can be trusted."""
    if sum(given is not None for given in (config, db, record, sacct)) > 1:
        raise UsageError("--config, --db, --record and --sacct exclude each other. Use one.")
    if sacct is not None and cluster is None:
        raise UsageError(
            "--sacct needs --cluster FILE. Make one: scontrol show node > nodes.txt, then "
            "adlro ingest --slurm nodes.txt > cluster.toml."
        )
    check_job_weights(weights)
    found = found_record(config, db, record, sacct, cluster, families)
    say_if_it_compiles()
    from adlro.backends.shadow.report import replay_report as summed_up

    names = [name.strip() for name in others.split(",") if name.strip()]
    with progress("Replaying", len(names) + 3) as tell:
        result = summed_up(found, policy, names, estimates, tell, weights)
    if as_json:
        print_json(result.as_json())
    else:
        _show(result)


def found_record(
    config: Path | None, db: str | None, record: Path | None, sacct: str | None, cluster: str | None, families: str
) -> "Record":
    """The requested record; by default that of this user's daemon."""
    from adlro.backends.shadow.record import FILE, read_record, read_sacct_record, record_of_memory
    from adlro.catalogue.clusters import load_cluster

    if sacct is not None:
        assert cluster is not None
        return read_sacct_record(sacct, load_cluster(cluster), families)
    if record is not None:
        return read_record(record)
    if db is not None:
        from adlro.daemon.store import open_store, sqlite_path

        file = None if db.startswith(("postgresql:", "postgres:")) else sqlite_path(db)
        if file is not None and (beside := file.parent / FILE).exists():
            return read_record(beside)
        if file is not None and not file.exists():
            raise StoreError(
                f"there is neither a database '{file}' nor a '{FILE}' beside it. Check --db, or pass --record FILE."
            )
        if cluster is None:
            raise UsageError(
                f"there is no '{FILE}' beside {db}. Pass --record FILE, or --cluster FILE to use the database."
            )
        store = open_store(db)
        try:
            return record_of_memory(store, load_cluster(cluster), db)
        finally:
            store.close()
    from adlro.daemon.config import load_config

    loaded = load_config(config, {} if config else {"backend.kind": "shadow"})
    return read_record(loaded.beside_store(FILE, loaded.shadow.record))


# ---- for people --------------------------------------------------------------------------------------------------


def _show(found: "Report") -> None:
    """Print a report in words."""
    for line in summary(found):
        stdout().print(line, markup=False)
    if found.lines:
        stdout().print()
        show_list(
            (
                ("", "name"),
                ("time in the system", "right"),
                ("against what happened", "right"),
                ("95 % interval", "right"),
                ("JCT of ended jobs", "right"),
                ("p95", "right"),
                ("wait", "right"),
                ("late", "right"),
            ),
            [_cells(line) for line in found.lines],
        )
        for text in _legend(found):
            stdout().print(text, markup=False)
    for title, jobs in (("Jobs that would gain most", found.gain), ("Jobs that would lose most", found.lose)):
        if jobs:
            stdout().print(f"\n{title} under {found.policy}", style="bold")
            show_list(JOB_COLUMNS, [_job_cells(job) for job in jobs])
    show_users(found)
    if found.stopping is not None:
        show_stops(found.stopping)
    if found.resizing is not None:
        show_sizes(found.resizing)
    if found.weighing is not None:
        show_weights(found.weighing)
    stdout().print("\nNot modelled", style="bold")
    for text in found.not_modelled:
        stdout().print(f"  · {text}", markup=False)
    stdout().print()
    stdout().print(_verdict(found), markup=False, style="bold")


def summary(found: "Report") -> list[str]:
    """What was watched, how well the replay reproduces it, and how often choices agree."""
    jobs, calibration, agreement = found.jobs, found.calibration, found.agreement
    hours = (found.end_s - found.begin_s) / 3600
    lines = [
        f"{found.source}: {found.cluster} from {when(found.begin_s)} to {when(found.end_s)} ({hours:,.1f} h), "
        f"{jobs.seen:,} jobs seen",
        f"  {jobs.compared:,} started and ended within it; {jobs.running_at_begin:,} ran already; at the end "
        f"{jobs.running_at_end:,} ran and {jobs.waiting_at_end:,} waited",
    ]
    if jobs.failed or jobs.requeued:
        lines.append(
            f"  of those that ended, {jobs.failed:,} failed or were cancelled, {jobs.requeued:,} had restarted"
        )
    if jobs.reshaped:
        lines.append(
            f"  {jobs.reshaped:,} ran although ADLRO's rules would refuse them: the replay uses a smaller request"
        )
    lines += [f"  {count:,} left out: {why}" for why, count in jobs.set_aside.items()]
    if found.unwatched_s:
        lines.append(f"  the record has gaps of {length(found.unwatched_s)} in total")
    if found.down_share > 0.001:
        lines.append(f"  {found.down_share:.1%} of the GPU time was on nodes that took no jobs")
    lines += [f"  {note}" for note in found.notes]
    if jobs.compared:
        lines.append(
            f"Replayed as it happened, the mean JCT is {length(calibration.replayed_s)} against "
            f"{length(calibration.happened_s)} ({_percent(calibration.error)}); {calibration.off:,} jobs are off by "
            "more than 10 % and a minute"
        )
    if found.speeds.pairs:
        lines.append(
            f"The speed table is off by {found.speeds.median_error:.0%} in the median of {found.speeds.pairs} cases in "
            "which the same job ran on two GPU models"
        )
    else:
        lines.append("The speed table could not be checked: no job of one name and size ran often on two GPU models")
    if agreement.moments:
        part = agreement.same_job / agreement.moments
        lines.append(
            f"At {agreement.moments:,} moments something started. {found.policy} would have started the same job next "
            f"at {part:.0%} of them ({agreement.same_model:,} times on the same model), another one at "
            f"{agreement.other_job / agreement.moments:.0%}, and waited at {agreement.waits / agreement.moments:.0%}"
        )
        if agreement.choice_moments:
            lines.append(
                f"  where more than one job waited: the same job at "
                f"{agreement.choice_same_job / agreement.choice_moments:.0%} of {agreement.choice_moments:,} moments"
            )
    return lines + wish_lines(found)


def wish_lines(found: "Report") -> list[str]:
    """What became of the starts that the daemon planned."""
    wishes = found.wishes
    if wishes is None:
        return []
    lead = "" if wishes.lead_s is None else f", in the median {length(wishes.lead_s)} later"
    return [
        f"The daemon would have started {wishes.made:,} jobs: the cluster started {wishes.started:,} of them itself"
        f"{lead} ({wishes.same_model:,} on the same model, {wishes.same_nodes:,} on the same nodes); "
        f"{wishes.taken:,} places went to other jobs, {wishes.over:,} runs would be over, "
        f"{wishes.left + wishes.down:,} became impossible (the job left, or the node went down), "
        f"{wishes.standing:,} may still happen"
    ]


def _cells(line: "Line") -> tuple[str, ...]:
    """The cells of one policy."""
    sign = {"different": " *", "no difference shown": " ·"}.get(line.verdict, "")
    against = "" if line.relative is None else f"{_percent(line.relative)}{sign}"
    interval = "" if line.low_s is None or line.high_s is None else f"{_signed(line.low_s)} … {_signed(line.high_s)}"
    return (
        line.policy, length(line.in_system_s), against, interval, length(line.jct_s), length(line.p95_s),
        length(line.wait_s), f"{line.late:,}",
    )  # fmt: skip


def _legend(found: "Report") -> list[str]:
    """What the columns mean."""
    lines = [
        "time in the system: mean time that a job waited or ran up to the end of the record, ended or not.",
        "JCT, p95, wait: only of jobs that ended, which was the cluster's choice. late: how many of these would end",
        "after the record, so that their JCT is shown too short. same models: every job on the model it ran on.",
    ]
    if found.blocks:
        lines.append(
            f"* differs from what happened (Wilcoxon signed-rank over {found.blocks} blocks of consecutive jobs, Holm, "
            "5 %); · no difference shown"
        )
    return lines


JOB_COLUMNS: Final = (
    ("job", "name"),
    ("user", "left"),
    ("name", "text"),
    ("GPUs", "right"),
    ("JCT", "right"),
    ("would be", "right"),
    ("change", "right"),
)


def _job_cells(job: "Changed") -> tuple[str, ...]:
    """The cells of one job."""
    more = " or more" if job.is_late else ""
    return (
        job.id, job.user, job.name, str(job.gpus), length(job.happened_s), f"{length(job.would_s)}{more}",
        _signed(job.difference_s),
    )  # fmt: skip


def show_users(found: "Report") -> None:
    """Print the users who gain and who lose most in total."""
    gain = [user for user in found.users if user.difference_s < 0]
    lose = [user for user in found.users if user.difference_s > 0]
    stdout().print(f"\nUsers: {len(gain):,} of {len(found.users):,} would gain, {len(lose):,} would lose", style="bold")
    rows: list[Affected] = [*gain[:_MOST_USERS], *lose[-_MOST_USERS:]]
    if rows:
        show_list(
            (
                ("user", "name"),
                ("jobs", "right"),
                ("time in the system", "right"),
                ("would be", "right"),
                ("change", "right"),
            ),
            [
                (one.user, f"{one.jobs:,}", length(one.happened_s), length(one.would_s), _signed(one.difference_s))
                for one in rows
            ],
        )


def show_stops(found: "StopEffect") -> None:
    """Print what stopping jobs would have brought, and to whom it would have happened."""
    stdout().print(f"\nStops under {found.policy}", style="bold")
    for line in stop_lines(found):
        stdout().print(line, markup=False)
    if found.users:
        show_list(
            (("user", "name"), ("jobs stopped", "right"), ("stops", "right"), ("GPU hours lost", "right")),
            [
                (user.user, f"{user.jobs:,}", f"{user.stops:,}", f"{user.lost_gpu_h:,.1f}")
                for user in found.users[:_MOST_STOPPED]
            ],
        )
        show_list(
            (
                ("job", "name"),
                ("user", "left"),
                ("name", "text"),
                ("GPUs", "right"),
                ("stops", "right"),
                ("ends by the stops", "right"),
            ),
            [
                (
                    job.id, job.user, job.name, str(job.gpus), f"{job.stops:,}",
                    "" if job.difference_s is None else _signed(job.difference_s),
                )
                for job in found.often
            ],
        )  # fmt: skip


def stop_lines(found: "StopEffect") -> list[str]:
    """What stopping would have brought, in words."""
    if not found.stops:
        return ["  no job would have been stopped"]
    with_s, without_s = found.in_system_s, found.in_system_without_s
    change = f" ({_percent(with_s / without_s - 1)})" if without_s else ""
    return [
        f"  with stops the mean time in the system is {length(with_s)}, without {length(without_s)}{change}; the mean "
        f"JCT of ended jobs {length(found.jct_s)} and {length(found.jct_without_s)}",
        f"  {found.stops:,} stops of {found.jobs:,} jobs, at most {found.most:,} of one; their restarts "
        f"({length(found.restart_s)} each) cost {found.lost_gpu_h:,.1f} GPU hours",
        f"  in the replay every job may be stopped; {found.restartable:,} of {found.of_jobs:,} jobs are marked as "
        "restartable. The daemon would stop only those (docs/preemption.md)",
    ]


def show_sizes(found: "ResizeEffect") -> None:
    """Print what other numbers of GPUs would have brought, and to whom it would have happened."""
    stdout().print(f"\nOther numbers of GPUs under {found.policy}", style="bold")
    for line in size_lines(found):
        stdout().print(line, markup=False)
    if found.users:
        sizes = (("more GPUs", "right"), ("fewer GPUs", "right"), ("ends by resizing", "right"))
        show_list(
            (("user", "name"), ("jobs resized", "right"), *sizes),
            [
                (user.user, f"{user.jobs:,}", f"{user.more:,}", f"{user.fewer:,}", _signed(user.difference_s))
                for user in found.users[:_MOST_STOPPED]
            ],
        )
        show_list(
            (("job", "name"), ("user", "left"), ("name", "text"), ("GPUs", "right"), *sizes),
            [
                (
                    job.id, job.user, job.name, str(job.gpus), f"{job.more:,}", f"{job.fewer:,}",
                    "" if job.difference_s is None else _signed(job.difference_s),
                )
                for job in found.often
            ],
        )  # fmt: skip


def size_lines(found: "ResizeEffect") -> list[str]:
    """What resizing would have brought, in words."""
    named = (
        f"  {found.with_sizes:,} of {found.of_jobs:,} jobs name sizes; others are never resized (docs/preemption.md)"
    )
    if not found.jobs:
        return ["  no job would have got another number of GPUs", named]
    with_s, without_s = found.in_system_s, found.in_system_without_s
    change = f" ({_percent(with_s / without_s - 1)})" if without_s else ""
    return [
        f"  with other numbers of GPUs the mean time in the system is {length(with_s)}, with those that jobs had "
        f"{length(without_s)}{change}; {found.stops:,} stops and {found.stops_without:,}",
        f"  {found.jobs:,} jobs would have been resized: {found.more:,} starts with more GPUs than the job had, "
        f"{found.fewer:,} with fewer",
        named,
    ]


def show_weights(found: "WeightEffect") -> None:
    """Print what counting by priority would have brought, and to which jobs."""
    stdout().print(f"\nPriorities under {found.policy}", style="bold")
    stdout().print(
        f"  mean time in the system, each job counted by its priority: {length(found.weighted_s)} with weights, "
        f"{length(found.equal_s)} if all count the same, {length(found.happened_s)} as it happened",
        markup=False,
    )
    show_list(
        (
            ("priority", "name"),
            ("jobs", "right"),
            ("as it happened", "right"),
            ("equal weights", "right"),
            ("by priority", "right"),
        ),
        [
            (
                f"up to {share.up_to:g}", f"{share.jobs:,}", length(share.happened_s), length(share.equal_s),
                length(share.weighted_s),
            )
            for share in found.shares
        ],
    )  # fmt: skip


def _verdict(found: "Report") -> str:
    """Whether the comparison can be trusted, in one line."""
    if found.is_trusted:
        return "The replay reproduces what happened. Apart from what is not modelled, you can trust this comparison."
    return f"Do not trust this comparison: {'; '.join(found.doubts)}."


def when(time_s: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _percent(share: float) -> str:
    """A change in per cent."""
    return f"{'−' if share < 0 else '+'}{abs(share):.1%}".replace("%", " %")


def _signed(seconds: float) -> str:
    """A change of a duration, with its sign."""
    return f"{'−' if seconds < 0 else '+'}{length(abs(seconds))}"
