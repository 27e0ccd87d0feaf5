"""The search over proposals, against clients that hold α, and local passes."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from clients.hyfdca.proposals import local_dual_passes
from fedtrellis.dual.bundle import DualBundle
from fedtrellis.dual.penalty import Penalty
from fedtrellis.objectives.losses import LOSSES, make_loss

Array = NDArray[np.float64]


def optimum_over_simplices(V: Array, b: Array, blocks: list[slice]) -> float:
    """Maximum of bᵀθ − ½‖Vᵀθ‖² over the simplices, by CVXPY."""
    cp = pytest.importorskip("cvxpy")
    theta = cp.Variable(len(b), nonneg=True)
    problem = cp.Problem(
        cp.Maximize(b @ theta - 0.5 * cp.sum_squares(V.T @ theta)),
        [cp.sum(theta[block]) == 1 for block in blocks],
    )
    problem.solve(
        solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    return float(problem.value)


@pytest.mark.parametrize("memory", [4, 9])
def test_each_search_is_the_best_over_all_that_is_remembered(memory: int) -> None:
    """Of three units, whose clients keep whole dual vectors under their ids."""
    rng, λ, n = np.random.default_rng(1), 0.05, 36
    X, y = rng.standard_normal((3, 12, 5)), rng.choice([-1.0, 1.0], (3, 12))
    bundle, held = DualBundle(5, 3, λ, memory), [{0: np.zeros(12)} for _ in range(3)]

    def told(u: int, *points: Array) -> tuple[Array, Array]:
        """V and b, of the hinge loss."""
        alpha = np.stack(points)
        return alpha @ X[u] / (λ * n), alpha @ y[u] / n

    for t in range(14):
        units = [0, 1, 2] if t % 2 else [t % 3]
        if t == 6:
            bundle.only_alpha(0)
            held[0] = {bundle.alpha_id(0): held[0][bundle.alpha_id(0)]}
        proposals = {}
        for u in units:
            new = y[u] * rng.random((2, 12))
            proposals[u] = told(u, *new)
            held[u].update(zip(bundle.new_ids(u, 2), new, strict=True))
        still = [told(u, held[u][bundle.alpha_id(u)]) for u in range(3)]
        rest = sum(still[u][0][0] for u in range(3) if u not in units) + np.zeros(5)
        known = [told(u, *held[u].values()) for u in units]
        ends = np.cumsum([0, *(len(b) for _, b in known)])
        V = np.concatenate([V for V, _ in known])
        b = np.concatenate([b for _, b in known]) - λ * V @ rest
        blocks = [slice(*pair) for pair in pairwise(ends)]
        best = optimum_over_simplices(np.sqrt(λ) * V, b, blocks)
        best += sum(float(still[u][1][0]) for u in range(3) if u not in units)
        for u, mixture in bundle.search(units, proposals).items():
            assert (mixture.weights > 0.0).all()
            assert len(mixture.keep) <= memory - 3
            alpha = mixture.weights @ [held[u][i] for i in mixture.ids.tolist()]
            held[u] = {i: held[u][i] for i in mixture.keep.tolist()}
            held[u][mixture.alpha_id] = alpha
            for known_as, own in zip(
                bundle.contribution(u), told(u, alpha), strict=True
            ):
                assert np.abs(known_as - own).max() < 1e-11
        value = bundle.dual_values().sum()
        assert value == pytest.approx(best - 0.5 * λ * float(rest @ rest), abs=1e-9)
    assert value > 0.1


@pytest.mark.parametrize("sigma", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_local_passes_are_a_plain_loop_in_that_order(name: str, sigma: float) -> None:
    """Of features with zeros and an empty row."""
    loss, rng, scale = make_loss(name), np.random.default_rng(1), 0.4
    X = rng.standard_normal((30, 7)) * (rng.random((30, 7)) < 0.6)
    rows = rng.permutation(30)[:22]
    X[rows[3]] = 0.0
    y = np.where(rng.random(22) < 0.5, 1.0, -1.0)
    start = y * rng.random(22)
    if loss.labels == "real":
        y, start = rng.standard_normal((2, 22))
    if loss.labels == "counts":
        y = rng.poisson(2.0, 22).astype(np.float64)
        start = y - rng.exponential(2.0, 22)
    S, before = X[rows], start.copy()
    z = S @ rng.standard_normal(7)

    def found(X: Any, passes: int) -> Array:
        q = (S**2).sum(axis=1)
        given = (loss, X, rows, start, z, y, q, scale)
        order = np.random.default_rng(9)
        return local_dual_passes(*given, aggregation=sigma, passes=passes, rng=order)

    order, alpha = np.random.default_rng(9), start.copy()
    for _ in range(3):
        for i in order.permutation(22):
            # the gradient of the quadratic term, from all coordinates' changes anew
            score = z[i] + sigma / scale * S[i] @ (S.T @ (alpha - start))
            alpha[i] += loss.coordinate_step(
                alpha[[i]], np.array([score]), sigma * S[i] @ S[i], y[[i]], scale
            )[0]
    assert np.abs(found(X, 3) - alpha).max() < 1e-12
    assert np.abs(alpha - start).max() > 0.1
    assert np.abs(found(sparse.csr_array(X), 3) - alpha).max() < 1e-12
    assert np.array_equal(found(X, 0), before)
    assert np.array_equal(start, before)  # it works on a copy


def test_off_its_constraint_d_is_no_bound() -> None:
    bundle = DualBundle(2, 1, 0.5, 5, penalty=Penalty(free=1))
    for off, bounds in ((1e-14, True), (1e-3, False)):
        bundle.only_alpha(0, np.array([1.0, off]), 2.0)
        assert np.isfinite(bundle.dual_values()).all() == bounds
