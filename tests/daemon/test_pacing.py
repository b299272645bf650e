"""Turns that come because of a change take a share of the time only, and a quiet cluster does not make a job wait."""

import pytest

from adlro.daemon.pacing import LEAST_PAUSE_S, MOST_SAVED_S, TURN_SHARE, Pacing


def test_where_readings_cost_the_cluster_something_the_pause_is_four_times_as_long_as_the_turn() -> None:
    pacing = Pacing(lambda: 0.0)
    assert pacing.early_s(0.01, is_told=False) == LEAST_PAUSE_S
    assert pacing.early_s(0.5, is_told=False) == 2.0
    assert pacing.early_s(60.0, is_told=False) == 3.0


def test_where_the_back_end_is_told_a_turn_after_a_quiet_time_is_followed_at_once_whatever_the_cluster_took() -> None:
    now = [0.0]
    pacing = Pacing(lambda: now[0])
    pacing.spent(0.02)
    assert pacing.early_s(5.0, is_told=True) == pacing.least_s(is_told=True) < LEAST_PAUSE_S


def test_what_was_spent_beyond_what_was_saved_is_paused_for() -> None:
    now = [0.0]
    pacing = Pacing(lambda: now[0])
    pacing.spent(MOST_SAVED_S + 0.25)
    assert pacing.early_s(0.0, is_told=True) == pytest.approx(0.25 / TURN_SHARE)
    now[0] = 1000.0  # what is saved has a limit, however long nothing happens
    pacing.spent(MOST_SAVED_S + 0.25)
    assert pacing.early_s(0.0, is_told=True) == pytest.approx(0.25 / TURN_SHARE)


@pytest.mark.parametrize("turn_s", [0.005, 0.1, 0.5])
def test_a_cluster_that_always_changes_gets_its_share_of_turns_and_no_more(turn_s: float) -> None:
    now = [0.0]
    pacing = Pacing(lambda: now[0])
    spent = 0.0
    while now[0] < 600.0:
        now[0] += turn_s
        spent += turn_s
        pacing.spent(turn_s)
        now[0] += pacing.early_s(turn_s, is_told=True)
    assert spent <= TURN_SHARE * now[0] + MOST_SAVED_S + turn_s
