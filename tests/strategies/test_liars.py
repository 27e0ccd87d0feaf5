"""One liar of ten: refused, or the model stays near that of the honest run.

All kinds of lies, methods and rules: ``python -m tests.strategies.liar_runs``.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

from fedtrellis.domains import L1Ball
from tests.strategies.liar_runs import (
    BOUND,
    EACH_REFUSED,
    OWN_LOSS,
    SILENT,
    distance,
    run,
)
from tests.strategies.methods import EVERY, METHODS

AVERAGING = [name for name, method in METHODS.items() if "median" in method.rules]
BY_ATOMS = [name for name in METHODS if name not in AVERAGING]
#: What moves some method's mean by the most.
STRONGEST = ("times 10⁶", "no step at all", "within the scatter", OWN_LOSS)
MORE_METHODS = ("compressed-sgd top-k", "fedlmo ef21", "fedfw pairwise")
MORE = ("random, as long", "against the others", "10¹⁵ examples")


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("name", [*METHODS, *MORE_METHODS])
def test_what_is_refused_is_an_answer_that_never_came(name: str) -> None:
    """What is malformed or of another; the run is that of the others, bit for bit."""
    rule = "median" if name in AVERAGING else "mean"
    lied, silent = (run(name, kind, rule, 8) for kind in (EACH_REFUSED, SILENT))
    assert lied.refused == lied.rounds
    assert np.array_equal(lied.model, silent.model)
    assert not np.array_equal(lied.model, EVERY[name].start)


@pytest.mark.parametrize("name", AVERAGING)
def test_robust_rules_hold_and_the_mean_is_the_liars(name: str) -> None:
    """Without a rule one of these lies is worth more than all honest rounds."""
    rules = [rule for rule in METHODS[name].rules if rule != "mean"]
    pairs = [(kind, "median") for kind in (*STRONGEST, *MORE)]
    pairs += [(kind, rule) for kind in STRONGEST[2:] for rule in rules[1:]]
    far = {(k, rule): distance(name, run(name, k, rule).model) for k, rule in pairs}
    assert {key: d for key, d in far.items() if d > BOUND} == {}
    assert any(distance(name, run(name, kind).model) > 1.0 for kind in STRONGEST)


@pytest.mark.parametrize("name", BY_ATOMS)
def test_whoever_sends_atoms_has_no_more_than_its_share_of_the_set(name: str) -> None:
    for kind in (*STRONGEST, *MORE[:2], "shifted by 5", "step reversed"):
        model = run(name, kind).model
        assert L1Ball(3.0).contains(model), kind
        assert distance(name, model) < 0.75, kind
