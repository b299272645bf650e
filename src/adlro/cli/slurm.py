"""For administrators of a Slurm: what ADLRO needs there, what is missing, and how to give the queue back."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adlro.cli.lists import Json
from adlro.cli.output import print_json, say, stdout
from adlro.core.errors import BackendError, UsageError

if TYPE_CHECKING:
    from adlro.serve.slurm import SlurmOptions

READY: Final = "http://127.0.0.1:8321/readyz"
MARKS: Final = {"good": ("ok", "green"), "odd": ("note", "yellow"), "missing": ("missing", "red")}

app = typer.Typer(
    help="Set up, check and give back a Slurm cluster (docs/slurm.md).", no_args_is_help=True, rich_markup_mode="rich"
)

RestAt = Annotated[
    str, typer.Option("--rest", metavar="ADDRESS", help="slurmrestd: unix:PATH, http://HOST:PORT or https://….")
]
User = Annotated[str, typer.Option("--user", help="The name that the token belongs to.")]
JwtFile = Annotated[str, typer.Option("--jwt-file", metavar="FILE", help="A file with the token for slurmrestd.")]
Conf = Annotated[str, typer.Option("--conf", metavar="FILE", help="slurm.conf, if it is not where Slurm looks.")]
Partition = Annotated[
    list[str] | None, typer.Option("--partition", "-p", help="Only this partition (may be said again).")
]


@app.command()
def check(
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Tell what is there and what is missing for ADLRO to place jobs in this Slurm. Changes nothing."""
    from dataclasses import asdict

    from rich.text import Text

    from adlro.cli.output import plain_table
    from adlro.serve.slurm import check as findings_of

    findings = findings_of(options_of(rest, user, jwt_file, conf, partition))
    missing = sum(finding.verdict == "missing" for finding in findings)
    if as_json:
        print_json({"ready": not missing, "findings": [asdict(finding) for finding in findings]})
    else:
        table = plain_table(header=False)
        for finding in findings:
            word, colour = MARKS[finding.verdict]
            table.add_row(Text(word, colour), Text(finding.what, "bold"), Text(finding.text))
        stdout().print(table)
        if missing:
            say(f"adlro: {missing} {'thing is' if missing == 1 else 'things are'} missing.")
    raise typer.Exit(1 if missing else 0)


@app.command()
def install(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and change nothing.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FOLDER", help="Write the files into this folder to look at.")
    ] = None,
    daemon: Annotated[str, typer.Option("--daemon", metavar="NAME", help="The account that the daemon has.")] = "slurm",
    ready: Annotated[str, typer.Option("--ready", metavar="URL", help="Where the daemon tells that it is up.")] = READY,
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print what an administrator must add to Slurm, and how to undo it.

    That is job_submit.lua, lines of slurm.conf, and the watchdog. Slurm itself is never changed by this command: the
    files are yours to look at and to put in place.
    """
    import pwd
    from dataclasses import asdict

    from adlro.serve.slurm import setup, sites_now, undo

    if not dry_run and write is None:
        raise UsageError(
            "adlro does not change Slurm by itself: 'adlro slurm install --dry-run' prints what to add, "
            "'--write FOLDER' writes it into a folder."
        )
    try:
        uid: int | None = pwd.getpwnam(daemon).pw_uid
    except KeyError:
        uid = None
        say(f"adlro: there is no account '{daemon}' here; put its number into PLACERS of job_submit.lua.")
    options = options_of(rest, user, jwt_file, conf, partition)
    sites = sites_now(options)
    if not sites:
        say("adlro: Slurm does not answer; the names of partitions and GPU types in these files are examples.")
    files = setup(options, sites, user=daemon, uid=uid, ready=ready)
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for file in files:
            (write / Path(file.path).name).write_text(file.text, encoding="utf-8")
        say(f"adlro: {len(files)} files are in {write}.")
    if as_json:
        print_json({"files": [asdict(file) for file in files], "undo": undo()})
    elif dry_run:
        for file in files:
            print(f"# ==== {file.path}: {file.why}\n{file.text}")
        print("# ==== then\n#   systemctl restart slurmctld && systemctl daemon-reload")
        print("#   systemctl enable --now adlro-release.timer && adlro slurm check")
        print("# ==== to undo it\n" + "\n".join(f"#   {line}" for line in undo()))


@app.command("release-all")
def release(
    unless_ready: Annotated[
        str, typer.Option("--unless-ready", metavar="URL", help="Do nothing if the daemon says there that it is ready.")
    ] = "",
    patience: Annotated[
        float, typer.Option("--patience", min=0, metavar="SECONDS", help="How long it may be silent first.")
    ] = 0.0,
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Give every job that waits for ADLRO back to Slurm: no longer pinned to nodes, no longer held.

    The daemon need not be alive. Doing it twice does no harm, and jobs that run go on.
    """
    from dataclasses import asdict

    from adlro.serve.slurm import give_back, stays_silent

    if unless_ready and not stays_silent(unless_ready, patience):
        if as_json:
            print_json({"daemon": "ready", "jobs": []})
        else:
            print("The daemon is ready: nothing was given back.")
        return
    given = give_back(options_of(rest, user, jwt_file, conf, partition), time.time())
    failed = [job for job in given if not job.done]
    if as_json:
        print_json({"daemon": "silent" if unless_ready else "not asked", "jobs": [asdict(job) for job in given]})
    else:
        for job in given:
            print(f"{job.job}: {'is back with Slurm' if job.done else f'NOT given back: {job.said}'}")
        print(f"{len(given) - len(failed)} of {len(given)} jobs that waited for ADLRO are Slurm's again.")
    if failed:
        raise BackendError(f"{len(failed)} jobs could not be given back; the first, {failed[0].job}: {failed[0].said}")


def options_of(rest: str, user: str, jwt_file: str, conf: str, partitions: list[str] | None) -> "SlurmOptions":
    """The options of a command line."""
    from adlro.serve.slurm import SlurmOptions

    conf = conf or os.environ.get("SLURM_CONF", "")
    return SlurmOptions(rest=rest, user=user, jwt_file=jwt_file, conf=conf, partitions=tuple(partitions or ()))
