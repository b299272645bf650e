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
    from adlro.backends.slurm.options import SlurmOptions

READY: Final = "http://127.0.0.1:8321/readyz"
_MARKS: Final = {"good": ("ok", "green"), "odd": ("note", "yellow"), "missing": ("missing", "red")}

app = typer.Typer(
    help="Check and set up a Slurm cluster for ADLRO, or give its jobs back (docs/slurm.md).",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

RestAt = Annotated[
    str, typer.Option("--rest", metavar="ADDRESS", help="slurmrestd: unix:PATH, http://HOST:PORT or https://….")
]
User = Annotated[str, typer.Option("--user", help="The user that the token belongs to.")]
JwtFile = Annotated[str, typer.Option("--jwt-file", metavar="FILE", help="A file with the token for slurmrestd.")]
Conf = Annotated[
    str, typer.Option("--conf", metavar="FILE", help="Path of slurm.conf, if it is not in Slurm's default place.")
]
Partition = Annotated[list[str] | None, typer.Option("--partition", "-p", help="Only this partition (repeatable).")]
Types = Annotated[
    list[str] | None,
    typer.Option("--types", metavar="TYPE=MODEL", help="The GPU model of a GRES type, as in turing=t4 (repeatable)."),
]


@app.command()
def check(
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    types: Types = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Check whether ADLRO can place jobs on this Slurm, and say what is missing. Changes nothing."""
    from dataclasses import asdict

    from rich.text import Text

    from adlro.backends.slurm.check import check_site as findings_of
    from adlro.measure.text import plain_table

    findings = findings_of(options_of(rest, user, jwt_file, conf, partition, types))
    missing = sum(finding.verdict == "missing" for finding in findings)
    if as_json:
        print_json({"ready": not missing, "findings": [asdict(finding) for finding in findings]})
    else:
        table = plain_table(header=False)
        for finding in findings:
            word, colour = _MARKS[finding.verdict]
            table.add_row(Text(word, colour), Text(finding.what, "bold"), Text(finding.text))
        stdout().print(table)
        if missing:
            say(f"adlro: {missing} {'thing is' if missing == 1 else 'things are'} missing.")
    raise typer.Exit(1 if missing else 0)


@app.command()
def install(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and change nothing.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FOLDER", help="Write the files into this folder.")
    ] = None,
    daemon: Annotated[str, typer.Option("--daemon", metavar="NAME", help="The account of the daemon.")] = "slurm",
    ready: Annotated[str, typer.Option("--ready", metavar="URL", help="The daemon's readiness check.")] = READY,
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    types: Types = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Print or write the files that ADLRO needs on this Slurm, and the commands to install and to undo them.

    These are the job_submit plugin, a diff of slurm.conf if something is missing there, ADLRO's config, and its systemd
    units. This command changes neither Slurm nor systemd.
    """
    import pwd
    from dataclasses import asdict

    from adlro.backends.slurm.setup import notes_of, setup, steps, undo
    from adlro.backends.slurm.site import site_now, unknown_partitions

    if not dry_run and write is None:
        raise UsageError(
            "expected --dry-run, which prints the files, or --write FOLDER, which writes them into a folder. "
            "This command never changes Slurm."
        )
    options = options_of(rest, user, jwt_file, conf, partition, types)
    now = site_now(options)
    if unknown := unknown_partitions(options.partitions, now.partitions):
        raise UsageError(unknown)
    try:
        uid: int | None = pwd.getpwnam(daemon).pw_uid
    except KeyError:
        uid = None
    files = setup(options, now, user=daemon, uid=uid, ready=ready)
    notes = notes_of(options, now, files)
    if uid is None:
        notes.append(f"This machine has no account '{daemon}': put its uid into PLACERS of the plugin.")
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for file in files:
            (write / file.name).write_text(file.text, encoding="utf-8")
        say(f"adlro: {len(files)} files are in {write}.")
    if as_json:
        found = {"files": [asdict(file) for file in files], "undo": undo(options, now, files), "notes": notes}
        print_json(found | {"steps": steps(options, now, files)})
        return
    if dry_run:
        for file in files:
            print(f"# ==== {file.path}{' (diff)' if file.is_diff else ''}: {file.why}\n{file.text}")
    for note in notes:
        print(f"# note: {note}")
    print("# ==== install them: run this in the folder of --write\n" + "\n".join(steps(options, now, files)))
    print("# ==== undo it\n" + "\n".join(undo(options, now, files)))


@app.command("release-all")
def release_jobs(
    unless_ready: Annotated[
        str, typer.Option("--unless-ready", metavar="URL", help="Do nothing if the daemon says here that it is ready.")
    ] = "",
    patience: Annotated[
        float, typer.Option("--patience", min=0, metavar="SECONDS", help="Act only if it was not ready for this long.")
    ] = 0.0,
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            metavar="NAME",
            help="With --unless-ready: if nobody answers, do nothing while systemd still hears from this unit.",
        ),
    ] = "",
    rest: RestAt = "", user: User = "", jwt_file: JwtFile = "", conf: Conf = "", partition: Partition = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Give every job that waits for ADLRO back to Slurm: unpin and release it.

    It works without the daemon and can be repeated. Running jobs continue, and a user's own hold stays.
    """
    from contextlib import closing
    from dataclasses import asdict

    from adlro.backends.slurm.backend import give_back, slurm_parts, stays_silent
    from adlro.backends.slurm.site import read_partitions, unknown_partitions

    options = options_of(rest, user, jwt_file, conf, partition)
    if options.partitions:
        with closing(slurm_parts(options)) as parts:
            known = read_partitions(parts)
        if unknown := unknown_partitions(options.partitions, known):
            if not set(options.partitions) & set(known):
                raise UsageError(unknown)
            say(f"adlro: {unknown}")  # a partition that was removed must not keep the jobs of the others
    if unless_ready and not stays_silent(unless_ready, patience, unit):
        if as_json:
            print_json({"daemon": "ready", "jobs": []})
        else:
            print("The daemon is ready: nothing was given back.")
        return
    given = give_back(options, time.time())
    failed = [job for job in given if not job.done]
    if as_json:
        print_json({"daemon": "silent" if unless_ready else "not asked", "jobs": [asdict(job) for job in given]})
    else:
        for job in given:
            print(f"{job.job}: {'is back with Slurm' if job.done else f'NOT given back: {job.said}'}")
        print(f"{len(given) - len(failed)} of {len(given)} jobs that waited for ADLRO are Slurm's again.")
    if failed:
        raise BackendError(f"{len(failed)} jobs could not be given back; the first, {failed[0].job}: {failed[0].said}")


def options_of(
    rest: str, user: str, jwt_file: str, conf: str, partitions: list[str] | None, types: list[str] | None = None
) -> "SlurmOptions":
    """The options of a command line."""
    from adlro.backends.slurm.options import SlurmOptions

    conf = conf or os.environ.get("SLURM_CONF", "")
    return SlurmOptions(
        rest=rest, user=user, jwt_file=jwt_file, conf=conf, partitions=partitions or [], types=types_of(types)
    )


def types_of(types: list[str] | None) -> dict[str, str]:
    """The GPU model of each GRES type, from TYPE=MODEL."""
    words = [word for text in types or () for word in text.split(",") if word]
    if wrong := next((word for word in words if not word.partition("=")[2]), ""):
        raise UsageError(f"--types is '{wrong}'; expected TYPE=MODEL, as in turing=t4.")
    return {kind: model for kind, _, model in (word.partition("=") for word in words)}
