"""The tables of properties in the documents are those that the declarations give."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/schema_tables.py"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("schema_tables", SCRIPT)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules["schema_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_properties_in_the_documents_are_up_to_date(tables: ModuleType) -> None:
    assert tables.main(["--check"]) == 0


def test_every_table_of_properties_stands_in_a_document(tables: ModuleType) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in tables.DOCS.rglob("*.md"))
    assert {found[2] for found in tables.PLACE.finditer(text)} == set(tables.TABLES)


def test_a_table_that_is_out_of_date_is_told_and_written_anew(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- properties: keys of nodes -->\nold\n<!-- end of properties -->\n\nAfter.\n")
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    assert tables.main(["--check"]) == 1
    assert "docs/page.md is out of date. Run: python scripts/schema_tables.py" in capsys.readouterr().out
    assert tables.main([]) == 0
    assert "| `memory_gb` | above 0, to 1,000,000 GB | required |" in page.read_text()
    assert page.read_text().endswith("<!-- end of properties -->\n\nAfter.\n")
    assert tables.main(["--check"]) == 0
