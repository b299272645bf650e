"""A Slurm cluster for the daemon: the back end put together, and the watchdog. setup.py sets it up."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adlro.backends.slurm.commands import Commands, Patience
from adlro.backends.slurm.giving_back import GivenBack, give_back_all
from adlro.backends.slurm.kept import plan_from
from adlro.backends.slurm.nodes import DEFAULT_NETWORK, FamilyPattern, Naming
from adlro.backends.slurm.options import FamilyPatternTable, SlurmOptions
from adlro.backends.slurm.orders import Handing, Slurm
from adlro.backends.slurm.reader import Reader
from adlro.backends.slurm.rest import Rest, connection_to
from adlro.backends.slurm.sources import CommandSource, RestSource, SlurmSource
from adlro.backends.slurm.ways import CommandWay, RestWay, Way
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import family_pattern, is_family
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.core.accounts import own_account_name
from adlro.core.errors import BackendError, CatalogueError, ConfigError
from adlro.core.ports import Backend
from adlro.core.records import GpuModel
from adlro.ingest.telemetry.names import model_of, near_models

TOKEN_S: Final = 3600
_STARTING_S: Final = 1800.0
"""A unit may take this long to start: after an upgrade `adlro warm` compiles first."""

_NO_JOBS: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class SlurmParts:
    """The parts of a Slurm back end."""

    reader: Reader
    rest: Rest | None
    commands: Commands | None

    def close(self) -> None:
        """Close the connection."""
        if self.rest is not None:
            self.rest.close()


def slurm_backend(options: SlurmOptions, min_uid: int = 0) -> Backend:
    """The back end of these options. Nothing is asked of Slurm yet.

    `min_uid` is the lowest uid that jobs may run as; 0 is UID_MIN of /etc/login.defs.
    """
    check_submitting(options.submit_as, options.command_line)
    parts = slurm_parts(options)
    partition = options.submit_partition or next(iter(options.partitions), "")
    handing = Handing(options.submit_as, partition, min_uid=min_uid)
    return Slurm(parts.reader, parts.rest, parts.commands, handing, grace_s=options.grace_s)


def check_submitting(submit_as: str, has_commands: bool) -> None:
    """Raise ConfigError unless jobs can be submitted as this account."""
    if submit_as not in ("nobody", "self", "user"):
        raise ConfigError(f"submit_as is '{submit_as}'; expected nobody, self or user.")
    if submit_as == "user" and not (has_commands and os.geteuid() == 0):
        raise ConfigError(
            "submit_as is 'user': the daemon must be root, and command_line must be true, so that sbatch runs as the "
            "job's user. slurmrestd would run the job as the owner of the daemon's own token."
        )


def slurm_parts(options: SlurmOptions) -> SlurmParts:
    """The reader and the ways to reach Slurm for these options."""
    if options.conf and not Path(options.conf).is_file():  # Slurm's commands would look for a server for minutes
        raise ConfigError(f"[slurm] conf: '{options.conf}' does not exist; expected the path of slurm.conf.")
    commands = Commands(options.conf, options.timeout_s) if options.command_line else None
    rest = None
    if options.rest:
        connection_to(options.rest, options.timeout_s)  # a bad address is told now
        token = None if options.rest.startswith(("unix:", "/")) else token_of(options, commands)
        rest = Rest(options.rest, options.user, token, options.timeout_s)
    sources: list[SlurmSource] = [RestSource(rest)] if rest else []
    sources += [CommandSource(commands)] if commands else []
    if not sources:
        raise ConfigError(
            "[slurm] has neither rest nor command_line = true, so Slurm cannot be reached. Set one of them."
        )
    naming = naming_of(options)
    if commands is None:
        return SlurmParts(Reader(sources, naming), rest, commands)
    return SlurmParts(
        Reader(sources, naming, patience=Patience(commands), ask_plan=plan_from(commands)), rest, commands
    )


def naming_of(options: SlurmOptions) -> Naming:
    """How this site's names map to ours."""
    cluster = load_cluster(options.cluster) if options.cluster else None
    own = cluster.models if cluster else {}
    types = _types(options.types, own)
    return Naming(
        model_of=_remembered(
            lambda name: types.get(name.lower()) or model_of(name, lambda word: find_gpu(word, own)),
        ),
        nearest=_nearest_models,
        is_family=is_family,
        families=tuple(map(_rule, options.families)),
        partitions=frozenset(options.partitions),
        links={node.name: node.link for node in cluster.nodes} if cluster else {},
        network=cluster.network if cluster else DEFAULT_NETWORK,
        name=cluster.name if cluster else "slurm",
        submitters=frozenset(filter(None, [own_account_name(), options.user]))
        if options.submit_as == "self"
        else _NO_JOBS,
    )


def _types(named: Mapping[str, str], own: Mapping[str, GpuModel]) -> dict[str, GpuModel]:
    """The GPU models that the site's config gives to its GRES types."""
    try:
        return {kind.lower(): find_gpu(model, own) for kind, model in named.items()}
    except CatalogueError as error:
        raise ConfigError(f"[slurm.types]: {error}") from None


def _nearest_models(kind: str) -> list[str]:
    """Models that a GRES type may mean: those of the architecture with this name, else those with similar names."""
    models = gpu_models()
    named = [name for name, model in models.items() if model.architecture.lower() == kind.lower() != ""]
    return named or near_models(kind, models)


def _remembered(find: Callable[[str], GpuModel | None]) -> Callable[[str], GpuModel | None]:
    """The same function with a cache."""
    known: dict[str, GpuModel | None] = {}

    def ask(word: str) -> GpuModel | None:
        if word not in known:
            known[word] = find(word)
        return known[word]

    return ask


def _rule(table: FamilyPatternTable) -> FamilyPattern:
    return FamilyPattern(*family_pattern(table.pattern, table.family, "slurm.families"), table.field)


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
            raise BackendError("slurmrestd over TCP needs a token. Set jwt_file of [slurm], or SLURM_JWT.")
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
        return give_back_all(parts.reader, ways, now_s)


def is_answered(url: str, timeout_s: float = 5.0) -> bool:
    """Whether the daemon at this address reports ready."""
    return status_of(url, timeout_s) in range(200, 300)


def status_of(url: str, timeout_s: float = 5.0) -> int | None:
    """The HTTP status at this address; None if there is no answer."""
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    connection = connection_to(f"{parts.scheme}://{parts.netloc}", timeout_s)
    try:
        connection.request("GET", parts.path or "/readyz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def stays_silent(
    url: str,
    patience_s: float,
    unit: str = "",
    sleep: Callable[[float], None] = time.sleep,
    every_s: float = 10.0,
) -> bool:
    """Whether the daemon is not ready for so long.

    An API that does not answer at all may only be busy: then the daemon counts as gone if its unit is, too.
    """
    left = patience_s
    while not is_answered(url):
        if left <= 0:
            return not unit or status_of(url) is not None or not is_alive(unit, patience_s)
        sleep(min(every_s, left))
        left -= every_s
    return False


def is_alive(unit: str, within_s: float) -> bool:
    """Whether systemd has heard from this unit within the last seconds (WatchdogSec=), or starts it just now.

    A start that follows a failure does not count: a daemon that fails again and again must not keep the queue.
    """
    keys = ("ActiveState", "SubState", "NRestarts", "InactiveExitTimestampMonotonic", "WatchdogTimestampMonotonic")
    command = ["systemctl", "show", unit, *(f"--property={key}" for key in keys)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    told = dict(line.partition("=")[::2] for line in ran.stdout.splitlines())
    if told.get("ActiveState") == "activating":
        is_first = told.get("SubState") in ("start-pre", "start") and told.get("NRestarts", "0") == "0"
        return is_first and _is_within(_STARTING_S, told.get("InactiveExitTimestampMonotonic", ""))
    is_active = told.get("ActiveState") == "active"
    return is_active and _is_within(max(within_s, 60.0), told.get("WatchdogTimestampMonotonic", ""))


def _is_within(seconds: float, moment: str) -> bool:
    """Whether a time from systemd (in microseconds; 0: never) is at most this long ago."""
    return moment.isdigit() and moment != "0" and time.monotonic() - int(moment) / 1e6 <= seconds
