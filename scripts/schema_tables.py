"""Writes the documents' tables of properties of jobs and nodes, from the declarations in core/records.py.

    python scripts/schema_tables.py            write the tables into the documents
    python scripts/schema_tables.py --check    only say which documents are out of date; exit status 1 if one is

A table stands between <!-- properties: NAME --> and <!-- end of properties -->.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from adlro.api.models import SET_BY_US
from adlro.core.records import Job, Node
from adlro.core.schema import NO_BOUND, Property, properties_of, property_of
from adlro.ingest.traces.own import COLUMNS, NEEDED

DOCS: Final = Path(__file__).parent.parent / "docs"
PLACE: Final = re.compile(r"(<!-- properties: ([a-z ]+) -->\n).*?(\n<!-- end of properties -->)", re.DOTALL)

EMPTY_CELLS: Final = dict.fromkeys(NEEDED, "bad row") | {"family": "`uniform`"}
MORE_OF_COLUMNS: Final = {"models": r"Names with `\|` between them."}


def columns_of_traces() -> list[str]:
    """The columns of our own table of jobs."""
    rows = []
    for name in COLUMNS:
        each = property_of(Job, name)
        words = " ".join(filter(None, (each.words, MORE_OF_COLUMNS.get(name))))
        rows.append(row(f"`{name}`", range_of(each), EMPTY_CELLS.get(name) or default_of(each), words))
    return table(("column", "value", "empty", "meaning"), rows)


def keys_of_families() -> list[str]:
    """The keys of a family in a workload file that give its jobs a property."""
    found = (each for each in properties_of(Job) if each.in_workload)
    return table(("key", "value", "default", "meaning"), asked_rows(found))


def fields_of_submissions() -> list[str]:
    """What the API takes of a job."""
    return table(
        ("field", "value", "default", "meaning"),
        asked_rows(each for each in properties_of(Job) if each.name not in SET_BY_US),
    )


def keys_of_nodes() -> list[str]:
    """The amounts of a node in a cluster file."""
    return table(
        ("key", "value", "default", "meaning"), asked_rows(each for each in properties_of(Node) if each.is_number)
    )


TABLES: Final[dict[str, Callable[[], list[str]]]] = {
    "columns of traces": columns_of_traces,
    "keys of families": keys_of_families,
    "fields of submissions": fields_of_submissions,
    "keys of nodes": keys_of_nodes,
}


def asked_rows(found: Iterable[Property]) -> list[str]:
    """The rows of properties as users write them."""
    return [row(f"`{each.name}`", range_of(each, asked=True), default_of(each), each.user_words) for each in found]


def range_of(each: Property, asked: bool = False) -> str:
    """What the values are, with bounds."""
    if each.kind is bool:
        return "true or false"
    if not each.is_number:
        return "names" if each.kind is frozenset else "text"
    most = each.from_user.most if asked and each.from_user.most is not None else each.most
    above = each.from_user.above if asked else None
    unit = f" {each.unit}" if each.unit else ""
    what = "whole number, " if each.kind is int else ""
    low = f"{number(each.least)} or more" if above is None else f"above {number(above)}"
    if most < NO_BOUND:
        low = f"{number(each.least)} to {number(most)}" if above is None else f"{low}, to {number(most)}"
    return f"{what}{low}{unit}"


def default_of(each: Property) -> str:
    """What counts where nothing is written."""
    if each.is_needed:
        return "required"
    return each.empty or (str(each.default).lower() if each.kind is bool else number(each.default))


def number(amount: float) -> str:
    """A number as people write it: 1000, and 1,000,000."""
    return (f"{amount}" if abs(amount) < 10_000 else f"{amount:,}").removesuffix(".0")


def row(*cells: str) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"


def table(heads: tuple[str, ...], rows: list[str]) -> list[str]:
    """The lines of a table."""
    return [row(*heads), "|" + "---|" * len(heads), *rows]


def written(text: str) -> str:
    """The document with its tables as they should be."""
    return PLACE.sub(lambda found: f"{found[1]}\n{chr(10).join(TABLES[found[2]]())}\n{found[3]}", text)


def main(words: list[str]) -> int:
    """Write the documents, or only look."""
    stale = 0
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            stale += 1
            if "--check" in words:
                print(f"docs/{path.relative_to(DOCS)} is out of date. Run: python scripts/schema_tables.py")
            else:
                path.write_text(new, encoding="utf-8")
                print(f"docs/{path.relative_to(DOCS)} is written anew.")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
