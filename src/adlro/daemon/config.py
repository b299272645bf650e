"""The daemon's config: one TOML file, one sentence for each option, and defaults that need no file."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, create_model, model_validator

from adlro.api.settings import ApiSettings, ApiTable
from adlro.backends.catalogue import BACKENDS
from adlro.backends.kind import Kind, Opened, Site
from adlro.core.accounts import Owners
from adlro.core.errors import ConfigError
from adlro.core.learned import KNOWN_SPEEDS, SPEEDS
from adlro.core.telemetry import TelemetryReader
from adlro.core.toml import Schema, parse_toml
from adlro.daemon.keep import Keep
from adlro.experiment.conditions import JOB_WEIGHTS, UNCHANGED
from adlro.ingest.telemetry.catalogue import SOURCES, open_telemetry
from adlro.live.limits import GuardTable, Limits, PreemptTable

BACKEND_NAMES: Final = tuple(BACKENDS)


class BackendTable(Schema):
    """[backend]: which cluster; a table of the same name has its options."""

    kind: Literal[BACKEND_NAMES] = Field(  # type: ignore[valid-type]
        default="simulated",
        description=f"The back end: {', '.join(BACKEND_NAMES[:-1])} or {BACKEND_NAMES[-1]} (docs/backends.md).",
    )


class PolicyTable(Schema):
    """[policy]: who decides."""

    name: str = Field(default="adlro", min_length=1, description="The policy (adlro policies), or a file that has one.")
    fallback: str = Field(
        default="fcfs-first-fit", min_length=1, description="Policy that decides while the guard is active."
    )
    budget_ms: float = Field(
        default=1000 * Limits().decision_s,
        gt=0,
        le=600_000,
        description="Time limit of one decision, in ms; if the policy is slower, the guard lets the fallback decide.",
    )
    speeds: Literal[SPEEDS] = Field(  # type: ignore[valid-type]
        default=KNOWN_SPEEDS,
        description="What policies know about the speeds of jobs: known (the table), prior (the datasheet), agnostic "
        "(all GPUs alike) or learned from jobs that ended (docs/speeds.md).",
    )
    weights: Literal[JOB_WEIGHTS] = Field(  # type: ignore[valid-type]
        default=UNCHANGED.weights,
        description="What a job counts: equal (all the same), or priority (in proportion to its priority, for the "
        "policies that know weights: docs/policies.md).",
    )
    speed_table: str = Field(
        default="", description='A speed table of your own in CSV, for families that it names; "": none.'
    )


class StoreTable(Schema):
    """[store]: what the daemon remembers."""

    url: str = Field(
        default="",
        description='sqlite:PATH, sqlite::memory: or postgresql://…; "": adlro.db in $STATE_DIRECTORY or '
        "~/.local/state/adlro, or in memory for a simulated cluster.",
    )
    lock: str = Field(
        default="",
        description='Lock file of the leader; "": beside the database. PostgreSQL needs none.',
    )
    keep_days: float = Field(default=Keep().days, gt=0, description="Rows older than this many days are deleted.")
    keep_jobs: int = Field(default=Keep().jobs, ge=1, description="Maximum number of ended jobs in the store.")
    keep_decisions: int = Field(default=Keep().decisions, ge=1, description="Maximum number of decisions in the store.")
    keep_ticks: int = Field(default=Keep().ticks, ge=1, description="Maximum number of turns in the store.")


class LogTable(Schema):
    """[log]: what is told on stderr, as JSON."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )


SOURCE_FIELDS: Final[dict[str, Any]] = {
    source.name: (str, Field(default="", description=source.sentence))
    if source.needs_address
    else (bool, Field(default=False, description=source.sentence))
    for source in SOURCES.values()
}
Sources: Any = create_model("Sources", __base__=Schema, **SOURCE_FIELDS)
"""A key for each source of the catalogue: its address, or whether it is used."""


class TelemetryTable(Sources):  # type: ignore[misc]
    """[telemetry]: what the GPUs say of themselves (docs/telemetry.md)."""

    every_s: float = Field(default=15.0, gt=0, description="Seconds between two readings.")
    max_age_s: float = Field(default=60.0, ge=1, description="Values older than this many seconds count as missing.")
    timeout_s: float = Field(default=10.0, gt=0, le=600, description="Time limit of one reading, in seconds.")

    @model_validator(mode="after")
    def _one_source(self) -> "TelemetryTable":
        if len(self._sources) > 1:
            *names, last = SOURCES
            raise ValueError(f"'telemetry' names several sources; expected one of {', '.join(names)} and {last}")
        return self

    @property
    def _sources(self) -> list[str]:
        return [name for name in SOURCES if getattr(self, name)]

    @property
    def is_on(self) -> bool:
        """Whether there is a source."""
        return bool(self._sources)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in it, which may hold passwords."""
        return tuple(getattr(self, name) for name, source in SOURCES.items() if source.needs_address)

    def open(self) -> TelemetryReader:
        """A function that reads the source once."""
        (name,) = self._sources
        address = getattr(self, name) if SOURCES[name].needs_address else ""
        return open_telemetry(name, address, self.timeout_s, self.max_age_s)


class Turns(Schema):
    """When turns come, and on which cluster."""

    tick_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Seconds between two regular turns; a change of the cluster starts one at once.",
    )
    backend: BackendTable = BackendTable()


_TABLES: Final[dict[str, Any]] = {kind.name: (kind.options, kind.options()) for kind in BACKENDS.values()}
Clusters: Any = create_model("Clusters", __base__=Turns, **_TABLES)
"""The same, and a table for each back end of the catalogue."""


class Config(Clusters):  # type: ignore[misc]
    """The file of `adlro serve --config`."""

    policy: PolicyTable = PolicyTable()
    guard: GuardTable = GuardTable()
    preempt: PreemptTable = PreemptTable()
    store: StoreTable = StoreTable()
    api: ApiTable = ApiTable()
    log: LogTable = LogTable()
    telemetry: TelemetryTable = TelemetryTable()

    def secrets(self) -> tuple[str, ...]:
        """The passwords in its addresses, which are never shown."""
        addresses = (self.store.url, *self.telemetry.addresses)
        return tuple(word for address in addresses if (word := _password(address)))

    def api_settings(self) -> ApiSettings:
        """[api], completed from the rest of the config."""
        return ApiSettings.model_construct(  # checked when the file was read
            **dict(self.api), token_file=self.beside_store("tokens.json", self.api.tokens), owners=self.owners()
        )

    @property
    def kind(self) -> Kind[Any]:
        """The back end, as the catalogue has it."""
        return BACKENDS[self.backend.kind]

    def open_backend(self) -> Opened:
        """Open the cluster."""
        self.check_owners()
        return self.kind.open(getattr(self, self.kind.name), self._site())

    def owners(self) -> Owners:
        """Which users' jobs this daemon takes, and as which user they run."""
        return self.kind.owners(getattr(self, self.kind.name), self._site())

    def check_owners(self) -> None:
        """Raise ConfigError if people could use an account that is not theirs."""
        if self.api.is_on and self.api.auth == "off" and self.owners().are_accounts:
            raise ConfigError(
                'jobs run as their users and [api] has auth = "off": everybody on this machine could run jobs as '
                "anybody. Use tokens, or run the daemon as the one user whose jobs it runs."
            )
        self.kind.check(getattr(self, self.kind.name), self._site())

    def _site(self) -> Site:
        api, others = self.api, tuple(name for name in BACKEND_NAMES if name != self.kind.name)
        return Site(api.is_on, api.auth != "off", api.min_uid, self.beside_store, others, self._watched)

    def _watched(self, name: str) -> Opened:
        """The back end of this name, to be watched by a shadow, which must not submit."""
        kind = BACKENDS[name]
        return kind.open(kind.for_shadow(getattr(self, name)), self._site())

    def store_url(self) -> str:
        """Where the memory is."""
        if self.store.url:
            return self.store.url
        return "sqlite::memory:" if self.kind.ends_with_daemon else f"sqlite:{state_folder() / 'adlro.db'}"

    def beside_store(self, name: str, path: str = "") -> Path:
        """The path of a file of the daemon: the given path, or this name in the store's folder."""
        from adlro.daemon.store import sqlite_path

        if path:
            return Path(path).expanduser()
        url = self.store_url()
        file = None if url.startswith(("postgresql:", "postgres:")) else sqlite_path(url)
        return (file.parent if file else state_folder()) / name


def state_folder() -> Path:
    """The folder for this user's daemon: systemd's state directory, else the desktop's."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "adlro"


def load_config(path: Path | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The config of a file, or the defaults; `flags` by "table.key" override it unless they are None."""
    config = Config()
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8-sig")
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
