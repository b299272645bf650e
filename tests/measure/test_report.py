"""The words of a report: which policy was best, by how much, how sure; and nothing a user wrote becomes markup."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.reports import HOSTILE, contents, make_data, make_hostile, make_report

from adlro.measure.report import build_page
from adlro.measure.report_answer import answer, signed
from adlro.measure.report_table import displayed, ranking

Report = tuple[dict[str, Any], dict[str, Any]]


class Tags(HTMLParser):
    """Everything in a page that is not text: tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture(name="folder", scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small report."""
    return make_report(tmp_path_factory.mktemp("report") / "out")


@pytest.fixture(name="report")
def read(folder: Path) -> Report:
    """Its result and its detail."""
    return contents(folder)


def test_the_answer_names_the_best_by_how_much_and_how_sure(report: Report) -> None:
    result, detail = report
    best = min(result["policies"], key=lambda name: result["policies"][name]["jct_mean_s"])
    text = answer(result, detail)
    assert best != "fcfs"
    assert f"<strong>{best}</strong> served users best" in text
    relative = result["policies"][best]["against"]["jct_mean_s"]["relative"]
    assert f"{-100 * relative:.1f}\u00a0% less" in text
    assert "<strong>Significant</strong>" in text
    assert "95 % interval over 8 seeds" in text


def test_the_answer_says_when_nothing_is_shown(report: Report) -> None:
    result, detail = report
    for policy in result["policies"].values():
        if policy["against"]:
            policy["against"]["jct_mean_s"] |= {"significant": False, "verdict": "no difference shown"}
    assert "<strong>Not shown</strong>: it may be chance" in answer(result, detail)
    for policy in result["policies"].values():
        if policy["against"]:
            policy["against"]["jct_mean_s"] |= {"verdict": "too few seeds"}
    assert "too few to call it significant: 2 comparisons need 7" in answer(result, detail)


def test_one_seed_is_not_called_sure(tmp_path: Path) -> None:
    result, detail = contents(make_data(tmp_path / "out", "--seeds", "1"))
    text = answer(result, detail)
    assert "One seed cannot tell" in text
    assert "ignificant" not in text
    page = build_page(result, detail)
    assert "No regression: it needs at least 8 runs" in page
    assert "figure-differences" not in page


def test_a_policy_alone_is_reported_too(tmp_path: Path) -> None:
    result, detail = contents(make_data(tmp_path / "out", "--policies", "fcfs"))
    assert "nothing was compared with it" in answer(result, detail)
    assert "shown below" not in build_page(result, detail).split("<tbody>")[1].split("</tbody>")[0]


def test_policies_that_do_alike_are_not_ranked_in_words(report: Report) -> None:
    result, detail = report
    result["policies"] = dict.fromkeys(result["policies"], result["policies"]["fcfs"])
    assert "No policy served users better than another" in answer(result, detail)


def test_a_best_policy_that_left_jobs_over_is_not_best(report: Report) -> None:
    result, detail = report
    result["policies"]["srtf"]["unfinished"] = 3.0
    text = answer(result, detail)
    assert "<strong>srtf</strong> served" not in text
    assert "Left jobs unfinished, and so ranked last: srtf" in text
    assert 'data-key="unfinished"' in ranking(result, detail)
    for policy in result["policies"].values():
        policy["unfinished"] = 1.0
    assert "No policy finished all jobs" in answer(result, detail)


def test_what_users_wrote_never_becomes_markup(folder: Path, tmp_path: Path) -> None:
    hostile = (make_hostile(folder, tmp_path / "hostile") / "report.html").read_text()
    found, plain = Tags(hostile), Tags((folder / "report.html").read_text())
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert set(found.tags) - set(plain.tags) <= {"table", "dd", "code"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert "<script>alert" not in hostile
    assert HOSTILE[:20] not in hostile
    for figure in (tmp_path / "hostile" / "figures").glob("*.svg"):
        assert "<script" not in figure.read_text()


def test_the_page_allows_no_network_and_no_other_script(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "default-src &#x27;none&#x27;" in page
    assert len(page.encode()) < 3_000_000
    assert 'lang="en"' in page
    assert page.count("<caption>") == page.count("<table")
    assert page.count("<figure") == page.count('role="img" aria-label=')


def test_numbers_have_signs_and_units() -> None:
    assert [signed(text) for text in ("-1.50", "2.00", "-0.00", "0.00")] == ["−1.50", "+2.00", "0", "0"]
    assert displayed("jct_mean_s", 90.0, 60.0) == "1.50"
    assert displayed("against", -0.25, 1.0) == "−25.0 %"
    assert displayed("utilisation", 0.5, 1.0) == "50.0"
    assert displayed("hyperscore", 104.126, 1.0) == "104.13"
    assert displayed("jain_users", None, 1.0) == "–"
