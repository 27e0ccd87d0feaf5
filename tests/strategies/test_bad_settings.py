"""Every setting of every method: what is not allowed is refused in one line."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

import strategies
from fedtrellis import SettingsError
from fedtrellis.domains import L1Ball
from fedtrellis.manifolds import Sphere
from fedtrellis.server.options import RunOptions

_TINY, _INF = 2.0**-30, math.inf
#: Least and largest value that are allowed, and whose; whole numbers are ints.
_RANGES = (
    (_TINY, _INF, "adaptivity local_step_size penalty proximal_step regularization"),
    (_TINY, _INF, "privacy_clip privacy_epsilon start_timeout"),
    (1.0, _INF, "answer_bound"),
    (_TINY, 1.0 - _TINY, "privacy_delta"),
    (_TINY, _INF, "server_step_size sigma sigma_scale smoothing step_size"),
    (0.0, _INF, "l1 l2 lmo_noise matching noise proximal_weight"),
    (0.0, _INF, "privacy_noise_multiplier radius step_offset tolerance"),
    (_TINY, 1.0, "averaging batch_fraction kept_fraction local_fraction"),
    (_TINY, 1.0, "selected_fraction FedFW.step_size NaiveFrankWolfe.step_size"),
    (0.0, 1.0 - _TINY, "l1_ratio momentum second_moment server_momentum"),
    (_TINY, 2.0 - _TINY, "relaxation"),
    (_TINY, _INF, "local_deadline quorum"),
    (_TINY, 1.0, "participation"),
    (0, _INF, "client_evaluate_every seed"),
    (0, _INF, "batch_size cyclic_groups retries"),
    (1, _INF, "backup_every classes FedFW.batch_size local_steps memory_limit parts"),
    (1, _INF, "checkpoint_every evaluate_every max_delay max_failed_rounds min_nodes"),
    (1, _INF, "rank samples"),
    (2, _INF, "least"),
    (3, _INF, "memory"),
    (1, 127, "levels"),
    (1, 10**6, "pool"),
)
RANGES = {name: (low, high) for low, high, names in _RANGES for name in names.split()}
KINDS: dict[str, Any] = {name: getattr(strategies, name) for name in strategies.__all__}
KINDS["RunOptions"] = RunOptions
#: Numbers of any size, None, or no settings of the methods.
FREE = {
    *(("FedGiA", name) for name in ("lower", "upper")),
    *((kind, "retries") for kind in ("HyFEM", "HybridFedAvg")),
}
FIELDS = [
    (name, field)
    for name, kind in KINDS.items()
    for field in dataclasses.fields(kind)
    if field.init and field.metadata
]
NUMBERS = [
    (kind, field.name)
    for kind, field in FIELDS
    if re.match("(int|float)", str(field.type)) and (kind, field.name) not in FREE
]
CHOICES = [(kind, f.name) for kind, f in FIELDS if f.metadata.get("choices")]
#: A setting, another one, and a value of that beside which it does not apply.
APART = [
    (kind, field.name, other, value)
    for kind, field in FIELDS
    for other, values in (field.metadata.get("only") or {}).items()
    for value in KINDS[kind].__dataclass_fields__[other].metadata["choices"] or (0.7,)
    if value not in values
]


def make(kind: str, **settings: Any) -> Any:
    """The strategy, with settings beside which these apply."""
    made: Any = KINDS[kind]
    fields = made.__dataclass_fields__
    given = {"domain": L1Ball(1.0), "manifold": Sphere((3,))}
    needed = {k: v for k, v in given.items() if k in fields}
    for name in (names := list(settings)):
        for other, values in (fields[name].metadata.get("only") or {}).items():
            needed[other] = values[0]
            names.append(other)
    return made(**{**needed, **settings})


def refusal(kind: str, **settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        make(kind, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_numbers_have_their_range(kind: str, name: str) -> None:
    low, high = RANGES.get(f"{kind}.{name}") or RANGES[name]
    for good in {low, high} - {_INF}:
        make(kind, **{name: good})
    whole = isinstance(low, int)
    off = 1 if whole else _TINY
    wrong = [low - off, high + off, math.nan, *([low + 0.5] if whole else [_INF])]
    for bad in wrong:
        if bad != high:
            said = refusal(kind, **{name: bad})
            assert re.match(
                re.escape(f"{name} = {bad} ") + "(must be|does not fit) ", said
            )


@pytest.mark.parametrize(("kind", "name"), CHOICES)
def test_choices_are_named(kind: str, name: str) -> None:
    choices = KINDS[kind].__dataclass_fields__[name].metadata["choices"]
    message = refusal(kind, **{name: f"{choices[-1]}x"})
    assert message.startswith(f"{name} = '{choices[-1]}x' ")
    assert f"did you mean '{choices[-1]}'" in message
    assert all(choice in message.split("allowed")[1] for choice in choices)


@pytest.mark.parametrize(("kind", "name", "other", "value"), APART)
def test_what_does_not_apply(kind: str, name: str, other: str, value: str) -> None:
    """Which the fields declare, and every page of settings says."""
    field = KINDS[kind].__dataclass_fields__[name]
    choices = [c for c in field.metadata.get("choices") or () if c != field.default]
    given = choices[0] if choices else not field.default
    if re.match("(int|float)", str(field.type)):
        given = 0.5 if field.type != "int" else 3
    message = refusal(kind, **{name: given, other: value})
    assert re.match(f"{name} = {given!r} .*applies where {other} is ", message)
    assert message.endswith(f"; here it is {value!r}")
