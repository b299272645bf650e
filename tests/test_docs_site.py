"""The documents as a site: every link holds, nothing comes from another host, and the README stays short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST_README = 900  # words
FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href|srcset)=\"?(?:https?:)?//[^>]*>")
FONT_FROM_ELSEWHERE = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a dead link or anchor fails here (but not with -q, which hides warnings from --strict too)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert "index.html" in pages
    assert {name: found for name, page in pages.items() if (found := FROM_ELSEWHERE.findall(page))} == {}
    assert [found for style in styles if (found := FONT_FROM_ELSEWHERE.findall(style))] == []


def test_a_document_can_link_to_a_file_outside_docs(site: Path) -> None:
    links = re.findall(
        r"href=\"(files/[^\"#]+|contributing\.html)\"", (site / "guide.html").read_text(encoding="utf-8")
    )
    assert "contributing.html" in links
    assert "files/examples.html" in links
    assert [link for link in links if not (site / link).is_file()] == []
    assert "def response_ratio" in re.sub(r"<[^>]+>", "", (site / "files/examples/own_policy.py.html").read_text())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= LONGEST_README
