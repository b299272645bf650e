"""The dashboard in a browser, on a made-up cluster behind the real API: what people see, and that keys are enough."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.api.fake_service import NOW, FakeService, large_cluster
from tests.parts import program

import adlro.api
from adlro.api.app import make_app
from adlro.api.server import ApiServer, make_server
from adlro.api.settings import ApiSettings
from adlro.api.tokens import KeptToken, hash_of
from adlro.catalogue.clusters import load_cluster
from adlro.core.ports import JobState, Output
from adlro.core.records import Gpus, Job
from adlro.live.service import Alarm, Compared, Start

FOLDER = Path(adlro.api.__file__).parent / "dashboard"
VIEWS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> 🦊"
expect.set_options(timeout=20_000)  # milliseconds; a busy machine is slow, not wrong
TOKENS = {"viewer": "adlro_viewer", "operator": "adlro_operator"}


# ---- what the tests stand on -----------------------------------------------------------------------------------------


class Site:
    """A service behind the API on a port of its own."""

    def __init__(self, service: FakeService, server: ApiServer, address: str, thread: threading.Thread) -> None:
        self.service = service
        self.address = address
        self._server = server
        self._thread = thread

    def stop(self) -> None:
        """End the server, streams and all."""
        self._server.should_exit = True
        self._thread.join(timeout=60)


@contextmanager
def served(service: FakeService, needs_token: bool = False) -> Iterator[Site]:
    """A site for the length of a test."""
    settings = ApiSettings(auth="tokens" if needs_token else "off", rate_per_s=1000.0, burst=1000.0)
    kept = [KeptToken(role, role, hash_of(token), NOW) for role, token in TOKENS.items()]
    server = make_server(make_app(service, settings, dashboard=FOLDER, tokens=lambda: kept), settings)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    site = Site(service, server, f"http://127.0.0.1:{listener.getsockname()[1]}/", thread)
    wait_for(lambda: server.started)
    try:
        yield site
    finally:
        site.stop()
        listener.close()


def wait_for(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(name="site")
def serve_small() -> Iterator[Site]:
    """The small made-up cluster, for this test alone."""
    with served(FakeService()) as site:
        yield site


@pytest.fixture(name="still", scope="module")
def serve_still() -> Iterator[Site]:
    """The small made-up cluster, for the tests that change nothing."""
    with served(FakeService()) as site:
        yield site


@pytest.fixture(name="browser", scope="module")
def open_browser() -> Iterator[Browser]:
    """Chromium without a window."""
    path = program("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(name="open_page")
def make_opener(browser: Browser) -> Iterator[Callable[..., tuple[Page, list[str]]]]:
    """Opens pages that are closed after the test; each with what went wrong on it (filled further on)."""
    contexts = []

    def opened(
        site: Site, width: int = 1280, scheme: str = "light", ready: bool = True, path: str = ""
    ) -> tuple[Page, list[str]]:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(site.address) else wrong.append(request.url))
        page.goto(site.address + path)
        if ready:
            expect(page.locator("#stream")).to_have_text("live")
            if not path.startswith("job/"):
                expect(page.locator("#queue tbody tr").first).to_be_visible()
        return page, wrong

    yield opened
    for context in contexts:
        context.close()


Opener = Callable[..., tuple[Page, list[str]]]


def is_within(page: Page) -> bool:
    """Whether nothing sticks out at the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def brightness(colour: str) -> float:
    """How bright a colour as a browser tells it is, from 0 to 255."""
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until something has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"Tab does not come to {selector}")


# ---- the page as a whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_the_page_opens_without_an_error_an_outside_request_or_overflow(
    still: Site, open_page: Opener, width: int, scheme: str
) -> None:
    page, wrong = open_page(still, width, scheme)
    assert is_within(page)
    back, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert (brightness(back) > brightness(ink)) == (scheme == "light")
    page.locator("#queue a.job").first.click()
    expect(page.locator("#panel .answer")).to_be_visible()
    assert is_within(page)
    assert page.evaluate("(panel => panel.scrollWidth <= panel.clientWidth)(document.querySelector('#panel'))")
    for form in ("#open-submit", "#open-what-if"):
        page.keyboard.press("Escape")
        page.locator(form).click()
        expect(page.locator("#panel form")).to_be_visible()
        assert page.evaluate("(panel => panel.scrollWidth <= panel.clientWidth)(document.querySelector('#panel'))")
    assert wrong == []


def test_no_file_of_the_page_can_put_text_in_as_html_or_runs_inline() -> None:
    files = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert {"index.html", "style.css", "main.js"} <= set(files)
    for name, text in files.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", files["index.html"])


def test_the_tiles_say_what_the_state_says(still: Site, open_page: Opener) -> None:
    page, _ = open_page(still)
    tiles = page.locator("#tiles")
    running = sum(job.state in (JobState.RUNNING, JobState.PLACED) for job in still.service.jobs.values())
    waiting = sum(job.state is JobState.WAITING for job in still.service.jobs.values())
    expect(tiles).to_contain_text(f"Running{running}")
    expect(tiles).to_contain_text(f"Waiting{waiting}")
    expect(tiles).to_contain_text("16 that are up, 4 down")


def test_missing_telemetry_and_nodes_that_are_down_are_told(still: Site, open_page: Opener) -> None:
    page, _ = open_page(still)
    expect(page.locator("#pools")).to_contain_text("1 without telemetry")
    expect(page.locator("#pools")).to_contain_text("1 node down")
    page.locator("#grid").focus()
    expect(page.locator("#grid-detail")).to_contain_text("volta0, GPU 0, v100-sxm2-16gb: telemetry missing")
    page.keyboard.press("End")
    expect(page.locator("#grid-detail")).to_contain_text("down, drained: fan replaced at noon")


def test_bandwidth_power_and_clock_are_shown_of_a_gpu_that_tells_them(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    page.goto(f"{still.address}node/volta0")
    gpus = page.locator(".gpu")
    expect(gpus.nth(3)).to_contain_text("Memory bandwidth31 %")
    expect(gpus.nth(3)).to_contain_text("Power, of its TDP62 %")
    expect(gpus.nth(3)).to_contain_text("Clock, of its highest74 %")
    expect(gpus.nth(2)).to_contain_text("Temperature")
    expect(gpus.nth(2)).not_to_contain_text("bandwidth")
    assert wrong == []


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_submitted_job_shows_within_two_ticks(site: Site, open_page: Opener) -> None:
    page, wrong = open_page(site)
    page.locator("#open-submit").click()
    page.locator("#panel [name=name]").fill(HOSTILE)
    page.locator("#panel [name=family]").fill("learning")
    page.locator("#panel [name=gpus]").fill("8")
    page.locator("#panel [name=minutes]").fill("30")
    page.keyboard.press("Enter")
    expect(page.locator("#panel .said")).to_contain_text("Submitted as job")
    page.keyboard.press("Escape")
    for _ in range(2):
        site.service.turn()
    page.locator("#search").fill("alert(1)")
    row = page.locator("#queue tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("a.job")).to_have_text(HOSTILE)
    row.locator("a.job").click()
    expect(page.locator("#panel-title")).to_have_text(HOSTILE)
    expect(page.locator("#panel .facts").last).to_contain_text("8 GPUs")
    submitted = site.service.jobs[max(site.service.jobs)].job
    assert (submitted.name, submitted.gpus, submitted.work) == (HOSTILE, 8, 30 * 60 * 8)
    assert page.locator("#panel img, #queue img, #queue script").count() == 0
    assert wrong == []


def test_a_refused_job_says_why(still: Site, open_page: Opener) -> None:
    page, _ = open_page(still)
    page.locator("#open-submit").click()
    page.locator("#panel [name=family]").fill("poetry")
    page.keyboard.press("Enter")
    expect(page.locator("#panel .said")).to_contain_text("No family 'poetry'; known are simulation, learning, data")


def test_a_click_tells_why_a_job_waits_in_the_words_of_the_service(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    waiting = still.service.one(JobState.WAITING)
    why = still.service.why(waiting.id)
    assert why is not None
    page.locator("#search").fill(waiting.id)
    page.locator(f"#queue tr[data-key='{waiting.id}'] a.job").click()
    panel = page.locator("#panel")
    expect(panel).to_contain_text(why.text)
    expect(panel).to_contain_text(why.rule)
    for place in why.places:
        expect(panel).to_contain_text(place["answer"])
    assert wrong == []


def test_keys_alone_lead_to_why_a_job_waits_and_back(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    tab_to(page, "#queue a.job")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.closest('tr').dataset.key")
    assert focused == page.locator("#queue tbody tr").nth(2).get_attribute("data-key")
    page.keyboard.press("Enter")
    why = still.service.why(focused)
    assert why is not None
    expect(page.locator("#panel .answer")).to_have_text(why.text)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == focused
    page.keyboard.press("PageDown")
    expect(page.locator("#page-said")).to_contain_text("16–30 of")
    assert wrong == []


def test_keys_alone_lead_from_a_gpu_to_why_its_job_runs_there(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    tab_to(page, "#grid")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#grid-current")).to_contain_text("volta0, GPU 1,")
    page.keyboard.press("Enter")
    here = next(
        job for job in still.service.jobs.values()
        if job.ended_s is None and any(part.node == "volta0" and 1 in part.indices for part in job.parts)
    )  # fmt: skip
    why = still.service.why(here.id)
    assert why is not None
    assert why.decision is not None
    panel = page.locator("#panel")
    expect(panel).to_contain_text(why.text)
    expect(panel).to_contain_text(why.decision.reason)
    expect(panel.locator(".alternatives li")).to_have_count(len(why.decision.alternatives))
    expect(panel.locator(".alternatives li.chosen")).to_contain_text("✓ chosen")
    for like in why.decision.like:
        expect(panel.locator("table")).to_contain_text(like.user)
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "grid"
    tab_to(page, "#gantt")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#gantt-current")).to_contain_text(" on ")
    page.keyboard.press("Enter")
    expect(panel.locator(".answer")).to_be_visible()
    assert wrong == []


def test_jobs_are_filtered_by_state_and_found_by_text(still: Site, open_page: Opener) -> None:
    page, _ = open_page(still)
    page.locator("#state-filter").select_option("ended")
    expect(page.locator("#queue tbody tr")).to_have_count(3)
    expect(page.locator("#queue")).to_contain_text("failed, exit code 1")
    page.locator("#search").fill("no such job")
    expect(page.locator("#queue-empty")).to_have_text("No job matches.")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#queue tbody tr")).to_have_count(3)


def test_a_job_is_cancelled_only_when_asked_twice(site: Site, open_page: Opener) -> None:
    page, _ = open_page(site)
    waiting = site.service.one(JobState.WAITING)
    page.locator("#search").fill(waiting.id)
    page.locator(f"#queue tr[data-key='{waiting.id}'] a.job").click()
    page.get_by_role("button", name="Cancel this job").click()
    assert site.service.jobs[waiting.id].state is JobState.WAITING
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(page.locator("#panel .said")).to_contain_text("It is being cancelled.")
    assert site.service.jobs[waiting.id].state is JobState.CANCELLED


# ---- sorting and filters --------------------------------------------------------------------------------


def column(page: Page, number: int) -> list[str]:
    """The texts of a column of the table of jobs."""
    return page.locator(f"#queue tbody tr td:nth-child({number})").all_inner_texts()


def test_a_click_on_a_head_sorts_over_all_pages_and_a_link_shows_the_same(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    head = page.locator("#queue th[data-sort=user]")
    users = sorted(job.job.user for job in still.service.jobs.values() if job.state is JobState.WAITING)
    for order, first in (("ascending", users[0]), ("descending", users[-1])):
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", order)
        expect(page.locator("#queue tbody tr td:nth-child(2)").first).to_have_text(first)
    assert page.url.endswith("/?sort=user&order=desc")
    page.locator("#next").click()
    expect(page.locator("#page-said")).to_contain_text("16–30 of")
    shown = column(page, 2)
    assert shown == sorted(shown, reverse=True)
    again, _ = open_page(still, path="?sort=user&order=desc&page=2")
    expect(again.locator("#page-said")).to_contain_text("16–30 of")
    assert column(again, 1) == column(page, 1)
    head.locator("button").click()
    expect(page.locator("#queue th[aria-sort]")).to_have_count(0)
    assert wrong == []


def test_filters_are_in_the_address_and_asked_of_the_daemon(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    page.locator("#state-filter").select_option("all")
    page.locator("#partition-filter").select_option("debug")
    page.locator("#user-filter").fill("ann")
    jobs = [job for job in still.service.jobs.values() if job.job.user == "ann" and job.partition == "debug"]
    expect(page.locator("#queue tbody tr")).to_have_count(len(jobs))
    expect(page).to_have_url(re.compile(r"user=ann&partition=debug&state=all$"))
    page.reload()
    expect(page.locator("#queue tbody tr")).to_have_count(len(jobs))
    expect(page.locator("#partition-filter")).to_have_value("debug")
    page.locator("#model-filter").select_option("t4")
    there = [job for job in jobs if any(part.model == "t4" for part in job.parts) or not job.parts]
    expect(page.locator("#queue tbody tr")).to_have_count(len(there))
    assert wrong == []


def test_a_cluster_with_namespaces_is_shown_in_its_own_words(site: Site, open_page: Opener) -> None:
    latest = site.service.latest
    site.service.latest = replace(latest, snapshot=replace(latest.snapshot, partition_word="namespace"))
    page, wrong = open_page(site)
    expect(page.locator("#queue th.partition .name")).to_have_text("Namespace")
    expect(page.locator("#partition-filter option").first).to_have_text("Any namespace")
    expect(page.locator("label:has(#partition-filter) .partition-word")).to_have_text("Namespace")
    page.locator("#partition-filter").select_option("debug")
    page.locator("#queue td.partition a").first.click()
    expect(page.locator("#page")).to_contain_text("Namespace debug")
    expect(page).to_have_title("Namespace debug · ADLRO")
    assert "artition" not in page.locator("main").inner_text()
    assert wrong == []


# ---- pages --------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_every_kind_of_page_opens_by_its_address_without_an_error_or_overflow(
    still: Site, open_page: Opener, width: int, scheme: str
) -> None:
    running = still.service.one(JobState.RUNNING)
    for path, text in (
        (f"job/{running.id}", "Why here"), (f"node/{running.parts[0].node}", "Free cores"),
        (f"user/{running.job.user}", "GPU time"), (f"partition/{running.partition}", "GPU time"),
    ):  # fmt: skip
        page, wrong = open_page(still, width, scheme, path=path)
        expect(page.locator("#page")).to_contain_text(text)
        expect(page.locator("#tiles")).to_be_hidden()
        assert is_within(page)
        assert wrong == []


def test_links_lead_from_job_to_node_to_user_and_back_again(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    running = still.service.one(JobState.RUNNING)
    node = running.parts[0].node
    page.locator("#state-filter").select_option("running")
    page.locator(f"#queue tr[data-key='{running.id}'] a.job").click()
    page.get_by_role("link", name="Open its page").click()
    expect(page).to_have_url(f"{still.address}job/{running.id}")
    expect(page).to_have_title(re.compile(rf"job {running.id} · ADLRO$"))
    expect(page.locator("#panel")).to_be_hidden()
    page.locator(".job-facts").get_by_role("link", name=node, exact=True).click()
    expect(page).to_have_url(f"{still.address}node/{node}")
    expect(page.locator(".page-title")).to_have_text(node)
    expect(page.locator(".gpu")).to_have_count(4)
    page.locator(".gpu").get_by_role("link", name=running.job.user, exact=True).first.click()
    expect(page).to_have_url(f"{still.address}user/{running.job.user}")
    expect(page.locator("#jobs-title")).to_have_text("Jobs that wait or run")
    expect(page.locator("#queue tbody tr td:nth-child(2)").first).to_have_text(running.job.user)
    assert set(column(page, 2)) == {running.job.user}
    page.go_back()
    expect(page.locator(".page-title")).to_have_text(node)
    page.go_back()
    page.go_back()
    expect(page.locator("#tiles")).to_be_visible()
    expect(page.locator("#state-filter")).to_have_value("running")
    page.go_forward()
    expect(page.locator(".job-content")).to_contain_text("Why here")
    page.get_by_role("link", name="ADLRO").click()
    expect(page).to_have_url(still.address)
    expect(page.locator("#state-filter")).to_have_value("waiting")
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("job/999999", "There is no such job."),
        ("node/nowhere", "There is no node of this name in the cluster."),
        ("user/nobody", "No job of a user of this name is known"),
        ("partition/%3Cimg%20src=x%20onerror=alert(1)%3E", "No job of a partition of this name is known"),
    ],
)
def test_what_does_not_exist_is_said_so(still: Site, open_page: Opener, path: str, words: str) -> None:
    page, wrong = open_page(still, ready=False, path=path)
    expect(page.locator("#page .notice")).to_contain_text(words)
    expect(page.locator("#jobs-card")).to_be_hidden()
    assert [line for line in wrong if "Failed to load resource" not in line] == []
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.locator("#queue tbody tr").first).to_be_visible()


def test_the_page_of_a_job_tells_its_decisions_and_shows_scores_only_when_asked(still: Site, open_page: Opener) -> None:
    running = still.service.one(JobState.RUNNING)
    why = still.service.why(running.id)
    assert why is not None
    assert why.decision is not None
    page, wrong = open_page(still, path=f"job/{running.id}")
    expect(page.locator(".job-content .answer")).to_have_text(why.text)
    expect(page.locator(".job-content")).to_contain_text(why.decision.reason)
    expect(page.locator(".job-decisions li")).to_have_count(1)
    scores = page.locator(".alternatives li").first
    expect(scores).to_be_hidden()
    page.locator(".alternatives summary").click()
    expect(scores).to_be_visible()
    still.service.happen("tick", {})  # the page is read again, and what was unfolded stays so
    expect(scores).to_be_visible()
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_of_a_job_tells_how_fast_it_is_on_each_model_and_why(
    still: Site, open_page: Opener, width: int
) -> None:
    running = still.service.one(JobState.RUNNING)
    found = still.service.speeds(running.id)
    assert found is not None
    page, wrong = open_page(still, width, path=f"job/{running.id}")
    rows = page.locator(".job-speeds > table tbody tr")
    expect(rows).to_have_count(len(found.speeds))
    expect(rows.first).to_contain_text("the fastest")
    expect(rows.nth(1)).to_contain_text("0.67 0.61 to 0.73")
    expect(rows.nth(1)).to_contain_text("sure")
    expect(rows.nth(2)).to_contain_text("measured")
    reason = page.locator(".reasons tbody tr").first
    expect(reason).to_be_hidden()
    page.locator(".reasons summary").click()
    expect(reason).to_contain_text("user ann, word train, gpus 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert wrong == []


def test_output_is_shown_as_text_when_asked_for(site: Site, open_page: Opener) -> None:
    running = site.service.one(JobState.RUNNING)
    site.service.outputs[running.id] = Output(running.id, running.job.user, HOSTILE, "", 90_000, 0)
    site.service.latest = replace(site.service.latest, backend="local")
    page, wrong = open_page(site, path=f"job/{running.id}")
    page.locator(".output button").click()
    expect(page.locator(".output pre")).to_have_text(HOSTILE)
    expect(page.locator(".output")).to_contain_text("the last 64\xa0KiB of 87.9\xa0KiB")
    expect(page.locator(".output")).to_contain_text("Nothing.")
    site.service.outputs[running.id] = Output(running.id, running.job.user, "more", "oh", 4, 2)
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator(".output pre")).to_have_text(["more", "oh"])
    assert wrong == []


def test_a_viewer_sees_neither_output_nor_the_page_of_a_user(open_page: Opener) -> None:
    with served(FakeService(), needs_token=True) as site:
        running = site.service.one(JobState.RUNNING)
        site.service.latest = replace(site.service.latest, backend="local")
        page, _ = open_page(site, ready=False, path=f"job/{running.id}")
        page.get_by_label("Token").fill(TOKENS["viewer"])
        page.keyboard.press("Enter")
        expect(page.locator(".job-content")).to_contain_text("is another's")
        expect(page.locator(".output")).to_be_hidden()
        assert running.job.user not in page.locator("#page").inner_text().split()
        page.evaluate("path => history.pushState(null, '', path)", f"/user/{running.job.user}")
        page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
        expect(page.locator("#page .notice")).to_contain_text("You see your own jobs only.")
        expect(page.locator("#jobs-card")).to_be_hidden()


# ---- time --------------------------------------------------------------------------------


def test_a_start_to_come_is_never_in_the_past(site: Site, open_page: Opener) -> None:
    service = site.service
    first, second = [job.id for job in service.jobs.values() if job.state is JobState.WAITING][:2]
    with service.lock:
        now = service.latest.snapshot.time_s
        starts = {
            first: Start(first, now - 900, now - 600, now - 34),
            second: Start(second, now - 60, now - 34, now + 600),
        }
        service.latest = replace(service.latest, starts=starts)
        service.happen("tick", {})
    page, wrong = open_page(site)
    rows = [page.locator(f"#queue tr[data-key='{id}']") for id in (first, second)]
    expect(rows[0]).to_contain_text("any moment now")
    expect(rows[0]).to_contain_text("overdue since")
    expect(rows[1]).to_contain_text("most likely by")
    expect(page.locator("#tiles")).to_contain_text("next any moment now")
    rows[0].locator("a.job").click()
    expect(page.locator("#panel .start")).to_contain_text("overdue since")
    assert not re.search(r"likely \S+ \S+ ago", page.locator("body").inner_text())
    assert wrong == []


def test_in_shadow_mode_the_page_says_what_adlro_would_do(site: Site, open_page: Opener) -> None:
    with site.service.lock:
        site.service.latest = replace(site.service.latest, backend="shadow")
        site.service.happen("tick", {})
    page, _ = open_page(site)
    expect(page.locator("#guard")).to_contain_text("adlro would decide")
    expect(page.locator("#guard")).to_contain_text("Slurm schedules this cluster")
    expect(page.locator("#queue th").last).to_contain_text("Would start")
    expect(page.locator("#tiles")).to_contain_text("next would start")
    expect(page.locator("#decisions")).to_contain_text("would start: ")


def test_dates_and_the_time_zone_are_named_and_history_goes_back_weeks(site: Site, open_page: Opener) -> None:
    service = site.service
    service.compared = [
        Compared(NOW - 3600 * n, 0.5, 60.0, 70.0, 5, 6) for n in range(24 * 7 * 8, 0, -1) if not 100 < n < 200
    ]
    page, wrong = open_page(site)
    expect(page.locator("#clock")).to_have_text(re.compile(r"Fri, 15 Jan 2027, 08:\d\d UTC"))
    page.get_by_role("button", name="8 w").click()
    expect(page.locator("#course-said")).to_have_text(
        re.compile(r"^2[01] Nov \d\d:00 – 15 Jan \d\d:\d\d UTC, means over")
    )
    for chart in ("utilisation", "queue", "jct"):
        expect(page.locator(f"#{chart}-chart svg").first).to_be_visible()
        d = page.locator(f"#{chart}-chart path.line.own").first.get_attribute("d")
        assert d is not None
        assert d.count("M") == 2  # a gap, where nothing was measured
    assert wrong == []


# ---- who decides -----------------------------------------------------------------------------------------------------


def test_the_guard_is_seen_when_it_steps_in(site: Site, open_page: Opener) -> None:
    page, _ = open_page(site)
    expect(page.locator("#guard")).to_contain_text("adlro decides")
    service = site.service
    service.alarms.append(Alarm(service.now, "budget", "The policy took 3.1 s; it may take 1 s."))
    service.turn()
    with service.lock:
        service.latest = replace(service.latest, is_guarded=True)
        service.happen("alarm", {})
    expect(page.locator("#guard")).to_contain_text("easy decides")
    expect(page.locator("#guard")).to_contain_text("instead of adlro. The policy took 3.1 s; it may take 1 s.")
    expect(page.locator("#alarms")).to_contain_text("budget")
    expect(page.locator("#drifts")).to_contain_text("71\xa0% of the expected speed, seen on 17 jobs")


def test_an_operator_switches_the_policy(site: Site, open_page: Opener) -> None:
    page, _ = open_page(site)
    page.locator("#policy").select_option("sjf")
    page.locator("#policy-form button").click()
    expect(page.locator("#policy-said")).to_contain_text("sjf decides from the next turn on.")
    assert site.service.policy == "sjf"
    site.service.turn()
    expect(page.locator("#guard")).to_contain_text("sjf decides")


def test_a_question_is_answered_in_words(still: Site, open_page: Opener) -> None:
    page, wrong = open_page(still)
    page.locator("#open-what-if").click()
    page.get_by_label("GPUs on each").fill("4")
    page.get_by_text("Submit this job as well").click()
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator(".foreseen .answer")).to_have_text(
        "With 4 more GPUs the jobs that wait would be done 17% sooner."
    )
    expect(page.locator(".foreseen")).to_contain_text("It would start")
    assert wrong == []


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_and_kept_for_the_tab_only(open_page: Opener) -> None:
    with served(FakeService(), needs_token=True) as site:
        page, _ = open_page(site, ready=False)
        expect(page.locator("#panel-title")).to_have_text("Sign in")
        page.get_by_label("Token").fill("adlro_wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#panel .said")).to_be_visible()
        page.get_by_label("Token").fill(TOKENS["viewer"])
        page.keyboard.press("Enter")
        expect(page.locator("#stream")).to_have_text("live")
        expect(page.locator("#open-token")).to_have_text("viewer, viewer")
        expect(page.locator("#policy-form")).to_be_hidden()
        expect(page.locator("#open-submit")).to_be_hidden()
        assert page.evaluate("[localStorage.length, document.cookie, location.href]") == [0, "", site.address]
        assert TOKENS["viewer"] in page.evaluate("Object.values(sessionStorage)")


# ---- when things end -------------------------------------------------------------------------------------------------


def test_the_end_of_the_stream_is_shown_as_stale_with_the_time(open_page: Opener) -> None:
    with served(FakeService()) as site:
        page, _ = open_page(site)
        site.stop()
        expect(page.locator("#stream")).to_have_text(re.compile(r"stale since \d\d:\d\d:\d\d"))
        expect(page.locator("#queue tbody tr").first).to_be_visible()


def test_without_a_stream_the_page_asks_again_and_again(site: Site, browser: Browser) -> None:
    page = browser.new_page()
    page.clock.install()
    page.route("**/api/v1/events", lambda route: route.abort())
    page.goto(site.address)
    page.clock.run_for(1_000)
    expect(page.locator("#stream")).to_have_text("no stream, asking every 5 s")
    for _ in range(2):
        site.service.turn()
        wait_for(lambda: is_shown_a_second_later(page, f"#{site.service.number}"))
    page.close()


def is_shown_a_second_later(page: Page, text: str) -> bool:
    """Whether a tile has this text, by the page's clock a second from now."""
    page.clock.run_for(1_000)
    return text in page.locator("#tiles").inner_text()


def test_a_daemon_that_does_not_answer_is_said_so_at_once(browser: Browser, still: Site) -> None:
    page = browser.new_page()
    page.route("**/api/**", lambda route: route.abort())
    page.goto(still.address)
    expect(page.locator("#trouble")).to_contain_text("The daemon does not answer. It is asked again every 5 s.")
    expect(page.locator("#stream")).to_have_text("no answer")
    page.close()


def test_an_empty_cluster_says_that_it_is_empty(site: Site, open_page: Opener) -> None:
    service = site.service
    service.compared = []
    page, wrong = open_page(site)
    with service.lock:
        now = service.latest
        bare = replace(now.snapshot, jobs=(), down={}, time_s=now.snapshot.time_s + 1)
        service.latest = replace(
            now, snapshot=bare, tick=None, starts={}, alarms=(), drifts=(), history=(), telemetry={}
        )
        service.happen("tick", {})
    expect(page.locator("#queue-empty")).to_have_text("Nothing waits. Jobs start as soon as they arrive.")
    expect(page.locator("#alarms")).to_have_text("No alarms.")
    expect(page.locator("#drifts")).to_have_text("Every GPU runs as fast as expected.")
    expect(page.locator("#jct-chart")).to_have_text("Too few jobs have ended yet.")
    expect(page.locator("#pools")).to_contain_text("no telemetry")
    assert wrong == []


# ---- size ------------------------------------------------------------------------------------------------------------


class WideJobs(FakeService):
    """Jobs that take whole nodes, and some that fit nowhere and wait."""

    def some_job(self, submit_s: float) -> Job:
        return replace(super().some_job(submit_s), gpus=8 if self.random.random() < 0.9 else 16)


def test_a_thousand_nodes_of_eight_gpus_take_few_elements_and_little_time(open_page: Opener) -> None:
    base = load_cluster("paper16")
    nodes = tuple(
        replace(node, name=f"node{n:04}", gpus=(Gpus(node.gpus[0].model, 8),))
        for n, node in ((n, base.nodes[n % len(base.nodes)]) for n in range(1000))
    )
    with served(WideJobs(replace(base, nodes=nodes), jobs=150)) as site:
        for width in (1280, 400):
            page, wrong = open_page(site, width)
            expect(page.locator("#cluster-name")).to_contain_text("8,000 GPUs on 1,000 nodes")
            assert page.evaluate("document.querySelectorAll('*').length") < 1500
            assert is_within(page)
            page.locator("#grid").focus()
            took = page.evaluate(MOVES)
            assert took < 250  # milliseconds for a move, which draws all cells again
            expect(page.locator("#grid-detail")).to_contain_text("node0")
            assert wrong == []


def test_nodes_of_a_large_cluster_have_names_are_found_and_lead_to_their_page(open_page: Opener) -> None:
    with served(FakeService(large_cluster(1000), jobs=60)) as site:
        page, wrong = open_page(site)
        grid = page.locator("#pools canvas").first
        grid.hover(position={"x": 110, "y": 3})
        expect(page.locator("#grid-tip")).to_contain_text("node0000")
        page.locator("#find-node").fill("node01")
        expect(page.locator("#find-said")).to_have_text("100 of 1,000 nodes")
        page.locator("#find-node").fill("node0123")
        expect(page.locator("#find-said")).to_have_text("1 of 1,000 nodes")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site.address}node/node0123")
        expect(page.locator(".page-title")).to_have_text("node0123")
        page.go_back()
        page.locator("#find-node").fill("")
        page.locator("#pools canvas").first.click(position={"x": 10, "y": 8})  # a name at the left
        expect(page).to_have_url(f"{site.address}node/node0000")
        assert wrong == []


LABELS = """async () => {
  const { cutApart } = await import("./dom.js");
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px sans-serif";
  const list = (length, make) => Array.from({ length }, (_, number) => make(number));
  const long = "x".repeat(90);
  const sets = [
    list(300, (n) => `${long}-node${n}`), list(300, (n) => `node${n}${long}`), list(300, (n) => `a${long}${n}${long}`),
    list(40, (n) => "rack-" + "y".repeat(n) + long), ["same", "same", "other"],
  ];
  const wrong = [];
  for (const names of sets)
    for (const width of [20, 48, 90, 200]) {
      const texts = [...cutApart(pen, names, width).values()];
      if (new Set(texts).size !== new Set(names).size) wrong.push(`${names[0].slice(0, 9)} in ${width}: twice`);
      const isWide = (text) => pen.measureText(text).width > Math.max(width, 40);
      if (texts.some((text) => !text || isWide(text))) wrong.push(`${width}: wide`);
    }
  return wrong;
}"""


def test_labels_are_never_cut_to_the_same_text(still: Site, open_page: Opener) -> None:
    page, _ = open_page(still)
    assert page.evaluate(LABELS) == []


@pytest.mark.parametrize("width", [1280, 400])
def test_names_of_two_hundred_letters_break_nothing(site: Site, open_page: Opener, width: int) -> None:
    service = site.service
    for number, (id, live) in enumerate(list(service.jobs.items())):
        tail = f"{'w' * 194}-{number:04}"
        job = replace(live.job, name=f"n{tail}", user=f"u{tail[-60:]}", family=f"f{tail[-100:]}")
        service.jobs[id] = replace(live, job=job, partition=f"p{'q' * 60}", reason=tail)
    service.turn()
    running, waiting = service.one(JobState.RUNNING), service.one(JobState.WAITING)
    for path in (
        "", "?state=all", f"job/{running.id}", f"job/{waiting.id}", f"user/{running.job.user}",
        f"partition/{running.partition}", f"node/{running.parts[0].node}",
    ):  # fmt: skip
        page, wrong = open_page(site, width, path=path)
        assert is_within(page), path
        page.wait_for_timeout(200)
        assert is_within(page), path
        heights = page.evaluate("[...document.querySelectorAll('#queue tbody tr')].map((row) => row.offsetHeight)")
        assert max([*heights, 0]) < 420
        assert wrong == []
    page, _ = open_page(site, width)
    names = page.locator("#queue a.job").all_inner_texts()
    assert len(set(names)) == len(names) > 5
    page.locator("#queue a.job").first.click()
    expect(page.locator("#panel .answer")).to_be_visible()
    assert page.evaluate("(panel => panel.scrollWidth <= panel.clientWidth)(document.querySelector('#panel'))")


MOVES = """() => {
  const grid = document.querySelector("#grid");
  const began = performance.now();
  for (const key of ["ArrowDown", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp"])
    grid.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  return (performance.now() - began) / 5;
}"""


LAYOUTS = """async () => {
  const { placed } = await import("./layout.js");
  const list = (length, make) => Array.from({ length }, (_, number) => make(number));
  const node = (gpus) => ({ gpus: list(gpus, (index) => ({ index })) });
  const wrong = new Set();
  const kinds = new Set();
  for (const width of [300, 352, 784, 1400])
    for (const [nodes, each] of [[1, 1], [1, 16], [4, 4], [6, 8], [40, 8], [300, 4], [1000, 8], [6000, 8]]) {
      const pools = [{ nodes: list(nodes, (n) => node(n % 2 ? each : Math.ceil(each / 2))) }, { nodes: [node(4)] }];
      const { kind, places } = placed(pools, width);
      kinds.add(kind.name);
      places.forEach(({ cells, height }, number) => {
        const shown = new Set(cells.flatMap((cell) => cell.gpus));
        const corners = new Set(cells.map((cell) => `${cell.x} ${cell.y}`));
        const isOut = ({ x, y, width: w, height: h }) => x < 0 || y < 0 || x + w > width || y + h > height;
        const name = `${nodes} nodes of ${each} in ${width}: `;
        if (pools[number].nodes.some((each) => each.gpus.some((gpu) => !shown.has(gpu)))) wrong.add(name + "missing");
        if (corners.size !== cells.length) wrong.add(name + "two in one place");
        if (cells.some(isOut)) wrong.add(name + "outside");
      });
    }
  return [[...wrong], [...kinds].sort()];
}"""


def test_every_gpu_of_every_size_of_cluster_has_a_place_of_its_own_within_the_page(
    still: Site, open_page: Opener
) -> None:
    page, _ = open_page(still)
    assert page.evaluate(LAYOUTS) == [[], ["card", "chip", "dot", "node", "tiny"]]


def test_a_job_without_a_name_is_called_by_its_number(site: Site, open_page: Opener) -> None:
    service = site.service
    id = service.add(Job("learning", 600.0, submit_s=service.now, gpus=8))
    service.turn()
    page, _ = open_page(site)
    page.locator("#search").fill(id)
    expect(page.locator("#queue tbody tr")).to_have_count(1)
    expect(page.locator("#queue a.job")).to_have_text(f"job {id}")
