"""What people ask a live daemon in a terminal: `adlro queue`, `submit`, `why`, `cancel`, `top`, and `adlro token`."""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from adlro.cli.asking import DaemonClient, Where, in_path, printable
from adlro.cli.lists import Json
from adlro.cli.options import spread_into_flags
from adlro.cli.output import fitted, print_json, show_list, stdout
from adlro.cli.trace import length
from adlro.core.errors import UsageError
from adlro.core.records import Job
from adlro.core.schema import Property, properties_of
from adlro.live.words import clock, day, moment
from adlro.measure.text import plain_table

if TYPE_CHECKING:
    from adlro.api.tokens import TokenFile

_STATES: Final = ("waiting", "placed", "running", "finished", "failed", "cancelled")
_LIVE: Final = ("running", "placed", "waiting")
_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
PARTS_OF_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(min|s|m|h|d)")
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
SHADOW_MODE: Final = "shadow"
"""The back end that starts nothing."""
_HEADINGS: Final = ("job", "user", "name", "GPUs", "state", "for", "where, or predicted start")
GIVING: Final = {0: (8, 24), 1: (6, 16), 2: (8, 40), 6: (30, 80)}
"""Columns of _HEADINGS that shrink on a narrow screen: the least and the most width of each."""
KEPT_WIDTH: Final = 80
KEPT_HEIGHT: Final = 50
"""The size of the screen, in columns and lines, if there is no terminal."""

app_of_tokens = typer.Typer(
    help="Manage the tokens for access to the daemon. Run it on the daemon's machine, as the daemon's user.",
    no_args_is_help=True,
)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as in `adlro queue`.")]


# ---- queue -----------------------------------------------------------------------------------------------------------


@spread_into_flags
def queue(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only jobs in this state: {', '.join(_STATES)}, or all. Default: jobs that have not ended.",
        ),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this user.")] = "",
    model: Annotated[str, typer.Option(metavar="GPU", help="Only jobs that hold this GPU model, or may use it.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum rows.")] = 50,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Skip N rows.")] = 0,
    as_json: Json = False,
    *,
    where: Where,
) -> None:
    """List the jobs of the cluster; waiting jobs have a predicted start."""
    states = list(_LIVE) if not state else [] if "all" in state else state
    for one in states:
        if one not in _STATES:
            raise UsageError(f"--state is {one!r}; expected {', '.join(_STATES)}, or all.")
    asked = {"state": states, "user": user, "model": model, "limit": limit, "offset": offset}
    with DaemonClient(where) as daemon:
        reply = daemon.get("/jobs", asked)
    if as_json:
        print(reply.text)
    else:
        show_jobs(reply.value)


def show_jobs(page: dict[str, Any]) -> None:
    """A page of jobs for people."""
    out = stdout()
    if not page["jobs"]:
        out.print("No jobs." if not page["total"] else f"There are only {page['total']:,} jobs.", markup=False)
        return
    is_shadow = page.get("backend") == SHADOW_MODE
    rows = [job_cells(live, page["starts"].get(live["id"]), page["time_s"], is_shadow) for live in page["jobs"]]
    out.print(jobs_table(rows, out.width))
    first, shown = page["offset"] + 1, len(page["jobs"])
    if page["total"] > shown:
        rest = f"Jobs {first:,} to {first + shown - 1:,} of {page['total']:,}; --offset and --limit show others."
        out.print(Text(rest, "dim"))


def jobs_table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """The lines of jobs (job_cells) as a table of at most this width."""
    table = plain_table()
    for heading in _HEADINGS:
        is_number = heading in ("GPUs", "for")
        style = "cyan" if heading == "job" else None
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True, style=style)
    for row in fitted(_HEADINGS, rows, width, GIVING):
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
    return table


def job_cells(
    live: dict[str, Any], start: dict[str, Any] | None, now: float, is_shadow: bool = False
) -> tuple[str, ...]:
    """A job's line: id, user, name, GPUs, state, since when, and where it is or when it starts."""
    job = live["job"]
    user, name = ("–", "–") if live["is_hidden"] else (job["user"], job["name"])
    gpus = f"{job['gpus']}" if job["share"] >= 1000 else f"{job['share'] / 1000:g}"
    since = job["submit_s"] if live["state"] == "waiting" else live["started_s"]
    until = live["ended_s"] if live["ended_s"] is not None else now
    lasted = "–" if since is None else short(until - since)
    last = predicted(start, now, is_shadow) if live["state"] == "waiting" else _place(live["parts"])
    cells = (live["id"], user, name, gpus, live["state"], lasted, last)
    return tuple(printable(cell) for cell in cells)


def predicted(start: dict[str, Any] | None, now: float, is_shadow: bool = False) -> str:
    """When a job is predicted to start, from now, with its interval; in shadow mode, when it would."""
    if start is None or start["middle_s"] is None:
        return "not predicted yet"
    would = "would start " if is_shadow else ""
    middle = start["middle_s"] - now
    text = f"{would}any moment" if middle <= 0 else f"{would}in {short(middle)}"
    if start["low_s"] is None or start["high_s"] is None or start["high_s"] <= now:
        return text
    low = "now" if start["low_s"] <= now else short(start["low_s"] - now)
    return f"{text} ({low}–{short(start['high_s'] - now)})"


def _place(parts: list[dict[str, Any]]) -> str:
    """Where a job is."""
    return ", ".join(
        part["node"] + (f"[{','.join(map(str, part['indices']))}]" if part["indices"] else "") for part in parts
    )


def short(seconds: float) -> str:
    """A duration in a few characters."""
    seconds = max(seconds, 0.0)
    for unit, name in ((86_400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= unit:
            count = seconds / unit
            return f"{count:.1f}{name}" if count < 9.95 else f"{count:.0f}{name}"
    return f"{seconds:.0f}s"


# ---- why -------------------------------------------------------------------------------------------------------------


@spread_into_flags
def why(
    job: JobArgument,
    scores: Annotated[bool, typer.Option("--scores", help="Also show the policy's score of each place.")] = False,
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NS", help="Namespace of a pod on Kubernetes, as in why pod/NAME."),
    ] = "",
    as_json: Json = False,
    *,
    where: Where,
) -> None:
    """Explain why a job waits and when it is predicted to start, or why it runs where it does."""
    with DaemonClient(where) as daemon:
        reply = daemon.get(f"/jobs/{in_path(id_of(job, namespace))}/why")
        if as_json:
            print(reply.text)
            return
        found = reply.value
        page = daemon.get("/jobs", {"limit": 1}).value if found["start"] else {"time_s": 0.0}
    out = stdout()
    for line in _in_words(found, page["time_s"], page.get("backend") == SHADOW_MODE):
        out.print(Text(printable(line)))
    if found["places"]:
        show_list(
            (("  on", "name"), ("why not there now", "text")),
            [(f"  {printable(one['model'])}", printable(one["answer"])) for one in found["places"]],
        )
    if found["decision"]:
        show_decision(found["decision"], found["text"], scores)


def id_of(job: str, namespace: str) -> str:
    """The id of a job; that of a pod is its namespace and its name."""
    name = job.removeprefix("pod/")
    return f"{namespace or 'default'}.{name}" if namespace or name != job else job


def _in_words(found: dict[str, Any], now: float, is_shadow: bool = False) -> list[str]:
    """The answer, as sentences."""
    dominant = f" ({found['dominant']})" if found["dominant"] not in ("", found["state"]) else ""
    lines = [f"Job {found['job']}, {found['state']}{dominant}: {found['text']}"]
    if found["rule"]:
        lines.append(f"Rule: {found['rule']}.")
    if found["state"] == "waiting":
        lines.append(start_in_words(found["start"], now, is_shadow))
        if found["ahead"] is not None:
            count = found["ahead"]
            ahead = {0: "No job is", 1: "1 job is"}.get(count, f"{count:,} jobs are")
            lines.append(f"{ahead} expected to start before it.")
    return lines


def start_in_words(start: dict[str, Any] | None, now: float, is_shadow: bool = False) -> str:
    """When a job that waits is predicted to start, from now and by the clock, with its interval."""
    if start is None or start["middle_s"] is None:
        return "Its start cannot be predicted yet."
    will = "would start" if is_shadow else "is predicted to start"
    middle = start["middle_s"]
    line = f"It {will} any moment" if middle < now + 1 else f"It {will} in {length(middle - now)}"
    if middle >= now + 1:
        line += f", at {moment(middle, now)}"
    if start["low_s"] is not None and start["high_s"] is not None and start["high_s"] > now:
        low = max(start["low_s"], now)
        line += f" (most likely {day(low, now)}{clock(low)} to {day(start['high_s'], now)}{clock(start['high_s'])})"
    return f"{line}."


def show_decision(decision: dict[str, Any], said: str, scores: bool = False) -> None:
    """The decision that placed a job, with the other places and similar past jobs; without what was printed already."""
    out = stdout()
    runs = ""
    if decision["runtime_s"] is not None:
        runs = f" Predicted to run {length(decision['runtime_s'])}"
        if decision["low_s"] is not None and decision["high_s"] is not None:
            runs += f" ({length(decision['low_s'])} to {length(decision['high_s'])})"
        runs += "."
    reason = decision["reason"].rstrip(".")
    reason = f": {reason}." if reason and reason not in said else "."
    out.print(Text(printable(f"Decided by {decision['policy']} in turn {decision['tick']}{reason}{runs}")))
    if decision["alternatives"]:
        columns = [("  place", "name"), ("GPU", "left"), ("would run", "right"), ("", "left")]
        rows = [
            [
                f"  {printable(_place(one['parts']))}",
                printable(one["parts"][0]["model"]) if one["parts"] else "–",
                length(one["runtime_s"]),
                "chosen" if one["chosen"] else "",
            ]
            for one in decision["alternatives"]
        ]
        if scores:
            columns.insert(2, ("score", "right"))
            for row, one in zip(rows, decision["alternatives"], strict=True):
                row.insert(2, "–" if one["score"] is None else f"{one['score']:.3f}")
        show_list(tuple(columns), [tuple(row) for row in rows])
    if like := [one for one in decision["like"] if one["name"] or one["user"]]:
        past = ", ".join(f"{one['name']} of {one['user']} (ran {length(one['runtime_s'])})" for one in like)
        out.print(Text(printable(f"Similar past jobs: {past}.")))


# ---- submit, cancel --------------------------------------------------------------------------------------------------


def amount_option(each: Property) -> tuple[str, Any, Any]:
    """The option of `adlro submit` for an amount that a job asks for."""
    if each.kind is bool:
        option = typer.Option(f"--{each.name.replace('_', '-')}", help=each.user_words)
    elif each.kind is str:
        option = typer.Option(metavar=each.option, help=each.user_words, show_default=False)
    else:
        option = typer.Option(metavar=each.option, min=each.least, max=each.most, help=each.user_words)
    return each.name, Annotated[each.kind, option], each.default


PlainAmounts: Any = make_dataclass(
    "PlainAmounts", [amount_option(each) for each in properties_of(Job) if each.option], frozen=True
)


class Amounts(PlainAmounts):  # type: ignore[misc]  # its fields come from Job
    """What a job asks for besides GPUs, and what may be done to it."""


@spread_into_flags
def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The command to run, as separate words; no shell interprets it."),
    ] = None,
    family: Annotated[
        str, typer.Option(metavar="NAME", help="Its family in the speed table (adlro speeds).")
    ] = "uniform",
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="Number of GPUs, all of one model.")] = 1,
    share: Annotated[
        float, typer.Option(metavar="X", min=0.001, max=1, help="Fraction of one GPU, as in 0.5.", show_default=False)
    ] = 1.0,
    limit: Annotated[str, typer.Option(metavar="TIME", help="Its time limit: 2h, 90m, 1d12h or 1:30:00.")] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="Name of the job.")] = "",
    models: Annotated[str, typer.Option(metavar="A,B", help="GPU models it may run on. Default: all.")] = "",
    *,
    amounts: Amounts,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set an environment variable of the job (repeatable).")
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Working directory. Default: the current one.", show_default=False),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Submit for another user; operators only.")] = "",
    as_json: Json = False,
    where: Where,
) -> None:
    """Submit a job, as in: adlro submit --gpus 2 --family learning --limit 2h --name x -- python train.py."""
    job: dict[str, Any] = {
        "family": family, "gpus": gpus, "share": max(1, round(1000 * share)), "name": name, "user": user,
        "models": [one.strip() for one in models.split(",") if one.strip()],
        "limit_s": seconds(limit) if limit else None, **vars(amounts),
    }  # fmt: skip
    sent = {
        "job": job,
        "command": command or [],
        "directory": os.getcwd() if directory is None else str(Path(directory).absolute()),
        "environment": dict(pair(one) for one in env or ()),
    }
    with DaemonClient(where) as daemon:
        reply = daemon.ask("/jobs", method="POST", body=sent)
    assert reply is not None
    if as_json:
        print(reply.text)
    else:
        id = printable(str(reply.value["id"]))
        print(f"Job {id} is in the queue. `adlro why {id}` says when it is predicted to start, or why it cannot.")


@spread_into_flags
def cancel(job: JobArgument, as_json: Json = False, *, where: Where) -> None:
    """Cancel a job, waiting or running: one of yours, or any as an operator."""
    with DaemonClient(where) as daemon:
        reply = daemon.ask(f"/jobs/{in_path(job)}", method="DELETE")
    assert reply is not None
    print(reply.text if as_json else f"Job {printable(job)} is cancelled.")


def seconds(text: str) -> float:
    """A time limit in seconds: 2h, 90m, 1d12h, 1:30:00, 2-00:00:00, or a number of seconds."""
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        found = 86_400.0 * days + 3600.0 * hours + 60.0 * minutes + rest
    else:
        parts = PARTS_OF_TIME.findall(text)
        if "".join(number + unit for number, unit in parts) == text.strip() != "":
            found = sum(float(number) * _UNITS[unit] for number, unit in parts)
        else:
            try:
                found = float(text)
            except ValueError:
                found = 0.0
    if not 0 < found <= 1e9:
        raise UsageError(f"--limit is {text!r}; expected a time, as in 2h, 90m, 1d12h or 1:30:00 (h:m:s).")
    return found


def pair(text: str) -> tuple[str, str]:
    """KEY and VALUE of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise UsageError(f"--env is {text!r}; expected KEY=VALUE.")
    return key, value


# ---- top -------------------------------------------------------------------------------------------------------------


@spread_into_flags
def top(
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    every: Annotated[float, typer.Option(metavar="S", min=0.2, max=3600, help="Seconds between two updates.")] = 1.0,
    as_json: Json = False,
    *,
    where: Where,
) -> None:
    """Watch GPUs, jobs and alarms in the terminal; q quits. If the output is not a terminal, print once."""
    from adlro.cli.top import frame, watch

    out = stdout()
    with DaemonClient(where) as daemon:
        reply = daemon.get("/state", {"waiting": 200})
        if as_json:
            print(reply.text)
        elif once or not out.is_terminal:
            width, height = (out.width, out.height) if out.is_terminal else (KEPT_WIDTH, KEPT_HEIGHT)
            out.print(frame(reply.value, width, height - 1), width=width)
        else:
            watch(daemon, reply, every, out)


# ---- tokens ----------------------------------------------------------------------------------------------------------

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The daemon's config file, if there is one.")
]
TokensFile = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="The token file. Default: the daemon's.")
]


@app_of_tokens.command("add")
def add_token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The owner. For the role user: a login name, not a number.")
    ],
    role: Annotated[str, typer.Option(metavar="ROLE", help="viewer, user or operator.")] = "user",
    config: ConfigFile = None,
    file: TokensFile = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it. It cannot be shown again, because only its hash is stored."""
    token = open_tokens(config, file).add(name, role)
    if as_json:
        print_json({"name": name, "role": role, "token": token})
    else:
        print(f"export ADLRO_TOKEN={token}")


@app_of_tokens.command("list")
def list_tokens(config: ConfigFile = None, file: TokensFile = None, as_json: Json = False) -> None:
    """List the tokens: name, role and when each was made."""
    kept = open_tokens(config, file).read()
    if as_json:
        print_json([{"name": one.name, "role": one.role, "made_s": one.made_s} for one in kept])
    elif not kept:
        print("No tokens. `adlro token add NAME --role operator` makes one.")
    else:
        show_list(
            (("name", "name"), ("role", "left"), ("made", "left")),
            [(one.name, one.role, time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(one.made_s))) for one in kept],
        )


@app_of_tokens.command("remove")
def remove_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token.")],
    config: ConfigFile = None,
    file: TokensFile = None,
) -> None:
    """Revoke a token; this takes effect within a second."""
    open_tokens(config, file).remove(name)
    print(f"The token of {name} is revoked.")


def open_tokens(config: Path | None, file: Path | None) -> "TokenFile":
    """The file of tokens of the daemon with this config."""
    from adlro.api.tokens import TokenFile
    from adlro.daemon.config import load_config

    settings = load_config(config).api_settings()
    path = file or settings.token_file
    assert path is not None
    return TokenFile(path, owners=settings.owners)
