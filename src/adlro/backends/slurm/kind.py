"""A Slurm cluster in the config."""

import os
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from adlro.backends.kind import Kind, Opened, Site
from adlro.core.accounts import Owners, account_of, own_account_name, why_not
from adlro.core.errors import AccountError, ConfigError
from adlro.core.toml import Schema

if TYPE_CHECKING:
    from adlro.backends.slurm.backend import SlurmOptions


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


def open_slurm(table: SlurmTable, site: Site) -> Opened:
    """The Slurm that the table names. Nothing is asked of it yet."""
    from adlro.backends.slurm.backend import slurm_backend

    return Opened(slurm_backend(options_of(table, site)))


def options_of(table: SlurmTable, site: Site) -> "SlurmOptions":
    """The table as the back end wants it."""
    from adlro.backends.slurm.backend import SlurmOptions

    return SlurmOptions(
        rest=table.rest,
        user=table.user,
        jwt_file=table.jwt_file,
        conf=table.conf or os.environ.get("SLURM_CONF", ""),
        command_line=table.command_line,
        partitions=tuple(table.partitions),
        families=tuple((rule.field, rule.pattern, rule.family) for rule in table.families),
        types=tuple(table.types.items()),
        cluster=table.cluster,
        submit_as=table.submit_as,
        submit_partition=table.submit_partition,
        min_uid=site.min_uid,
        timeout_s=table.timeout_s,
    )


def owners_of(table: SlurmTable, site: Site) -> Owners:
    """Jobs run as their users where `sbatch` does."""
    return Owners(table.submit_as == "user", site.min_uid)


def check_slurm(table: SlurmTable, site: Site) -> None:
    """Refuse accounts that nobody has a right to, and those that jobs cannot be submitted as."""
    from adlro.backends.slurm.backend import check_submitting

    is_self = site.has_api and table.submit_as == "self"
    if is_self and (no := why_not(os.geteuid(), site.min_uid)):
        raise ConfigError(
            f'[slurm] submit_as = "self": jobs of the API would run as {own_account_name()!r}, and {no}. Run the '
            'daemon as an ordinary account, or use submit_as = "user" with a daemon that is root.'
        )
    if is_self and table.rest and table.user:
        try:
            account_of(table.user, site.min_uid)
        except AccountError as error:
            raise ConfigError(f'[slurm] submit_as = "self" with the token of {table.user!r}: {error}') from None
    check_submitting(table.submit_as, table.command_line)


def without_submitting(table: SlurmTable) -> SlurmTable:
    """The same for a shadow, which submits nothing."""
    return table.model_copy(update={"submit_as": "nobody"})


SLURM: Final = Kind("slurm", "a Slurm cluster", SlurmTable, open_slurm, owners_of, check_slurm, without_submitting)
