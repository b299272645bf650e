"""Sample answers in the documents are what the commands answer."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/doc_samples.py"


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("doc_samples", SCRIPT)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules["doc_samples"] = module
    spec.loader.exec_module(module)
    return module


def test_the_samples_in_the_documents_are_what_the_commands_answer(samples: ModuleType) -> None:
    if not samples.TRACES.is_dir():
        pytest.skip("the traces are not beside the repository")
    assert samples.main(["--check"]) == 0


def test_every_sample_stands_in_a_document_with_the_job_that_it_is_about(samples: ModuleType) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in samples.DOCS.rglob("*.md"))
    assert {found[2] for found in samples.PLACE.finditer(text)} == set(samples.SAMPLES)
    assert all(f"`{line}`" in text for line in samples.ASKED.splitlines())
