"""One liar of ten: refused, or the model stays near that of the honest run.

All kinds of lies, methods and rules: ``python -m tests.strategies.liar_runs``.
"""

from __future__ import annotations

import logging

import pytest

from fedtrellis.domains import L1Ball
from tests.strategies.liar_runs import (
    BOUND,
    EACH_REFUSED,
    OWN_LOSS,
    distance,
    run,
)
from tests.strategies.methods import METHODS

AVERAGING = [name for name, method in METHODS.items() if "median" in method.rules]
BY_ATOMS = [name for name in METHODS if name not in AVERAGING]
#: What moves some method's mean by the most.
STRONGEST = ("times 10⁶", "no step at all", "within the scatter", OWN_LOSS)
MORE = ("random, as long", "against the others", "10¹⁵ examples")


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("name", [*METHODS, "compressed-sgd top-k", "fedlmo ef21"])
def test_what_is_malformed_or_of_another_is_refused_and_named(name: str) -> None:
    rule = "median" if name in AVERAGING else "mean"
    outcome = run(name, EACH_REFUSED, rule)
    assert outcome.refused == outcome.rounds
    assert distance(name, outcome.model) < (BOUND if rule == "median" else 0.5)


@pytest.mark.parametrize("name", AVERAGING)
def test_robust_rules_hold_and_the_mean_is_the_liars(name: str) -> None:
    """Without a rule one of these lies is worth more than all honest rounds."""
    rules = [rule for rule in METHODS[name].rules if rule != "mean"]
    pairs = [(kind, "median") for kind in (*STRONGEST, *MORE)]
    pairs += zip(STRONGEST, 4 * rules[1:], strict=False)
    far = {(k, rule): distance(name, run(name, k, rule).model) for k, rule in pairs}
    assert {key: d for key, d in far.items() if d > BOUND} == {}
    assert any(distance(name, run(name, kind).model) > 1.0 for kind in STRONGEST)


@pytest.mark.parametrize("name", BY_ATOMS)
def test_whoever_sends_atoms_has_no_more_than_its_share_of_the_set(name: str) -> None:
    for kind in (*STRONGEST, *MORE[:2], "shifted by 5", "step reversed"):
        model = run(name, kind).model
        assert L1Ball(3.0).contains(model), kind
        assert distance(name, model) < 0.75, kind
