"""The file behind `--families FILE.toml`: the family of a job by the value in a column of its trace."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from pydantic import Field

from adlro.core.toml import Schema, parse_toml


class FamilyMap(Schema):
    """Values of a column, and the families that they stand for."""

    column: str = Field(min_length=1)
    map: dict[str, str] = Field(min_length=1)
    default: str | None = None

    def told(self) -> str:
        """The whole map in one line, for the report."""
        pairs = ", ".join(f"{value} = {family}" for value, family in self.map.items())
        return f"column '{self.column}': {pairs}" + (f"; else {self.default}" if self.default else "")

    def family_of(self, value: str) -> str | None:
        """The family of this value: by its own entry, else by the first pattern that fits it, else the default."""
        if value in self.map:
            return self.map[value]
        patterns = (family for pattern, family in self.map.items() if fnmatchcase(value, pattern))
        return next(patterns, self.default)


def read_family_map(text: str, where: str, family: Callable[[str, str], str]) -> FamilyMap:
    """The map that a TOML text holds; `family(key, name)` gives our name for the family named at that key."""
    found = parse_toml(text, where, FamilyMap)
    return found.model_copy(
        update={
            "map": {value: family(f"map.{value}", name) for value, name in found.map.items()},
            "default": None if found.default is None else family("default", found.default),
        }
    )
