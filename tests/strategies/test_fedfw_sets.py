"""Whose atoms the server takes: sets that clients announce, and atoms outside them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from hypothesis import given
from hypothesis import strategies as st

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Product,
)
from fedtrellis.domains.base import alike, describe
from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from strategies import FedFW, NaiveFrankWolfe
from tests.harness import Recorder, app_of, play

N, P = 4, 8
BALL = L1Ball(2.0)
rng = np.random.default_rng(3)
LOSSES = [
    LeastSquares(rng.standard_normal((5, P)), rng.standard_normal(5)) for _ in range(N)
]


# ------------------------------------------------------------------- what is announced


def of_sets(
    domains: Sequence[Domain], strategy: Any, client: Any = FedFWClient
) -> tuple[Recorder, Any]:
    """A run whose clients work on sets of their own."""

    def make(context: Context, both: tuple[Any, Domain]) -> Any:
        return client(context, *both)

    grid = Recorder(app_of(make, list(zip(LOSSES, domains, strict=True))), N)
    return grid, lambda: play(strategy, grid, np.zeros(P), 5)


SETS = [BALL, BALL, BALL, L2Ball(2.0)]


@pytest.mark.parametrize(
    ("domains", "declared", "says"),
    [
        (SETS, {}, "client 3 works on L2Ball(radius=2.0), and the strategy on L1Ball("),
        ([BALL, L1Ball(2.1), BALL, BALL], {}, "client 1 works on L1Ball(radius=2.1)"),
        (SETS, {"2": L2Ball(2.0)}, "client 3 works on L2Ball(radius=2.0)"),
        (SETS, [L2Ball(2.5)], "client 3 works on L2Ball(radius=2.0)"),
        (SETS, {"4": L2Ball(2.0)}, "client_domains has client '4'; the clients are 0,"),
        (SETS, {"3": L2Ball(1.0)}, "L2Ball(radius=1.0), which does not enclose L1Ball"),
    ],
)
@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_another_set_ends_the_run_before_round_1(
    method: Any, domains: Sequence[Domain], declared: Any, says: str
) -> None:
    client = FedFWClient if method is FedFW else NaiveFrankWolfeClient
    grid, start = of_sets(domains, method(BALL, client_domains=declared), client)
    with pytest.raises(SettingsError, match=re.escape(says)) as refused:
        start()
    assert "\n" not in str(refused.value)
    assert {m.metadata.message_type for m in grid.sent} == {"query.hello"}


@pytest.mark.parametrize("declared", [{"3": L2Ball(2.0)}, [LInfBall(2.0), L2Ball(2.0)]])
def test_a_larger_set_that_is_declared(
    declared: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = FedFW(BALL, variant="plain", penalty=0.1, client_domains=declared)
    _, start = of_sets(SETS, strategy)
    played = start()
    assert [record.used for record in strategy.history] == [N] * 5
    # an atom of the ℓ2 ball alone is outside, and the model says so each round
    outside = [float(np.abs(model).sum() > 2.0) for model in played.models]
    assert 1.0 in outside
    assert outside == [m["outside-domain"] for m in played.watch.metrics]
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("lies outside L1Ball" in r.getMessage() for r in warnings) == 1


class Foreign(FedFWClient):
    """A client of somebody else's, which announces nothing."""

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return {}


def test_who_announces_nothing_is_taken_and_its_atoms_are_looked_at() -> None:
    strategy = FedFW(BALL, variant="plain")
    _, start = of_sets(SETS, strategy, Foreign)
    start()
    for record in strategy.history:
        assert record.used == N - 1
        assert record.rejected == [("3", "an atom lies outside L1Ball(radius=2.0)")]
    strategy = FedFW(BALL, variant="plain", client_domains={"3": L2Ball(2.0)})
    _, start = of_sets(SETS, strategy, Foreign)
    start()
    assert [record.used for record in strategy.history] == [N] * 5


# ------------------------------------------------------------------ sets as one line


@given(st.floats(1e-6, 1e6), st.sampled_from([L1Ball, L2Ball, LInfBall]))
def test_a_radius_may_have_other_last_digits(radius: float, kind: type[Any]) -> None:
    said = describe(kind(radius))
    assert alike(said, describe(kind(radius * (1 + 1e-12))))
    assert not alike(said, describe(kind(radius * (1 + 1e-6))))


def test_sets_are_told_apart() -> None:
    sets: list[Domain] = [
        L1Ball(1.0),
        L2Ball(1.0),
        LInfBall(1.0),
        KSupportBall(2, 1.0),
        KSupportBall(3, 1.0),
        NuclearNormBall(1.0),
        BirkhoffPolytope(),
        Box(-1.0, 1.0),
        Box(1.0, 2.0),
        Box(np.zeros(3), np.array([1.0, 2.0, 3.0])),
        Box(np.zeros(3), np.array([1.0, 2.0, 4.0])),
        Product([L1Ball(1.0), L2Ball(1.0)], [(3,), (2, 2)]),
        Product([L1Ball(1.0), L2Ball(1.0)], [(3,), (4,)]),
    ]
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            assert alike(describe(one), describe(other)) == (i == j)
    assert "\n" not in describe(Box(np.zeros(900), np.ones(900)))
