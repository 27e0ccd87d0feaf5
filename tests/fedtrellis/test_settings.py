"""Settings: every wrong value ends in one line that says what is allowed."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from fedtrellis.settings import (
    SettingsError,
    check_choice,
    describe,
    keys,
    parse,
    setting,
)


@dataclass(frozen=True)
class Example:
    step_size: float = setting(0.5, "the step", above=0.0, maximum=1.0)
    local_steps: int = setting(3, "steps a round", minimum=1)
    exact: bool = setting(True, "whether it is exact")
    schedule: str = setting("convex", "the schedule", choices=("convex", "constant"))
    note: str = setting("", "a text")
    derived: int = 7


def error_of(config: dict[str, Any], prefix: str = "") -> str:
    with pytest.raises(SettingsError) as caught:
        parse(Example, config, prefix)
    return str(caught.value)


def test_defaults_apply_where_the_config_says_nothing() -> None:
    assert parse(Example, {"another-group": "x"}) == Example()
    assert Example().step_size == 0.5


def test_all_keys_are_read() -> None:
    config = {
        "step-size": 0.25,
        "local-steps": 9,
        "exact": False,
        "schedule": "constant",
        "note": "n",
    }
    assert parse(Example, config) == Example(0.25, 9, False, "constant", "n")


def test_an_integer_is_taken_for_a_float_and_becomes_one() -> None:
    value = parse(Example, {"step-size": 1}).step_size
    assert value == 1.0
    assert type(value) is float


def test_a_float_with_a_whole_value_is_taken_for_an_integer() -> None:
    value = parse(Example, {"local-steps": 4.0}).local_steps
    assert value == 4
    assert type(value) is int


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("step-size", True, ["True", "a number", "bool"]),
        ("step-size", "0.5", ["'0.5'", "a number", "str"]),
        ("step-size", math.nan, ["nan", "finite"]),
        ("step-size", math.inf, ["inf", "finite"]),
        ("step-size", 0.0, ["0.0", "greater than 0", "at most 1"]),
        ("step-size", 1.5, ["1.5", "greater than 0", "at most 1"]),
        ("local-steps", True, ["True", "a whole number", "bool"]),
        ("local-steps", 2.5, ["2.5", "a whole number", "float"]),
        ("local-steps", 0, ["0", "at least 1"]),
        ("local-steps", -3, ["-3", "at least 1"]),
        ("exact", 1, ["1", "true or false", "int"]),
        ("exact", "true", ["'true'", "true or false", "str"]),
        ("schedule", "Convex", ["'Convex'", "did you mean 'convex'", "constant"]),
        ("schedule", 3, ["3", "a text", "int"]),
        ("note", b"x", ["b'x'", "a text", "bytes"]),
    ],
)
def test_a_wrong_value_gives_one_line_with_key_value_and_what_is_allowed(
    key: str, value: Any, parts: list[str]
) -> None:
    message = error_of({key: value})
    assert "\n" not in message
    assert message.startswith(f"{key} = ")
    for part in parts:
        assert part in message


def test_a_value_with_a_line_break_still_gives_one_line() -> None:
    message = error_of({"schedule": "con\nvex"})
    assert "\n" not in message
    assert r"con\nvex" in message


def test_the_bounds_that_are_included_are_allowed() -> None:
    assert parse(Example, {"step-size": 1.0, "local-steps": 1}).local_steps == 1


def test_a_choice_far_from_all_has_no_hint() -> None:
    message = error_of({"schedule": "zzz"})
    assert "did you mean" not in message
    assert "allowed: constant, convex" in message


def test_check_choice_returns_what_is_allowed() -> None:
    assert check_choice("method", "fedfw", ["feddr", "fedfw"]) == "fedfw"
    with pytest.raises(SettingsError, match=r"method = 'fedwf'.*mean 'fedfw'"):
        check_choice("method", "fedwf", ["feddr", "fedfw"])


def test_a_prefix_belongs_to_the_keys_and_to_the_errors() -> None:
    assert parse(Example, {"lasso.local-steps": 5}, "lasso.").local_steps == 5
    assert parse(Example, {"local-steps": 5}, "lasso.").local_steps == 3
    assert error_of({"lasso.local-steps": 0}, "lasso.").startswith("lasso.local-steps")
    assert set(keys(Example, "lasso.")) == {
        "lasso.step-size",
        "lasso.local-steps",
        "lasso.exact",
        "lasso.schedule",
        "lasso.note",
    }


def test_fixed_fields_do_not_come_from_the_config() -> None:
    made = parse(Example, {"local-steps": "nonsense"}, local_steps=8, derived=1)
    assert (made.local_steps, made.derived) == (8, 1)


def test_describe_gives_key_default_and_what_is_allowed() -> None:
    rows = {key: (default, text) for key, default, text in describe(Example, "a.")}
    assert rows["a.step-size"] == ("0.5", "the step (greater than 0 and at most 1)")
    assert rows["a.local-steps"] == ("3", "steps a round (at least 1)")
    assert rows["a.exact"] == ("True", "whether it is exact")
    assert rows["a.schedule"] == ("'convex'", "the schedule (one of convex, constant)")
    assert "a.derived" not in rows
