"""A Slurm cluster for the daemon and its administrators: the back end put together, what is missing, how to set up."""

import getpass
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from adlro.act.slurm import CommandWay, GivenBack, Handing, RestWay, Slurm, Way, release_all
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import find_family
from adlro.catalogue.gpus import find_gpu
from adlro.core.errors import BackendError, CatalogueError, ConfigError
from adlro.core.ports import Backend
from adlro.core.records import GpuModel
from adlro.ingest.slurm_jobs import (
    DEFAULT_NETWORK,
    FamilyRule,
    Naming,
    Site,
)
from adlro.ingest.slurm_live import Commands, CommandSource, Reader, Rest, RestSource, Source, connection_to
from adlro.ingest.telemetry.names import model_of

FIELDS: Final = ("name", "partition", "comment")
TOKEN_S: Final = 3600
COMMANDS: Final = ("scontrol", "squeue", "sinfo", "sbatch", "scancel")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What a site may set about its Slurm."""

    rest: str = ""
    """slurmrestd: unix:/path, http://host:port or https://host:port; "" for the command line alone."""
    user: str = ""
    """Whom the token is for, over TCP."""
    jwt_file: str = ""
    """A file with the token, read again when one has expired; "" for $SLURM_JWT, else `scontrol token`."""
    conf: str = ""
    """slurm.conf for the command line; "" is where Slurm looks for it."""
    command_line: bool = True
    """Whether Slurm's commands may be used: as a fallback, and for what slurmrestd cannot do (stopping jobs)."""
    partitions: tuple[str, ...] = ()
    """Only these, with their nodes; none: all."""
    families: tuple[tuple[str, str, str], ...] = ()
    """(field, regular expression, family): the first that fits decides; field is name, partition or comment."""
    cluster: str = ""
    """A cluster file that says how GPUs and nodes are joined, for nodes of the same names."""
    submit_as: str = "nobody"
    """Which account jobs of ADLRO's API run as: nobody (none are taken), self (the daemon's), user (their user's)."""
    submit_partition: str = ""
    min_uid: int = 0
    """The lowest uid that jobs may run as; 0 is UID_MIN of /etc/login.defs."""
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a back end is made of."""

    reader: Reader
    rest: Rest | None
    commands: Commands | None

    def close(self) -> None:
        """Let the connection go."""
        if self.rest is not None:
            self.rest.close()


def slurm_backend(options: SlurmOptions) -> Backend:
    """The back end of these options. Nothing is asked of Slurm yet."""
    check_submitting(options.submit_as, options.command_line)
    parts = slurm_parts(options)
    partition = options.submit_partition or next(iter(options.partitions), "")
    handing = Handing(options.submit_as, partition, min_uid=options.min_uid)
    return Slurm(parts.reader, parts.rest, parts.commands, handing)


def check_submitting(submit_as: str, has_commands: bool) -> None:
    """Raise ConfigError unless jobs can be handed in as this account."""
    if submit_as not in ("nobody", "self", "user"):
        raise ConfigError(f"submit_as is '{submit_as}'; expected nobody, self or user.")
    if submit_as == "user" and not (has_commands and os.geteuid() == 0):
        raise ConfigError(
            "submit_as is 'user': the daemon must be root, and command_line must be true, so that sbatch runs as the "
            "job's user. slurmrestd would run the job as the owner of the daemon's own token."
        )


def slurm_parts(options: SlurmOptions) -> Parts:
    """The reader and the ways to Slurm of these options."""
    commands = Commands(options.conf, options.timeout_s) if options.command_line else None
    rest = None
    if options.rest:
        connection_to(options.rest, options.timeout_s)  # a bad address is told now
        token = None if options.rest.startswith(("unix:", "/")) else token_of(options, commands)
        rest = Rest(options.rest, options.user, token, options.timeout_s)
    sources: list[Source] = [RestSource(rest)] if rest else []
    sources += [CommandSource(commands)] if commands else []
    if not sources:
        raise ConfigError("there is no way to Slurm: name slurmrestd with rest = …, or set command_line = true.")
    return Parts(Reader(sources, naming_of(options)), rest, commands)


def naming_of(options: SlurmOptions) -> Naming:
    """How this site's words become ours."""
    cluster = load_cluster(options.cluster) if options.cluster else None
    own = cluster.models if cluster else {}
    return Naming(
        model_of=_remembered(lambda name: model_of(name, lambda word: find_gpu(word, own))),
        is_family=_is_family,
        families=tuple(_rule(*rule) for rule in options.families),
        partitions=frozenset(options.partitions),
        links={node.name: node.link for node in cluster.nodes} if cluster else {},
        network=cluster.network if cluster else DEFAULT_NETWORK,
        name=cluster.name if cluster else "slurm",
    )


def _remembered(find: Callable[[str], GpuModel | None]) -> Callable[[str], GpuModel | None]:
    """The same function, asked once for each word."""
    known: dict[str, GpuModel | None] = {}

    def ask(word: str) -> GpuModel | None:
        if word not in known:
            known[word] = find(word)
        return known[word]

    return ask


def _rule(field: str, pattern: str, family: str) -> FamilyRule:
    if field not in FIELDS:
        raise ConfigError(f"a rule for families looks at '{field}'; expected one of {', '.join(FIELDS)}.")
    try:
        return FamilyRule(re.compile(pattern), find_family(family).name, field)
    except re.error as error:
        raise ConfigError(f"'{pattern}' is no regular expression: {error}.") from None
    except CatalogueError as error:
        raise ConfigError(f"the rule '{pattern}': {error}") from None


def _is_family(name: str) -> bool:
    try:
        return find_family(name).name == name
    except CatalogueError:
        return False


def token_of(options: SlurmOptions, commands: Commands | None) -> Callable[[], str]:
    """Where tokens for slurmrestd come from. They are never told to anybody else."""

    def token() -> str:
        if options.jwt_file:
            try:
                return Path(options.jwt_file).read_text(encoding="utf-8").strip().rpartition("=")[2]
            except OSError as error:
                raise BackendError(f"the token file {options.jwt_file} cannot be read: {error.strerror}.") from None
        if os.environ.get("SLURM_JWT"):
            return os.environ["SLURM_JWT"]
        if commands is None:
            raise BackendError("slurmrestd over TCP wants a token: set jwt_file, or SLURM_JWT.")
        words = [f"username={options.user}"] if options.user else []
        ran = commands.run(["scontrol", "token", *words, f"lifespan={TOKEN_S}"])
        if ran.code != 0:
            raise BackendError(f"'scontrol token' fails: {ran.said}")
        return ran.out.strip().rpartition("=")[2]

    return token


# ---- the watchdog ------------------------------------------------------------------------------------------------


def give_back(options: SlurmOptions, now_s: float) -> list[GivenBack]:
    """Give every job that waits because of ADLRO back to Slurm; the daemon need not be alive."""
    parts = slurm_parts(options)
    # The commands first: this must work when all else is broken.
    ways: list[Way] = [CommandWay(parts.commands)] if parts.commands else []
    ways += [RestWay(parts.rest)] if parts.rest else []
    with closing(parts):
        return release_all(parts.reader, ways, now_s)


def is_answered(url: str, timeout_s: float = 5.0) -> bool:
    """Whether the daemon at this address says that it is ready."""
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    connection = connection_to(f"{parts.scheme}://{parts.netloc}", timeout_s)
    try:
        connection.request("GET", parts.path or "/readyz")
        return connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def stays_silent(
    url: str, patience_s: float, sleep: Callable[[float], None] = time.sleep, every_s: float = 10.0
) -> bool:
    """Whether the daemon is not ready for so long."""
    left = patience_s
    while not is_answered(url):
        if left <= 0:
            return True
        sleep(min(every_s, left))
        left -= every_s
    return False


# ---- what is missing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `verdict` is good, odd (works, but) or missing."""

    what: str
    verdict: str
    text: str


def check(options: SlurmOptions, find: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """What is there and what is missing for ADLRO to place jobs in this Slurm, in words."""
    return list(_findings(options, find))


def _findings(options: SlurmOptions, find: Callable[[str], str | None]) -> Iterator[Finding]:
    if absent := [name for name in COMMANDS if find(name) is None]:
        yield Finding(
            "commands",
            "odd" if options.rest else "missing",
            f"{', '.join(absent)} not found here. Install Slurm's clients (Debian: slurm-client): without them ADLRO "
            "cannot put jobs back, and has no second way when slurmrestd is gone.",
        )
    else:
        yield Finding("commands", "good", "Slurm's commands are installed")
    try:
        parts = slurm_parts(options)
    except (BackendError, ConfigError) as error:
        yield Finding("options", "missing", str(error))
        return
    with closing(parts):
        yield from _cluster_findings(parts)


def _cluster_findings(parts: Parts) -> Iterator[Finding]:
    """What the cluster itself tells."""
    if parts.rest is not None:
        yield _rest_finding(parts.rest)
    else:
        yield Finding(
            "slurmrestd", "odd", "not used: two commands a job instead of one call. Name it with --rest unix:PATH."
        )
    try:
        snapshot = parts.reader.read()
    except BackendError as error:
        yield Finding("slurmctld", "missing", str(error))
        return
    yield from _config_findings(parts.commands)
    yield from _node_findings(parts.reader.sites, [note for note in snapshot.notes if "the GPU type" in note])


def _rest_finding(rest: Rest) -> Finding:
    try:
        status, _ = rest.ask("GET", "/ping")
    except BackendError as error:
        return Finding("slurmrestd", "missing", str(error))
    if status != 200:
        return Finding("slurmrestd", "missing", f"answers {status} to a ping; is slurmctld up?")
    return Finding("slurmrestd", "good", f"answers at {rest.address}, v0.0.{rest.api}")


def read_config(commands: Commands) -> dict[str, str]:
    """What `scontrol show config` tells, by name."""
    ran = commands.run(["scontrol", "show", "config"])
    if ran.code != 0:
        raise BackendError(f"'scontrol show config' fails: {ran.said}")
    pairs = (line.partition("=") for line in ran.out.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _config_findings(commands: Commands | None) -> Iterator[Finding]:
    """What slurm.conf says."""
    if commands is None:
        yield Finding("slurm.conf", "odd", "not looked at: that needs the command line")
        return
    try:
        config = read_config(commands)
    except BackendError as error:
        yield Finding("slurm.conf", "missing", str(error))
        return
    me, (owner, _, number) = getpass.getuser(), config.get("SlurmUser", "").partition("(")
    is_owner = me == owner or number.rstrip(")") == str(os.geteuid())
    if os.geteuid() == 0 or is_owner or _admin_level(commands, me) in ("Operator", "Administrator"):
        yield Finding("rights", "good", f"{me} may place the jobs of others")
    else:
        yield Finding(
            "rights",
            "missing",
            f"{me} is neither root nor SlurmUser ({owner}): it may not place the jobs of others. Run the daemon as "
            f"{owner}, or give {me} the admin level Operator (sacctmgr modify user {me} set adminlevel=Operator).",
        )
    wants = (
        ("SchedulerType", "sched/backfill", "odd", "sched/builtin ignores what is let go out of order"),
        ("SelectType", "select/cons_tres", "missing", "only select/cons_tres gives out GPUs"),
        ("GresTypes", "gpu", "missing", "without it Slurm knows no GPUs"),
        ("JobSubmitPlugins", "lua", "odd", "jobs are only ours if they are handed in with --hold and "
         "--comment=adlro:held; 'adlro slurm install --dry-run' shows the plugin that does it"),
        ("JobRequeue", "1", "odd", "jobs cannot be put back, and do not come back when a node dies"),
    )  # fmt: skip
    for key, wanted, verdict, text in wants:
        value = config.get(key, "")
        good = wanted in re.split(r"[,\s]+", value)
        yield Finding(key, "good" if good else verdict, f"is {value}" if good else f"is {value or 'not set'}: {text}")
    if "MEMORY" in config.get("SelectTypeParameters", "").upper() and not any(
        config.get(key, "").isdigit() for key in ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU")
    ):
        yield Finding(
            "DefMemPerCPU",
            "odd",
            "is not set: a job that names no memory gets all of its node's, and none fits beside it",
        )
    age = re.match(r"\d+", config.get("MinJobAge", ""))
    if age and not 30 <= int(age[0]) <= 3600:
        yield Finding("MinJobAge", "odd", f"is {age[0]} s: from 60 to 600 jobs are seen to end and looks stay cheap")


def _admin_level(commands: Commands, user: str) -> str:
    """What slurmdbd lets a user do; "" where there is none, or it does not say."""
    try:
        ran = commands.run(["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=adminlevel"])
    except BackendError:
        return ""
    return ran.out.strip() if ran.code == 0 else ""


def _node_findings(sites: Mapping[str, Site], problems: Sequence[str]) -> Iterator[Finding]:
    """What the nodes are to us."""
    gpus = sum(len(devices.types) for site in sites.values() for devices in site.devices.values())
    models = sorted({model for site in sites.values() for model in site.devices})
    verdict = "good" if gpus and not problems else "missing"
    yield Finding("nodes", verdict, f"{len(sites)} with {gpus} GPUs: {', '.join(models) or 'none that we know'}")
    yield from (Finding("GPU types", "missing", problem) for problem in problems)
    indexed = [devices.have_types_each for site in sites.values() for devices in site.devices.values()]
    text = "can be asked for by index" if indexed and all(indexed) else "Slurm chooses them on the node we choose"
    yield Finding("devices", "good", text)
    for name, site in sites.items():
        if not site.node.is_up:
            yield Finding(
                "nodes", "odd", f"{name} takes no jobs: {'+'.join(site.node.state).lower()} {site.node.reason}"
            )


# ---- how to set it up --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """A file that an administrator must put somewhere, and why."""

    path: str
    text: str
    why: str


def setup(
    options: SlurmOptions,
    sites: Mapping[str, Site],
    *,
    user: str,
    uid: int | None,
    ready: str,
    folder: str = "/etc/slurm",
    adlro: str = "",
) -> list[Setup]:
    """The files of a site with these nodes: what Slurm itself needs, and the watchdog. Nothing is written."""
    partitions = options.partitions or tuple(sorted({p for site in sites.values() for p in site.node.partitions}))
    values = {
        "PARTITIONS": ", ".join(f'["{_plain(name)}"] = true' for name in partitions or ("gpu",)),
        "PLACERS": "" if uid in (None, 0) else f", [{uid}] = true",
        "TYPES": ", ".join(f'["{_plain(kind)}"] = "{_plain(word)}"' for kind, word in features_of(sites).items()),
        "USER": _plain(user),
        "ADLRO": adlro or shutil.which("adlro") or f"{sys.executable} -m adlro",
        "OPTIONS": _flags(options),
        "READY": ready,
    }
    units = "/etc/systemd/system"
    return [
        Setup(
            f"{folder}/job_submit.lua", _filled("job_submit.lua", values), "marks and holds the jobs that ADLRO places"
        ),
        Setup(
            f"{folder}/slurm.conf", _filled("slurm.conf.lines", values), "lines to add; look at those you have already"
        ),
        Setup(
            f"{units}/adlro-release.service",
            _filled("adlro-release.service", values),
            "gives the queue back to Slurm when ADLRO does not answer for two minutes",
        ),
        Setup(f"{units}/adlro-release.timer", _filled("adlro-release.timer", values), "calls it every minute"),
    ]


def undo(folder: str = "/etc/slurm") -> list[str]:
    """How to take it all away again, as commands."""
    return [
        "systemctl disable --now adlro adlro-release.timer   # ADLRO stops deciding",
        "adlro slurm release-all                             # every job that waits for it is Slurm's again",
        f"rm {folder}/job_submit.lua                           # and take JobSubmitPlugins=lua out of slurm.conf",
        "systemctl restart slurmctld                         # running jobs go on",
        "rm /etc/systemd/system/adlro-release.*; systemctl daemon-reload",
    ]


def features_of(sites: Mapping[str, Site]) -> dict[str, str]:
    """On a site with a type for each device: what users may ask for, and the node feature that means it."""
    found: dict[str, str] = {}
    for site in sites.values():
        for devices in site.devices.values():
            if not devices.have_types_each:
                continue
            kind = re.sub(r"_\d+$", "", devices.types[0])
            others = {
                word
                for other in sites.values()
                if set(other.devices) != set(site.devices)
                for word in other.node.features
            }
            own = [word for word in site.node.features if word not in others]
            if own:
                found[kind] = own[0]
    return found


def sites_now(options: SlurmOptions) -> Mapping[str, Site]:
    """The nodes if Slurm answers; what is printed without them is an example."""
    try:
        with closing(slurm_parts(options)) as parts:
            parts.reader.read()
            return parts.reader.sites
    except (BackendError, ConfigError):
        return {}


def _flags(options: SlurmOptions) -> str:
    """The options of the watchdog's command."""
    words = []
    for flag, value in (("--rest", options.rest), ("--user", options.user), ("--jwt-file", options.jwt_file)):
        words += [flag, value] if value else []
    words += ["--conf", options.conf] if options.conf else []
    for partition in options.partitions:
        words += ["--partition", partition]
    return " " + shlex.join(words) if words else ""


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = resources.files("adlro.serve").joinpath("slurm_files", name).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text).replace("{  }", "{}")


def _plain(name: str) -> str:
    """A name that can stand between quotes."""
    return re.sub(r"[^\w.@-]", "", name)
