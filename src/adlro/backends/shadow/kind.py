"""A shadow beside another back end, in the config."""

from dataclasses import replace
from typing import Final

from pydantic import Field

from adlro.backends.kind import Kind, Opened, Site
from adlro.core.errors import ConfigError
from adlro.core.toml import Schema


class ShadowTable(Schema):
    """[shadow]: beside a cluster that schedules itself; the table of its back end says which."""

    record: str = Field(
        default="", description='The file that records what ADLRO would have done; "": shadow.jsonl beside the store.'
    )
    backend: str = Field(
        default="slurm", min_length=1, description="The back end that it watches; it never gives orders to it."
    )


def open_shadow(table: ShadowTable, site: Site) -> Opened:
    """The back end that the table names, watched: orders are only written down."""
    from adlro.backends.shadow.record import FILE, shadowed

    watched = site.watched(table.backend)
    return replace(watched, backend=shadowed(watched.backend, site.file_of(FILE, table.record)))


def check_shadow(table: ShadowTable, site: Site) -> None:
    """Refuse a back end that is not in the catalogue, and a shadow of a shadow."""
    if table.backend not in site.others:
        raise ConfigError(f"'shadow.backend' is {table.backend!r}; expected one of {', '.join(site.others)}.")


SHADOW: Final = Kind(
    "shadow", "beside another back end, without orders", ShadowTable, open_shadow, check=check_shadow
)  # fmt: skip
