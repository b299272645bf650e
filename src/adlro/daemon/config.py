"""What a site may set about the daemon: one TOML file, a sentence for each option, and defaults that need no file."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, model_validator

from adlro.api.settings import PORT, ApiSettings
from adlro.core.accounts import Owners, account_of, own_account_name, why_not
from adlro.core.errors import AccountError, ConfigError
from adlro.core.toml import Schema, parse_toml

HIDDEN: Final = "***"


class BackendTable(Schema):
    """[backend]: which cluster; a table of the same name has its options."""

    kind: Literal["simulated", "local", "slurm", "shadow"] = Field(
        default="simulated",
        description="The cluster: simulated, local (this machine), slurm, or shadow (beside a Slurm).",
    )


class SimulatedTable(Schema):
    """[simulated]: a cluster that is not there."""

    cluster: str = Field(
        default="", description='The name of a shipped cluster, or a file; "" is the demo with its jobs.'
    )
    workload: str = Field(default="", description='The jobs that come by themselves (adlro workloads); "" is none.')
    speed: float = Field(default=60.0, gt=0, le=1e6, description="How many times as fast as real time.")
    seed: int = Field(default=0, ge=0, description="The seed of its jobs.")


class LocalTable(Schema):
    """[local]: processes on this machine."""

    gpus: str = Field(
        default="", description='Stand-ins for GPUs, as in "v100:4,t4:2"; "" is those of the file, else those found.'
    )
    cluster: str = Field(default="", description='A cluster file with this machine as its only node; "" is none.')
    folder: str = Field(default="", description='Where jobs and their output are kept; "" is jobs beside the store.')
    grace_s: float = Field(default=10.0, ge=0, description="Seconds between asking a job to end and ending it.")
    shared_account: bool = Field(
        default=False,
        description="Whether a daemon that is not root runs jobs of several users, all as its own account.",
    )


class FamilyTable(Schema):
    """[[slurm.families]]: jobs that fit a pattern are of a family."""

    field: Literal["name", "partition", "comment"] = "name"
    pattern: str = Field(min_length=1)
    family: str = Field(min_length=1)


class SlurmTable(Schema):
    """[slurm]: a Slurm cluster (docs/slurm.md)."""

    rest: str = Field(
        default="", description='slurmrestd: unix:PATH, http://HOST:PORT or https://…; "" is the command line alone.'
    )
    user: str = Field(default="", description="Whom the token for slurmrestd is for, over TCP.")
    jwt_file: str = Field(
        default="",
        description='A file with that token, read again when it expired; "" is $SLURM_JWT, else scontrol token.',
    )
    conf: str = Field(default="", description='slurm.conf for the command line; "" is where Slurm looks for it.')
    command_line: bool = Field(
        default=True, description="Whether Slurm's commands may be used: as a fallback, and to put jobs back."
    )
    partitions: list[str] = Field(default=[], description="Only these partitions, with their nodes; [] is all.")
    families: list[FamilyTable] = Field(
        default=[], description="Tables {field, pattern, family}: the first whose pattern fits says a job's family."
    )
    types: dict[str, str] = Field(
        default={}, description='The GPU model of a GRES type that the catalogue does not know, as in turing = "t4".'
    )
    cluster: str = Field(default="", description="A cluster file that says how GPUs and nodes are joined.")
    submit_as: Literal["nobody", "self", "user"] = Field(
        default="nobody",
        description="Which account the jobs of the API run as: nobody (none are taken), self (the daemon's) or user "
        "(their user's; the daemon must be root).",
    )
    submit_partition: str = Field(default="", description='To which partition; "" is the first of partitions.')
    timeout_s: float = Field(default=30.0, gt=0, le=600, description="The longest that one question to Slurm may take.")


class ShadowTable(Schema):
    """[shadow]: beside a Slurm that schedules itself; [slurm] says which."""

    record: str = Field(
        default="", description='The file of what would have been done; "" is shadow.jsonl beside the store.'
    )


class PolicyTable(Schema):
    """[policy]: who decides."""

    name: str = Field(default="adlro", min_length=1, description="The policy (adlro policies), or a file with one.")
    fallback: str = Field(default="fcfs-first-fit", min_length=1, description="Who decides while the guard steps in.")
    budget_ms: float = Field(
        default=500.0,
        gt=0,
        le=600_000,
        description="The time that one decision may take; a slower policy is replaced by the fallback.",
    )


class GuardTable(Schema):
    """[guard]: when the fallback decides instead."""

    max_wait_s: float = Field(
        default=604_800.0, ge=0, description="No job waits longer: from then on nodes are kept for it. 0 is no bound."
    )
    stale_s: float = Field(
        default=120.0, gt=0, description="A picture of the cluster whose time has not moved for so long is stale."
    )
    guarded_s: float = Field(
        default=600.0, ge=0, description="How long the fallback decides once the guard stepped in."
    )
    window_s: float = Field(
        default=21_600.0, gt=0, description="The time over which the policy is held against the fallback."
    )
    worse_by: float = Field(default=0.1, ge=0, description="By how much it may be predicted to be worse, as a share.")


class StoreTable(Schema):
    """[store]: what the daemon remembers."""

    url: str = Field(
        default="",
        description='sqlite:PATH, sqlite::memory: or postgresql://…; "" is adlro.db in $STATE_DIRECTORY or in '
        "~/.local/state/adlro, and in memory for a simulated cluster.",
    )
    lock: str = Field(
        default="",
        description='The file whose lock the leader holds; "" is beside the database. PostgreSQL needs none.',
    )
    keep_days: float = Field(default=90.0, gt=0, description="What is older is forgotten.")
    keep_jobs: int = Field(default=200_000, ge=1, description="Most jobs that ended and are remembered.")
    keep_decisions: int = Field(default=200_000, ge=1, description="Most decisions that are remembered.")
    keep_ticks: int = Field(default=50_000, ge=1, description="Most turns that are remembered.")


class ApiTable(Schema):
    """[api]: where people and programs ask."""

    is_on: bool = Field(default=True, description="Whether there is an API and a dashboard.")
    host: str = Field(
        default="127.0.0.1", min_length=1, description="The address; others than this machine's need TLS."
    )
    port: int = Field(default=PORT, ge=0, le=65_535, description="The port; 0 is any that is free.")
    auth: Literal["tokens", "off"] = Field(
        default="tokens",
        description="Who is let in: those with a token, or (off) everybody on this machine, as an operator.",
    )
    tokens: str = Field(default="", description='The file of `adlro token`; "" is tokens.json beside the store.')
    min_uid: int = Field(
        default=0,
        ge=0,
        description="The lowest uid that a job may run as; 0 is UID_MIN of /etc/login.defs. Root is always refused.",
    )
    hosts: list[str] = Field(default=[], description="Further names under which it is reached.")
    tls_cert: str = Field(default="", description="The certificate, in PEM.")
    tls_key: str = Field(default="", description="Its key, in PEM.")
    plain_http: bool = Field(
        default=False, description="No TLS although others reach it: something in front of it has TLS."
    )
    others: Literal["hidden", "shown"] = Field(
        default="hidden", description="Names and users of others' jobs, to those who are no operator."
    )
    rate_per_s: float = Field(default=100.0, gt=0, description="Requests a second that one token or address may make …")
    burst: float = Field(default=200.0, ge=1, description="… and how many of them at once.")
    largest_body: int = Field(
        default=262_144, ge=1024, le=67_108_864, description="The largest body of a request, in bytes."
    )
    body_s: float = Field(default=10.0, gt=0, description="Seconds within which the body of a request must be there.")
    most_streams: int = Field(default=100, ge=1, le=10_000, description="Most listeners to events at a time.")
    head_s: float = Field(
        default=10.0, gt=0, le=600, description="Seconds within which the headers of a request must arrive."
    )
    idle_s: float = Field(
        default=20.0, gt=0, le=3600, description="Seconds after which a connection without a request is closed."
    )
    most_connections: int = Field(default=1000, ge=10, le=1_000_000, description="Most connections at a time.")
    most_per_address: int = Field(
        default=250,
        ge=1,
        le=1_000_000,
        description="Most connections from one address; raise it behind a proxy.",
    )


class LogTable(Schema):
    """[log]: what is told on stderr, as JSON."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least that is told.")


class TelemetryTable(Schema):
    """[telemetry]: what the GPUs say of themselves (docs/telemetry.md)."""

    prometheus: str = Field(default="", description="A Prometheus server, http://HOST:9090.")
    metrics: str = Field(default="", description="An exporter's page, http://HOST:9400/metrics.")
    nvml: bool = Field(default=False, description="NVIDIA's GPUs in this machine.")
    amdsmi: bool = Field(default=False, description="AMD's GPUs in this machine.")
    every_s: float = Field(default=15.0, gt=0, description="Seconds between two looks.")
    max_age_s: float = Field(default=60.0, ge=1, description="A value that is older is missing.")
    timeout_s: float = Field(default=10.0, gt=0, le=600, description="The longest that one look may take.")

    @model_validator(mode="after")
    def _one_source(self) -> "TelemetryTable":
        if sum(map(bool, (self.prometheus, self.metrics, self.nvml, self.amdsmi))) > 1:
            raise ValueError("'telemetry' names several sources; expected one of prometheus, metrics, nvml and amdsmi")
        return self

    @property
    def is_on(self) -> bool:
        """Whether there is a source."""
        return bool(self.prometheus or self.metrics or self.nvml or self.amdsmi)


class Config(Schema):
    """The file of `adlro serve --config`."""

    tick_s: float = Field(
        default=5.0, gt=0, le=3600, description="Seconds between two turns; a submission comes sooner."
    )
    backend: BackendTable = BackendTable()
    simulated: SimulatedTable = SimulatedTable()
    local: LocalTable = LocalTable()
    slurm: SlurmTable = SlurmTable()
    shadow: ShadowTable = ShadowTable()
    policy: PolicyTable = PolicyTable()
    guard: GuardTable = GuardTable()
    store: StoreTable = StoreTable()
    api: ApiTable = ApiTable()
    log: LogTable = LogTable()
    telemetry: TelemetryTable = TelemetryTable()

    def secrets(self) -> tuple[str, ...]:
        """The passwords in its addresses, which must not be shown."""
        addresses = (self.store.url, self.telemetry.prometheus, self.telemetry.metrics)
        return tuple(word for address in addresses if (word := _password(address)))

    def api_settings(self) -> ApiSettings:
        """The same as the API wants it."""
        api = self.api
        return ApiSettings(
            api.host, api.port, api.auth, self.beside_store("tokens.json", api.tokens), tuple(api.hosts),
            Path(api.tls_cert) if api.tls_cert else None, Path(api.tls_key) if api.tls_key else None,
            api.plain_http, api.others, api.rate_per_s, api.burst, api.largest_body, api.body_s, api.most_streams,
            owners=self.owners(),
            head_s=api.head_s, idle_s=api.idle_s, most_connections=api.most_connections,
            most_per_address=api.most_per_address,
        )  # fmt: skip

    def owners(self) -> Owners:
        """Whose jobs this daemon takes, and as whom they run."""
        kind, min_uid = self.backend.kind, self.api.min_uid
        if kind == "slurm":
            return Owners(self.slurm.submit_as == "user", min_uid)
        if kind != "local":
            return Owners(min_uid=min_uid)
        if os.geteuid() == 0:
            return Owners(True, min_uid)
        is_shared = self.local.shared_account or self.api.auth == "off"
        return Owners(False, min_uid, "" if is_shared else own_account_name())

    def check_owners(self) -> None:
        """Raise ConfigError where people could get an account that they have no right to."""
        if not self.api.is_on:
            return
        kind, is_root, is_self = self.backend.kind, os.geteuid() == 0, self.slurm.submit_as == "self"
        if self.owners().are_accounts and self.api.auth == "off":
            raise ConfigError(
                'jobs run as their users and [api] has auth = "off": everybody on this machine could run jobs as '
                "anybody. Use tokens, or run the daemon as the one user whose jobs it runs."
            )
        if kind == "local" and is_root and self.local.shared_account:
            raise ConfigError("[local] shared_account = true and the daemon is root: jobs never run as root.")
        if kind == "slurm" and is_self and (no := why_not(os.geteuid(), self.api.min_uid)):
            raise ConfigError(
                f'[slurm] submit_as = "self": jobs of the API would run as {own_account_name()!r}, and {no}. Run the '
                'daemon as an ordinary account, or use submit_as = "user" with a daemon that is root.'
            )
        if kind == "slurm" and is_self and self.slurm.rest and self.slurm.user:
            try:
                account_of(self.slurm.user, self.api.min_uid)
            except AccountError as error:
                raise ConfigError(
                    f'[slurm] submit_as = "self" with the token of {self.slurm.user!r}: {error}'
                ) from None

    def store_url(self) -> str:
        """Where the memory is."""
        if self.store.url:
            return self.store.url
        return "sqlite::memory:" if self.backend.kind == "simulated" else f"sqlite:{state_folder() / 'adlro.db'}"

    def beside_store(self, name: str, path: str = "") -> Path:
        """A file of the daemon's: at the path, or of this name where the store is."""
        from adlro.daemon.store import sqlite_path

        if path:
            return Path(path).expanduser()
        url = self.store_url()
        file = None if url.startswith(("postgresql:", "postgres:")) else sqlite_path(url)
        return (file.parent if file else state_folder()) / name


def state_folder() -> Path:
    """Where this user's daemon keeps things: as systemd says, else as desktops do."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "adlro"


def load_config(path: Path | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The config of a file, or the defaults; `flags` by "table.key" take its place where they are not None."""
    config = Config()
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise ConfigError(f"cannot read the config file '{path}': {reason}.") from None
        config = parse_toml(text, str(path), Config)
    for name, value in (flags or {}).items():
        if value is not None:
            config = _with(config, name, value)
    return config


def _with(config: Config, name: str, value: Any) -> Config:
    table, _, key = name.rpartition(".")
    if not table:
        return config.model_copy(update={key: value})
    return config.model_copy(update={table: getattr(config, table).model_copy(update={key: value})})


def changes(old: Config, new: Config) -> frozenset[str]:
    """The names of the tables (and of keys outside of tables) in which two configs differ."""
    return frozenset(name for name in Config.model_fields if getattr(old, name) != getattr(new, name))


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its table ("" outside of tables), its key, its default as TOML, and its sentence."""

    table: str
    key: str
    default: str
    sentence: str


def options() -> Iterator[Option]:
    """Every option, in the order of the file."""
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            for key, inner in field.annotation.model_fields.items():
                yield Option(name, key, _toml(inner.default), inner.description or "")
        else:
            yield Option("", name, _toml(field.default), field.description or "")


def example() -> str:
    """A config file with every option at its default, and its sentence above it."""
    lines = ["# The config of `adlro serve --config FILE`: every option with its default (docs/daemon.md)."]
    table = ""
    for option in options():
        if option.table != table:
            table = option.table
            lines += ["", f"[{table}]"]
        lines += [f"# {option.sentence}", f"{option.key} = {option.default}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def _password(address: str) -> str:
    try:
        return urlsplit(address).password or ""
    except ValueError:
        return ""
