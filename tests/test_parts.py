"""A program that is missing skips its tests, but never in CI."""

import pytest
from tests.parts import program


def test_a_missing_program_skips_a_test_but_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("ADLRO_REQUIRE_PARTS", "0")
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        program("no-such-program")
    for name, value in (("CI", "true"), ("ADLRO_REQUIRE_PARTS", "1")):
        with monkeypatch.context() as set_up:
            set_up.setenv(name, value)
            with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
                program("no-such-program")


def test_a_program_that_is_there_is_found() -> None:
    assert program("sh").endswith("/sh")
