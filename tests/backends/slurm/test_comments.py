"""ADLRO's words in the comments of jobs: the mark of a restartable job, its signal, and a stop that is under way."""

import pytest

from adlro.backends.slurm.comments import (
    JobSignal,
    comment_with,
    said_in,
    signal_in,
    signal_of_script,
    stop_in,
    stop_mark,
    words_in,
)
from adlro.core.records import Job
from adlro.core.schema import property_of

RESTARTABLE = property_of(Job, "restartable")


@pytest.mark.parametrize(
    ("comment", "is_marked"),
    [
        ("mine adlro:restartable", True),
        ("adlro:restartable=yes", True),
        ("adlro:restartable=True", True),
        ("adlro:restartable=no", False),
        ("adlro:restartable=0", False),
        ("restartable", False),
        ("xadlro:restartable", False),
        ("[adlro: adlro:restartable]", False),
        ("", False),
    ],
)
def test_a_job_is_restartable_only_if_its_comment_has_the_word(comment: str, is_marked: bool) -> None:
    assert said_in(words_in(comment), RESTARTABLE) is is_marked


def test_a_word_that_says_no_does_not_become_a_mark_when_the_comment_is_written_again() -> None:
    comment = "mine adlro:restartable=no adlro:family=data"
    assert comment_with(comment, words_in(comment)) == "mine adlro:family=data"
    comment = "mine adlro:restartable=1"
    assert comment_with(comment, words_in(comment)) == "mine adlro:restartable"


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("USR1", JobSignal("USR1", 60.0, False)),
        ("B:usr1@30", JobSignal("USR1", 30.0, True)),
        ("R:10@5", JobSignal("10", 5.0, False)),
        ("RB:TERM@0", JobSignal("TERM", 0.0, True)),
        ("USR1@soon", None),
        ("; reboot", None),
        ("", None),
    ],
)
def test_a_signal_is_read_as_sbatch_reads_it(text: str, signal: JobSignal | None) -> None:
    assert signal_in(text) == signal


def test_the_last_signal_line_of_a_script_counts() -> None:
    script = "#!/bin/sh\n#SBATCH --signal=USR1@9\n#SBATCH -p gpu --signal B:USR2@5\necho '#SBATCH --signal=HUP'\n"
    assert signal_of_script(script) == JobSignal("USR2", 5.0, True)
    assert signal_of_script("#!/bin/sh\n# --signal=USR1\n") is None


def test_a_stop_that_is_under_way_means_nothing_after_a_restart_of_the_job() -> None:
    words = {"stopping": stop_mark("1794725489", 2)}
    assert stop_in(words, 2) == "1794725489"
    assert stop_in(words, 3) == ""
    assert stop_in({"stopping": "asked.0"}, 0) == "asked"
    for odd in ("", "asked", "soon.0", "-5.0"):
        assert stop_in({"stopping": odd}, 0) == ""
