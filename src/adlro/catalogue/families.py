"""Families of jobs: what bounds their speed on a GPU, and how much they communicate."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from pydantic import Field, field_validator

from adlro.core.errors import CatalogueError, ConfigError
from adlro.core.toml import Schema, nearest, parse_toml

REFERENCE: Final = "v100-sxm2-16gb"
"""The model whose speed is 1, alone, for every family."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the time on the reference model that are bound by each rate; they add up to 1."""

    fp64: float = 0.0
    fp32: float = 0.0
    tensor: float = 0.0
    bandwidth: float = 0.0


@dataclass(frozen=True, slots=True)
class Family:
    """A class of jobs with one row in the speed table.

    `communication` is a gang's share of time on the reference link. `original` is the name in the measured table, so
    that job lists can be tied to it. `anchor` is the model that measured rows are relative to.
    """

    name: str
    summary: str
    mix: Mix
    communication: float
    original: str = ""
    anchor: str = REFERENCE
    same_everywhere: bool = False


class MixTable(Schema):
    """The roofline mix of a family."""

    fp64: float = Field(0.0, ge=0, le=1)
    fp32: float = Field(0.0, ge=0, le=1)
    tensor: float = Field(0.0, ge=0, le=1)
    bandwidth: float = Field(0.0, ge=0, le=1)


class FamilyTable(Schema):
    """One [families.NAME] table: a family, or one for each of its batch sizes."""

    summary: str
    mix: MixTable
    communication: float = Field(ge=0, lt=1)
    original: str = ""
    batches: list[int] = Field([])
    anchor: str = REFERENCE
    same_everywhere: bool = False

    @field_validator("mix")
    @classmethod
    def _adds_up(cls, mix: MixTable) -> MixTable:
        total = mix.fp64 + mix.fp32 + mix.tensor + mix.bandwidth
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the shares add up to {total:g}; expected 1")
        return mix


class FamilyFile(Schema):
    """The file of the shipped families."""

    families: dict[str, FamilyTable]


@cache
def families() -> dict[str, Family]:
    """The families by name."""
    text = resources.files("adlro.catalogue").joinpath("families.toml").read_text(encoding="utf-8")
    tables = parse_toml(text, "families.toml", FamilyFile).families
    return {family.name: family for name, table in tables.items() for family in _expand(name, table)}


def find_family(name: str) -> Family:
    """The family of that name, or with that name in the measured table; upper or lower case."""
    word = name.strip().lower()
    if word in families():
        return families()[word]
    if word in _by_original():
        return _by_original()[word]
    raise CatalogueError(
        f"there is no family '{name}'.{nearest(name, [*families(), *_by_original()])} "
        f"Families are simulation, learning, data, and the measured gavel/…, sia/…, sia-fixed/… and sia-adapted/… "
        f"(docs/catalogue.md)."
    )


def is_family(name: str) -> bool:
    """Whether there is a family of exactly this name."""
    try:
        return find_family(name).name == name
    except CatalogueError:
        return False


_WORDS_OF: Final = {
    "simulation": (
        "sim", "simulation", "md", "gromacs", "gmx", "lammps", "namd", "amber", "cfd", "openfoam", "vasp", "cp2k",
        "fem", "lattice", "stencil", "dft", "hpl", "hpcg", "relion",
    ),
    "data": ("data", "etl", "spark", "rapids", "cudf", "sql", "query", "preprocess", "parquet", "scan", "join"),
}  # fmt: skip
"""Words in the name of a job that say which of the paper's families it is probably like."""

_PROBABLY: Final = "learning"
"""What a job on GPUs is if its name does not say it."""


def guessed_family(name: str) -> str:
    """The one of the paper's three families that a job with this name is most probably like."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    return next((family for family, known in _WORDS_OF.items() if words & set(known)), _PROBABLY)


def family_pattern(pattern: str, family: str, where: str) -> tuple[re.Pattern[str], str]:
    """A pattern of a config and the name of its family; `where` names the table in the error line."""
    try:
        return re.compile(pattern), find_family(family).name
    except re.error as error:
        raise ConfigError(f"[[{where}]]: '{pattern}' is not a regular expression: {error}.") from None
    except CatalogueError as error:
        raise ConfigError(f"[[{where}]], pattern '{pattern}': {error}") from None


@cache
def _by_original() -> dict[str, Family]:
    return {family.original.lower(): family for family in families().values() if family.original}


def _expand(name: str, table: FamilyTable) -> Iterator[Family]:
    """The families of one table: itself, or one for each batch size."""
    mix = Mix(**table.mix.model_dump())
    if not table.batches:
        yield Family(name, table.summary, mix, table.communication, table.original, table.anchor, table.same_everywhere)
    for batch in table.batches:
        original = table.original.replace("{batch}", str(batch))
        summary = f"{table.summary}, batch {batch}"
        yield Family(f"{name}-b{batch}", summary, mix, table.communication, original, table.anchor)
