"""One clear line for every mistake in a TOML file."""

from typing import Literal

import pytest
from pydantic import Field

from adlro.core.errors import ConfigError
from adlro.core.toml import Schema, nearest, parse_toml


class Wheel(Schema):
    size: int = Field(ge=1, le=64)
    load: float | None = Field(None, gt=0)


class Car(Schema):
    name: str
    fuel: Literal["petrol", "electric"] = "petrol"
    wheels: list[Wheel] = Field([])
    spare: dict[str, Wheel] = Field({})


def message(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, "car.toml", Car)
    return str(caught.value)


def test_a_right_file_becomes_its_model() -> None:
    car = parse_toml('name = "a"\n[[wheels]]\nsize = 3\nload = 2', "car.toml", Car)
    assert car.wheels[0].load == 2.0


def test_a_syntax_error_names_the_file_and_the_line() -> None:
    assert message('name = "a"\nfuel = ?') == "car.toml: this is not TOML: Invalid value (at line 2, column 8)."


def test_an_unknown_key_gets_the_nearest_right_one() -> None:
    assert message('name = "a"\nfule = "petrol"') == "car.toml: unknown key 'fule'. Did you mean 'fuel'?"


def test_an_unknown_key_like_none_gets_the_list_of_keys() -> None:
    assert message('name = "a"\n[[wheels]]\nsize = 1\nzzz = 1') == (
        "car.toml: unknown key 'wheels[0].zzz'. Known keys here: load, size."
    )


def test_a_value_out_of_range_gets_the_range_and_its_path() -> None:
    assert message('name = "a"\n[[wheels]]\nsize = 1\n[[wheels]]\nsize = 65') == (
        "car.toml: 'wheels[1].size' is 65; expected a whole number from 1 to 64."
    )
    assert message('name = "a"\n[spare.left]\nsize = 1\nload = 0') == (
        "car.toml: 'spare.left.load' is 0; expected a number above 0."
    )


@pytest.mark.parametrize(("written", "shown"), [("true", "true"), ("1.5", "1.5"), ('"4"', "'4'"), ("[1]", "a list")])
def test_a_value_of_the_wrong_type_is_shown_and_not_converted(written: str, shown: str) -> None:
    assert f"'wheels[0].size' is {shown}; expected a whole number" in message(
        f'name = "a"\n[[wheels]]\nsize = {written}'
    )


def test_a_number_that_is_no_number_is_refused() -> None:
    assert "is nan; expected a number above 0" in message('name = "a"\n[[wheels]]\nsize = 1\nload = nan')


def test_a_wrong_choice_gets_the_allowed_ones_and_the_nearest() -> None:
    assert message('name = "a"\nfuel = "electrical"') == (
        "car.toml: 'fuel' is 'electrical'; expected 'petrol' or 'electric'. Did you mean 'electric'?"
    )


def test_a_missing_key_says_what_belongs_there() -> None:
    assert message("") == "car.toml: 'name' is missing; expected a text in quotes."


def test_of_several_problems_the_first_is_told_and_the_rest_counted() -> None:
    text = message('name = 1\nfuel = "x"\n[[wheels]]')
    assert text.startswith("car.toml: 'name' is 1; expected a text in quotes.")
    assert text.endswith("(2 more problems in this file.)")


def test_a_misspelt_key_is_told_before_the_key_that_it_leaves_missing() -> None:
    assert message('nmae = "a"') == "car.toml: unknown key 'nmae'. Did you mean 'name'? (1 more problem in this file.)"


def test_nearest_minds_no_case_and_says_nothing_when_nothing_is_near() -> None:
    assert nearest("V10O", ["v100", "a100"]) == " Did you mean 'v100'?"
    assert nearest("zebra", ["v100"]) == ""
