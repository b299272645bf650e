"""Pictures of a state: made once, and the one before it is shown while a large one is made."""

import threading
from dataclasses import replace

from tests.serve.fake_service import FakeService

from adlro.serve import api_views
from adlro.serve.api_views import Eyes, Filter, Picture, Views, jobs_shown
from adlro.serve.service import State

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


def policy_of(picture: Picture) -> object:
    return {"policy": picture.state.policy}


def settled(views: Views) -> None:
    """Wait for the thread that makes a picture."""
    for thread in threading.enumerate():
        if thread.name == "picture":
            thread.join(10)


def test_a_small_picture_is_made_by_whoever_asks() -> None:
    latest = Turning()
    views = Views(latest)
    assert views.ready() is None
    first = views.picture()
    assert views.ready() is first
    latest.turn()
    assert views.ready() is None or views._took_s >= api_views.LONG_S
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
