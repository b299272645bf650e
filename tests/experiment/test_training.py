"""What a training says of itself when it has ended."""

from pathlib import Path

import pytest

from adlro.experiment.training import Training


def training(ratio: float | None, preset: str = "adlro") -> Training:
    return Training(preset, 0, Path("out"), Path("best"), Path("last"), 10, 2, 1.0, ratio, None, {})


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.93, "What was gained: mean completion times are 7.0 % shorter than with the rule eft-reserving, which"),
        (0.997, "Nothing was gained that can be measured: mean completion times differ by less than 0.5 %"),
        (1.004, "Nothing was gained that can be measured"),
        (1.2, "Nothing was gained: mean completion times are 20.0 % longer"),
        (None, "Nobody knows what was gained"),
    ],
)
def test_a_training_says_what_was_gained(ratio: float | None, said: str) -> None:
    assert training(ratio).gained().startswith(said)


def test_only_a_network_of_ours_begins_with_the_rule() -> None:
    assert "before it has learnt" in training(0.9).gained()
    assert "before it has learnt" not in training(0.9, "paper").gained()
