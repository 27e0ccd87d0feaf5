"""The search over proposals, against clients that hold α."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.dual.bundle import DualBundle
from fedtrellis.dual.penalty import Penalty

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


def test_off_its_constraint_d_is_no_bound() -> None:
    bundle = DualBundle(2, 1, 0.5, 5, penalty=Penalty(free=1))
    for off, bounds in ((1e-14, True), (1e-3, False)):
        bundle.only_alpha(0, np.array([1.0, off]), 2.0)
        assert np.isfinite(bundle.dual_values()).all() == bounds
