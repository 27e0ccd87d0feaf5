"""One liar of ten: refused, or the model stays near that of the honest run.

All kinds of lies, methods and rules: ``python -m tests.strategies.liar_runs``.
"""

from __future__ import annotations

import logging

import pytest

from fedtrellis.domains import L1Ball
from tests.strategies.liar_runs import (
    ANSWERS,
    BOUND,
    DECLARED,
    EACH_REFUSED,
    OWN_LOSS,
    REFUSED,
    distance,
    run,
)
from tests.strategies.methods import METHODS

AVERAGING = [name for name, method in METHODS.items() if "median" in method.rules]
BY_ATOMS = [name for name in METHODS if name not in AVERAGING]
#: What moves some method's mean by the most.
STRONGEST = ("times 10⁶", "no step at all", "within the scatter", OWN_LOSS)


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def test_there_are_a_dozen_kinds() -> None:
    assert len({*REFUSED, *ANSWERS, *DECLARED, OWN_LOSS}) >= 12
    assert len(AVERAGING) == 18
    assert len(BY_ATOMS) == 4


@pytest.mark.parametrize("name", METHODS)
def test_what_is_malformed_or_of_another_is_refused_and_named(name: str) -> None:
    rule = "median" if name in AVERAGING else "mean"
    outcome = run(name, EACH_REFUSED, rule)
    assert outcome.refused == outcome.rounds
    assert distance(name, outcome.model) < (BOUND if rule == "median" else 0.5)


@pytest.mark.parametrize("name", AVERAGING)
def test_a_median_holds_against_every_kind(name: str) -> None:
    kinds = (*ANSWERS, *DECLARED, OWN_LOSS)
    far = {kind: distance(name, run(name, kind, "median").model) for kind in kinds}
    assert {kind: d for kind, d in far.items() if d > BOUND} == {}


@pytest.mark.parametrize("name", AVERAGING)
def test_so_do_the_other_rules_against_the_strongest(name: str) -> None:
    rules = set(METHODS[name].rules) - {"mean", "median"}
    far = {
        (kind, rule): distance(name, run(name, kind, rule).model)
        for kind in STRONGEST
        for rule in rules
    }
    assert len(far) >= len(STRONGEST)
    assert {key: d for key, d in far.items() if d > BOUND} == {}


@pytest.mark.parametrize("name", AVERAGING)
def test_the_mean_is_the_liars(name: str) -> None:
    """Without a rule one of these lies is worth more than all honest rounds."""
    assert max(distance(name, run(name, kind).model) for kind in STRONGEST) > 1.0


@pytest.mark.parametrize("name", BY_ATOMS)
def test_whoever_sends_atoms_has_no_more_than_its_share_of_the_set(name: str) -> None:
    for kind in (*ANSWERS, OWN_LOSS):
        model = run(name, kind).model
        assert L1Ball(3.0).contains(model), kind
        assert distance(name, model) < 0.75, kind
