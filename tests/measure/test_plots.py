"""The figures: each is drawn at both widths, always the same, in colours that a page can change."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.reports import contents, make_data

from adlro.measure.drawing import FAMILIES, NARROW, VARIABLES, WIDE, apart, clean, inline, key_lines, png, svg
from adlro.measure.plots import FIGURE_NAMES, figures
from adlro.measure.plots_cluster import MANY_SHAPES, without_prefix
from adlro.measure.plots_policies import ranked

Report = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(name="report", scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A small result with its detail."""
    return contents(make_data(tmp_path_factory.mktemp("plots") / "out"))


def changed(report: Report, **more: Any) -> Report:
    """The report with other parts in its detail."""
    return report[0], report[1] | more


def names(report: Report) -> list[str]:
    """The figures that there are."""
    return [figure.name for figure in figures(*report)]


def test_every_figure_is_there(report: Report) -> None:
    assert names(report) == list(FIGURE_NAMES)
    assert all(figure.title and figure.caption and figure.alt for figure in figures(*report))


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_a_figure_is_the_same_each_time_and_tells_no_date(report: Report, name: str) -> None:
    figure = next(figure for figure in figures(*report) if figure.name == name)
    for width in (WIDE, NARROW):
        text = svg(figure, width)
        assert text == svg(figure, width)
        root = ElementTree.fromstring(text)
        assert root.attrib["viewBox"].split()[2] == str(width)
        assert not re.search(r"<dc:date>|<dc:creator>", text)
    assert png(figure, WIDE) == png(figure, WIDE)


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_an_inline_figure_takes_its_colours_from_the_page(report: Report, name: str) -> None:
    figure = next(figure for figure in figures(*report) if figure.name == name)
    wide, narrow = inline(figure, WIDE), inline(figure, NARROW)
    for text in (wide, narrow):
        assert "var(--ink)" in text
        assert not [colour for colour in VARIABLES if colour in text]
        assert not re.search(r"(?:fill|stroke): #(?:000000|ffffff)", text)
    ids = re.findall(r'\bid="([^"]+)"', wide + narrow)
    assert len(ids) == len(set(ids))
    assert all(target in ids for target in re.findall(r'(?:url\(#|href="#)([^")]+)', wide + narrow))


def test_a_figure_without_anything_to_show_is_left_out(report: Report) -> None:
    detail = report[1]
    nothing = {name: [0.0] * 10 for name in detail["queue"]}
    assert "queue" not in names(changed(report, queue=nothing))
    assert "regression" not in names(changed(report, regression={}))
    alone = detail["waits"] | {"by_user": detail["waits"]["by_user"][:1]}
    assert "waits-user" not in names(changed(report, waits=alone))
    idle = detail["gantt"] | {"bars": {name: [] for name in detail["gantt"]["bars"]}}
    assert "gantt" not in names(changed(report, gantt=idle))


def test_very_many_bars_become_a_bitmap(report: Report) -> None:
    gantt = report[1]["gantt"]
    bars = {name: (each * (MANY_SHAPES // len(each) + 1))[: MANY_SHAPES + 1] for name, each in gantt["bars"].items()}
    many = next(each for each in figures(*changed(report, gantt=gantt | {"bars": bars})) if each.name == "gantt")
    few = next(each for each in figures(*report) if each.name == "gantt")
    assert "<image" in svg(many, WIDE)
    assert "<image" not in svg(few, WIDE)


def test_a_policy_that_leaves_jobs_over_is_ranked_last(report: Report) -> None:
    result = report[0]
    order = ranked(result)
    assert order == sorted(result["policies"], key=lambda name: result["policies"][name]["jct_mean_s"])
    lazy = result["policies"][order[0]] | {"unfinished": 0.5}
    assert ranked(result | {"policies": result["policies"] | {order[0]: lazy}})[-1] == order[0]


def test_labels_keep_their_distance() -> None:
    assert apart([5.0, 6.0, 50.0], 13.0, 100.0) == [5.0, 18.0, 50.0]
    assert apart([95.0, 99.0], 13.0, 100.0) == [87.0, 100.0]


def test_names_are_made_writable() -> None:
    assert clean("a\n b\x00c") == "a b�c"
    assert clean("x" * 100) == "x" * 21 + "…"
    assert [key_lines([("learning", FAMILIES[0])] * count, 344) for count in (4, 5)] == [1, 2]
    assert without_prefix(["gavel/a", "gavel/b", "other"]) == ["a", "b", "other"]
    assert without_prefix(["gavel/a", "sia/b"]) == ["gavel/a", "sia/b"]


def test_drawing_leaves_the_users_matplotlib_alone(report: Report) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg(figures(*report)[0], WIDE)
    assert dict(matplotlib.rcParams) == before
