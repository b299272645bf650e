"""Reports on disk and in a browser: which files there are, what is refused, and that people see what the JSON says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright
from tests.parts import program
from tests.reports import COMPARE, contents, make_data, make_hostile, make_report

from adlro.cli.app import run
from adlro.measure.numbers import unit_for
from adlro.measure.report_table import REPORT_COLUMNS, displayed, value_of

VIEWS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]


@pytest.fixture(name="folder", scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small report."""
    return make_report(tmp_path_factory.mktemp("report") / "out")


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_report_is_a_page_its_data_and_its_figures(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"report.html", "result.json", "detail.json.gz", "figures"}
    figures = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert figures == {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"gantt", "utilisation", "queue", "jct", "regression"} < figures


def test_the_result_is_what_json_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert run([*COMPARE, "--report", str(folder), "--json"]) == 0
    shown = capsys.readouterr()
    assert (folder / "result.json").read_text() == shown.out
    assert f"Wrote {folder / 'report.html'}." in shown.err


def test_a_report_is_built_anew_from_its_files(folder: Path, tmp_path: Path) -> None:
    for source in (folder, folder / "result.json"):
        again = tmp_path / source.name
        assert run(["report", str(source), "--out", str(again)]) == 0
        for path in folder.rglob("*"):
            if path.is_file():
                assert (again / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_only_our_own_files_are_written_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("notes.txt", "figures/mine.svg", "figures/queue.png", "report.html"):
        (tmp_path / name).write_text("mine")
    assert run(["report", str(folder), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "figures/mine.svg").read_text() == "mine"
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    assert (tmp_path / "figures/queue.png").read_bytes() == (folder / "figures/queue.png").read_bytes()


def test_a_figure_that_no_longer_belongs_is_removed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    assert (tmp_path / "out/figures/regression.svg").exists()
    make_report(tmp_path / "out", "--seeds", "2")
    assert not (tmp_path / "out/figures/regression.svg").exists()
    assert not (tmp_path / "out/figures/regression.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*COMPARE, "--report", "file"], "--report: 'file' is a file; expected a folder, which may not exist yet."),
        ([*COMPARE, "--report", "no/such/folder"], "--report: 'folder' cannot be created; the folder '"),
        ([*COMPARE, "--report", "out", "--report-policy", "srtff"], "is not among the policies compared. Did you mean"),
        ([*COMPARE, "--report-policy", "sjf"], "--report-policy needs --report"),
        (["report", "nowhere"], "cannot read 'nowhere': No such file or directory. Make a report with `adlro compare"),
        (["report", "empty"], "cannot read 'empty/result.json': No such file"),
        (["report", "file"], "'file' is not JSON; expected what `adlro compare --json` prints."),
        (["report", "list.json"], "'list.json' has no 'baseline'; expected what"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("words")
    Path("list.json").write_text("[]")
    Path("empty").mkdir()
    assert run(arguments) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


def test_data_of_another_result_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_data(tmp_path / "other", "--policies", "fcfs,las")
    (other / "result.json").write_bytes((folder / "result.json").read_bytes())
    capsys.readouterr()
    assert run(["report", str(other)]) == 1
    assert "does not belong to" in capsys.readouterr().err


def test_the_policy_shown_can_be_chosen(tmp_path: Path) -> None:
    detail = contents(make_data(tmp_path / "out", "--report-policy", "sjf"))[1]
    assert detail["shown"]["policy"] == "sjf"
    assert list(detail["gantt"]["bars"]) == ["fcfs", "sjf"]
    assert "sjf (as asked for)" in detail["shown"]["why"]


def test_the_seed_shown_has_the_median_difference(folder: Path) -> None:
    result, detail = contents(folder)
    best = min(result["policies"], key=lambda name: result["policies"][name]["jct_mean_s"])
    assert detail["shown"]["policy"] == best
    ours, theirs = (result["policies"][name]["per_seed"]["jct_mean_s"] for name in (best, "fcfs"))
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    place = result["seeds"].index(detail["shown"]["seed"])
    assert (
        sorted(differences).index(differences[place]) == 4
    )  # of the two in the middle of eight, the one less in favour of the best


def test_a_comparison_without_a_report_does_not_load_matplotlib() -> None:
    code = f"import sys; from adlro.cli.app import run; run({COMPARE}); sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(name="browser", scope="module")
def open_browser() -> Iterator[Browser]:
    """Chromium without a window."""
    path = program("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path)
        yield browser
        browser.close()


def opened(browser: Browser, file: Path, width: int = 1280, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page of a report, and what went wrong while it was opened (filled further on)."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def note(dialog: Dialog) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", note)
    address = file.as_uri()
    page.on("request", lambda request: wrong.append(request.url) if is_outward(request.url, address) else None)
    page.goto(address)
    return page, wrong


def is_outward(url: str, page: str) -> bool:
    """Whether a request goes anywhere but to the page itself; pictures inside it are no requests to anywhere."""
    return url != page and not url.startswith("data:")


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_the_page_opens_without_an_error_and_without_overflow(
    browser: Browser, folder: Path, width: int, scheme: str
) -> None:
    page, wrong = opened(browser, folder / "report.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.body.scrollWidth <= innerWidth")
    drawn = page.locator(".wide svg" if width == 1280 else ".narrow svg")
    assert drawn.count() == 9
    for number in range(drawn.count()):
        box = drawn.nth(number).bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
        assert box["height"] > 60
    back, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert (brightness(back) > brightness(ink)) == (scheme == "light")
    letters = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert (brightness(letters) > 128) == (scheme == "dark")
    assert wrong == []


def brightness(colour: str) -> float:
    """How bright a colour as a browser tells it is, from 0 to 255."""
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def test_letters_in_figures_do_not_leave_them(browser: Browser, folder: Path) -> None:
    for width, kind in ((1280, "wide"), (400, "narrow")):
        page, _ = opened(browser, folder / "report.html", width)
        outside = page.evaluate(
            """kind => [...document.querySelectorAll(`.${kind} svg`)].flatMap(svg => {
                const frame = svg.getBoundingClientRect();
                return [...svg.querySelectorAll("text")].filter(text => {
                    const box = text.getBoundingClientRect();
                    return box.left < frame.left - 1 || box.right > frame.right + 1
                        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
                }).map(text => text.textContent);
            })""",
            kind,
        )
        assert outside == []


def test_the_numbers_in_the_table_are_those_of_the_json(browser: Browser, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    policies: dict[str, Any] = result["policies"]
    seconds, unit = unit_for([each["jct_mean_s"] for each in policies.values()])
    page, _ = opened(browser, folder / "report.html")
    rows = page.evaluate(
        """[...document.querySelectorAll("#ranking-table tbody tr")].map(row => [
            row.dataset.policy,
            [...row.querySelectorAll("td")].map(cell => [cell.dataset.key, cell.dataset.value, cell.innerText])
        ])"""
    )
    assert [name for name, _ in rows] == sorted(policies, key=lambda name: policies[name]["jct_mean_s"])
    for name, cells in rows:
        assert {key for key, _, _ in cells} == {key for key, _, _ in REPORT_COLUMNS} - {"unfinished", "refused"}
        for key, exact, text in cells:
            value = value_of(policies[name], key)
            assert (float(exact) if exact else None) == value
            assert text.split("\n")[0].rstrip(" ✱○?") == displayed(key, value, seconds)
    assert f"mean JCT, {unit}" in page.locator("#ranking-table thead").inner_text().replace("\n", " ")


def test_the_table_is_sorted_by_keyboard(browser: Browser, folder: Path) -> None:
    page, wrong = opened(browser, folder / "report.html")
    values = "[...document.querySelectorAll('#ranking-table td[data-key=KEY]')].map(cell => Number(cell.dataset.value))"
    for key, down in (("wait_mean_s", False), ("throughput_per_h", True)):
        head = page.locator(f"#ranking-table th[data-key={key}]")
        head.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == ("descending" if down else "ascending")
        found = page.evaluate(values.replace("KEY", key))
        assert found == sorted(found, reverse=down)
        page.keyboard.press("Enter")
        assert page.evaluate(values.replace("KEY", key)) == found[::-1]
    assert page.locator("#ranking-table th[aria-sort]").count() == 1
    assert wrong == []


def test_hostile_names_do_nothing_but_show(browser: Browser, folder: Path, tmp_path: Path) -> None:
    hostile = make_hostile(folder, tmp_path / "hostile")
    for width in (1280, 400):
        page, wrong = opened(browser, hostile / "report.html", width)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("script").count() == 1
        assert page.locator("img").count() == 0
        assert "<script>alert(1)</script>" in page.locator("#ranking-table").inner_text()
        assert wrong == []


def test_the_page_says_its_piece_without_scripts(browser: Browser, folder: Path) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((folder / "report.html").as_uri())
    assert page.locator("#ranking-table tbody tr").count() == 3
    assert page.locator("#ranking-table thead button").count() == 0
