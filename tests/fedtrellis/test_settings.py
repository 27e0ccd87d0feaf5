"""Settings: every wrong value ends in one line that says what is allowed."""

from __future__ import annotations

import inspect
import math
import pydoc
import re
from typing import Any, ClassVar

import numpy as np
import pytest

from fedtrellis.settings import (
    Declared,
    SettingsError,
    given,
    keys,
    parse_values,
    setting,
)
from strategies import FedFW
from tests.harness import refused


class Common(Declared):
    """What all have."""

    seed: int = setting(0, "of everything random", minimum=0)
    heights: tuple[str, ...] = given("in order", default=(), shown=False)


class Method(Declared, options=Common):
    """A method."""

    measures: tuple[str, ...] = ()
    name: ClassVar[str]

    where: object = given("d, the set", kw_only=False)
    weight: float = setting(None, "weight", symbol="λ", auto=0.5, minimum=0.0)
    scale: float = setting(None, "found later", above=0.0)
    fraction: float = setting(0.5, "a part", above=0.0, below=1.0)
    steps: int = setting(3, "steps a round", minimum=1)
    kind: str = setting("a", "which", choices=("a", "b"))


class Faster(Method):
    """The same with other defaults, and one setting more."""

    steps: int = setting(9, "more steps", minimum=1)
    extra: bool = setting(False, "whether there is more")


def test_fields_are_keyword_arguments_and_a_subclass_says_what_is_different() -> None:
    parameters = inspect.signature(Method).parameters
    assert list(parameters) == [
        *("where", "weight", "scale", "fraction", "steps", "kind", "seed", "heights")
    ]
    assert parameters["where"].kind is parameters["where"].POSITIONAL_OR_KEYWORD
    assert parameters["steps"].kind is parameters["steps"].KEYWORD_ONLY
    assert Method.__annotations__["measures"] == "tuple[str, ...]"
    with pytest.raises(TypeError, match="where"):
        Method()  # type: ignore[call-arg]
    one: Any = Method("d", seed=2)  # type: ignore[call-arg]
    assert (one.options.seed, one.options.heights) == (2, ())
    assert (Faster("d").steps, Faster("d").fraction) == (9, 0.5)
    assert (Method("d").steps, Faster.steps, Method.steps) == (3, 9, 3)
    assert set(keys(Faster)) - set(keys(Method)) == {"extra"}
    with pytest.raises(SettingsError, match="seed = -1 must be at least 0"):
        Faster("d", seed=-1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (0.5, None, 0.5, 3)),
        ({"weight": "auto", "scale": "auto"}, (0.5, None, 0.5, 3)),
        ({"weight": np.float32(0.25), "steps": np.int64(7)}, (0.25, None, 0.5, 7)),
        ({"weight": np.float64(2), "steps": np.float64(7)}, (2.0, None, 0.5, 7)),
    ],
)
def test_values_become_their_fields_types(
    values: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    made = Method("d", **values)
    found = (made.weight, made.scale, made.fraction, made.steps)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps = 0 must be at least 1"),
        ({"steps": "auto"}, "steps = 'auto' must be a whole number, not a str"),
        ({"steps": 2.5}, "steps = 2.5 must be a whole number, not a float"),
        ({"steps": np.bool_(True)}, "must be a whole number, not a bool"),
        (
            {"fraction": math.nan},
            "fraction = nan must be greater than 0 and below 1 and finite",
        ),
        ({"weight": -1}, "weight = -1.0 must be at least 0, or 'auto'"),
        ({"scale": math.inf}, "scale = inf must be greater than 0 and finite"),
        ({"kind": 3}, "kind = 3 must be a text, not a int"),
        ({"extra": "true"}, "extra = 'true' must be true or false, not a str"),
        ({"scale": True}, "scale = True must be a number, not a bool"),
    ],
)
def test_a_constructor_checks_as_a_run_config_does(
    values: dict[str, Any], message: str
) -> None:
    said = refused(message, lambda: Faster("d", **values))
    ((name, value),) = values.items()
    again = refused(".", lambda: parse_values(Faster, {f"m.{name}": value}, "m."))
    assert again == f"m.{said}"


def test_help_lists_a_classs_own_fields_as_numpydoc_has_them() -> None:
    shown = pydoc.plain(pydoc.render_doc(FedFW))
    assert re.search(r"penalty : float, default auto\n.*λ_0, weight of the", shown)
