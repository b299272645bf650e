"""Pictures of a state: made once, and the one before it is shown while a large one is made."""

import sys
import threading
import time
from dataclasses import replace

import pytest
from tests.api.fake_service import FakeService, large_cluster

from adlro.api import pictures
from adlro.api.hidden import decision_shown, why_shown
from adlro.api.listing import jobs_shown
from adlro.api.pictures import LONG_S, Body, Eyes, Filter, Picture, json_bytes, json_in_pieces, picture_of
from adlro.api.views import Views, cluster_shown, state_shown
from adlro.core.ports import JobState, LiveJob
from adlro.core.records import Job
from adlro.live.service import Decision, Mention, State, Why

ALL = Eyes(all=True)
WHERE = ("/api/v1/state", b"", ALL)


class Turning:
    """A state that changes when told."""

    def __init__(self) -> None:
        self.state: State = FakeService().state()

    def turn(self) -> None:
        self.state = replace(self.state, alarms=(*self.state.alarms,), policy=self.state.policy + "'")

    def __call__(self) -> State:
        return self.state


def told(user: str) -> tuple[Why, Decision, LiveJob]:
    """Why a job of this user runs, which started before a job of bob's and one of ann's."""
    live = LiveJob("900", Job("learning", 1.0, user=user, name="mine"), JobState.RUNNING)
    text = "Starts before job 812 and job 813."
    mentions = (Mention("812", "lattice-3", "bob"), Mention("813", "own", "ann"))
    made = Decision("d", 1.0, 1, "900", "start", (), "sjf", text, mentions=mentions)
    return Why("900", "running", "running", text, "", decision=made, mentions=mentions), made, live


def test_the_sentence_of_a_decision_has_the_names_that_its_reader_may_see() -> None:
    why, made, live = told("ann")
    named = "Starts before lattice-3 (job 812) and own (job 813)."
    own = "Starts before job 812 and own (job 813)."
    for eyes, text in ((ALL, named), (Eyes("ann"), own)):
        assert decision_shown(made, live, eyes).reason == text
        shown = why_shown(why, live, eyes)
        assert shown.text == text
        assert shown.decision is not None
        assert shown.decision.reason == text
        assert b"lattice-3" not in json_bytes(shown) or eyes is ALL
        assert b"bob" not in json_bytes(shown) or eyes is ALL


def test_the_decision_of_a_hidden_job_has_no_sentence_and_names_nobody() -> None:
    _, made, live = told("bob")
    for eyes in (Eyes("ann"), Eyes()):
        shown = decision_shown(made, live, eyes)
        assert (shown.reason, shown.mentions) == ("", ())
    _, made, live = told("")
    assert decision_shown(made, live, Eyes()).mentions == ()


def policy_of(picture: Picture) -> object:
    return {"policy": picture.state.policy}


def settled(views: Views) -> None:
    """Wait for the thread that makes a picture."""
    for thread in threading.enumerate():
        if thread.name == "picture":
            thread.join(60)


def test_a_small_picture_is_made_by_whoever_asks() -> None:
    latest = Turning()
    views = Views(latest)
    assert views.ready() is None
    first = views.picture()
    assert views.ready() is first
    latest.turn()
    assert views.ready() is None or views._took_s >= LONG_S
    assert views.picture().state is latest.state


def test_the_picture_before_is_shown_while_a_large_one_is_made_and_then_never_again() -> None:
    latest = Turning()
    views = Views(latest)
    first = views.picture()
    views._took_s = 1.0
    latest.turn()
    assert views.ready() is first
    settled(views)
    now = views.ready()
    assert now is not None
    assert now.state is latest.state


def test_a_picture_that_has_become_large_at_once_is_made_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    latest = Turning()
    views = Views(latest)
    first = views.picture()
    views._took_s = 0.0
    monkeypatch.setattr(pictures, "LARGE", 1)
    latest.turn()
    assert views.ready() is first
    settled(views)
    now = views.ready()
    assert now is not None
    assert now.state is latest.state


def test_a_large_picture_is_not_made_again_for_every_turn_that_follows_closely() -> None:
    latest = Turning()
    views = Views(latest)
    views.picture()
    views._took_s = 1.0
    latest.turn()
    views.ready()
    settled(views)
    second = views._picture
    views._took_s, views._rests_until = 1.0, time.monotonic() + 60
    latest.turn()
    assert views.ready() is second
    settled(views)
    assert views.ready() is second
    views._rests_until = time.monotonic()
    views.ready()
    settled(views)
    now = views.ready()
    assert now is not None
    assert now.state is latest.state


def test_what_took_long_and_was_asked_for_is_there_when_the_new_picture_is_shown() -> None:
    latest = Turning()
    views = Views(latest)
    first = views.picture()
    for asked in (Filter(), Filter(search="x"), Filter(sort="name")):
        jobs_shown(first, ALL, asked, 0, 10)
    first.make(WHERE, policy_of, packs=False).uses += 1
    first.costly[WHERE] = policy_of
    nobody = ("/never/asked/again", b"", ALL)
    first.make(nobody, policy_of, packs=False)
    first.costly[nobody] = policy_of
    views._took_s = 1.0
    latest.turn()
    views.ready()
    settled(views)
    now = views.ready()
    assert now is not None
    assert now.bodies[WHERE].plain == b'{"policy":"%s"}' % latest.state.policy.encode()
    assert list(now.bodies) == [WHERE]
    assert list(now.lists) == [(ALL, Filter())]


def test_json_in_pieces_is_the_same_json() -> None:
    service = FakeService(large_cluster(60), 700)
    now = picture_of(service.state())
    whole: list[object] = [state_shown(now, ALL, 500, 50), cluster_shown(now, Eyes()), {}, [], {"a": []}, None]
    for shown in whole:
        assert json_in_pieces(shown) == json_bytes(shown)


def test_a_job_can_be_touched_while_threads_keep_answers() -> None:
    picture = picture_of(FakeService().state())
    body = Body(b"{}")
    for number in range(3000):
        picture.keep((f"/api/v1/jobs/{number}", b"", ALL), body)
    before, is_over = sys.getswitchinterval(), threading.Event()

    def keep_more() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            picture.bodies[f"/api/v1/other/{number % 500}", b"", ALL] = body
            picture.bodies.pop((f"/api/v1/other/{(number + 250) % 500}", b"", ALL), None)

    thread = threading.Thread(target=keep_more)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for number in range(0, 3000, 100):
            picture.touch(str(number))
            assert (f"/api/v1/jobs/{number}", b"", ALL) not in picture.bodies
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)
