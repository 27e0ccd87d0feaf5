"""Averages that one of several cannot choose, against plain loops and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import trim_mean

from fedtrellis import Clipping, Mean, Median, SettingsError, TrimmedMean
from fedtrellis.server.aggregation import LEAST, Aggregation, Cohorts, Robust

Array = NDArray[np.float64]
BY_COORDINATE = (Median, TrimmedMean)
ROBUST = (*BY_COORDINATE, Clipping)


def points(n: int, shape: tuple[int, ...] = (4, 3), seed: int = 0) -> Array:
    return np.random.default_rng([n, seed]).standard_normal((n, *shape))


@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_rules_by_coordinates(n: int) -> None:
    x, centre = points(n), np.zeros((4, 3))
    assert np.array_equal(Mean().combine(list(x), centre), np.mean(x, axis=0))
    np.testing.assert_allclose(Median().combine(x, centre), np.median(x, axis=0))
    # ⌈β n⌉ at either end
    share = min(-(-n // 5), (n - 1) // 2) / n
    expected = trim_mean(x, share + 1e-12, axis=0)
    np.testing.assert_allclose(TrimmedMean(fraction=0.2).combine(x, centre), expected)


@pytest.mark.parametrize("radius", [None, 0.7])
def test_centred_clipping(radius: float | None) -> None:
    x, v = points(6), np.ones((4, 3))
    rule = Clipping() if radius is None else Clipping(radius=radius)
    result = rule.combine(x, v)
    for _ in range(3):
        ways = sorted(float(np.sqrt(((p - v) ** 2).sum())) for p in x)
        tau = radius or 0.5 * (ways[2] + ways[3])
        step = np.zeros(v.shape)
        for p in x:
            far = float(np.sqrt(((p - v) ** 2).sum()))
            step += (p - v) * min(1.0, tau / far) / len(x)
        v = v + step
    np.testing.assert_allclose(result, v, rtol=1e-13)


def test_clipping_where_most_are_at_the_centre() -> None:
    x = np.concatenate([np.zeros((4, 3)), np.full((1, 3), 1e9)])
    assert np.array_equal(Clipping().combine(x, np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize(
    ("rule", "clients", "bears"),
    [
        (Median(liars=3), 7, 3),
        (Clipping(liars=3), 7, 3),
        (TrimmedMean(liars=3), 11, 3),  # ⌈0.2 · 10⌉ = 2
        (TrimmedMean(liars=3, fraction=0.4), 7, 3),
        (TrimmedMean(), 3, 1),
    ],
)
def test_more_liars_than_a_rule_bears(rule: Robust, clients: int, bears: int) -> None:
    def begin(n: int) -> None:
        rule.begin(Cohorts([str(i) for i in range(n)], 1.0, None, 1.0, 9))

    begin(clients)
    with pytest.raises(SettingsError):
        begin(clients - 1)
    assert rule.bears(clients) == bears
    assert not rule.lost(clients, LEAST)
    assert "at least" in rule.lost(clients - 1, LEAST)
    assert not rule.lost(clients, 1)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    rule=st.sampled_from(ROBUST),
    n=st.integers(LEAST, 12),
    lie=st.floats(-1e9, 1e9),
    seed=st.integers(0, 99),
)
def test_one_cannot_win(rule: type[Aggregation], n: int, lie: float, seed: int) -> None:
    """Wherever one is, the average is among the others, or as near as they are."""
    x, centre = points(n, (5,), seed), np.zeros(5)
    honest = x[1:].copy()
    x[0] = lie
    result = rule().combine(x, centre)
    if issubclass(rule, Median):
        assert (result >= honest.min(axis=0) - 1e-12).all()
        assert (result <= honest.max(axis=0) + 1e-12).all()
    else:
        # three steps, none of them longer than the farthest of the others is then
        assert np.linalg.norm(result) <= 7.0 * np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(Mean().combine(x, centre)) >= abs(lie) / n - 10.0
