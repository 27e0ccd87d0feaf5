"""Settings: what can become a field's type does, and all else ends in one line."""

from __future__ import annotations

import math
import pydoc
import re
from typing import Any

import numpy as np
import pytest

from fedtrellis.settings import keys, parse_values, setting
from strategies import FedGiA, FedLMO
from tests.harness import refused


class Faster(FedLMO):
    """The same with another default, and one setting more."""

    local_steps: int = setting(9, "more steps", minimum=1)
    extra: bool = setting(False, "whether there is more")


def test_a_subclass_says_what_is_different() -> None:
    made: Any = Faster(seed=2)
    assert (made.local_steps, made.momentum, made.options.seed) == (9, 0.9, 2)
    assert (FedLMO().local_steps, Faster.local_steps, FedLMO.local_steps) == (5, 9, 5)
    assert set(keys(Faster)) - set(keys(FedLMO)) == {"extra"}
    refused("seed = -1 must be at least 0", lambda: Faster(seed=-1))


@pytest.mark.parametrize(
    ("sigma", "steps", "expected"),
    [
        ("auto", 3, (None, 3)),
        (None, 3, (None, 3)),
        (np.float32(0.25), np.int64(7), (0.25, 7)),
        (2, np.float64(7), (2.0, 7)),
    ],
)
def test_types_of_the_fields(sigma: Any, steps: Any, expected: tuple[Any, ...]) -> None:
    made = FedGiA(sigma=sigma, local_steps=steps)
    found = (made.sigma, made.local_steps)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "= 0 must be at least 1"),
        ("steps", "auto", "= 'auto' must be a whole number, not a str"),
        ("steps", 2.5, "= 2.5 must be a whole number, not a float"),
        ("steps", np.bool_(True), "must be a whole number, not a bool"),
        ("fraction", math.nan, "= nan must be greater than 0 and below 1 and finite"),
        ("weight", -1, "= -1.0 must be at least 0, or 'auto'"),
        ("weight", math.inf, "= inf must be at least 0 and finite"),
        ("weight", True, "= True must be a number, not a bool, or 'auto'"),
        ("kind", 3, "= 3 must be a text, not a int"),
        ("extra", "true", "= 'true' must be true or false, not a str"),
    ],
)
def test_constructors_check_as_configs_do(name: str, value: Any, message: str) -> None:
    class Method(FedLMO):
        weight: float = setting(None, "weight", auto=0.5, minimum=0.0)
        fraction: float = setting(0.5, "a part", above=0.0, below=1.0)
        steps: int = setting(3, "steps a round", minimum=1)
        kind: str = setting("a", "which", choices=("a", "b"))
        extra: bool = setting(False, "whether there is more")

    said = refused(f"^{name} .*{message}", lambda: Method(**{name: value}))
    config = {f"m.{name}": value}
    assert f"m.{said}" == refused(".", lambda: parse_values(Method, config, "m."))


def test_help_lists_fields_as_numpydoc_has_them() -> None:
    shown = pydoc.plain(pydoc.render_doc(FedGiA))
    assert re.search(r"sigma : float", shown)
