import cvxpy as cp
import numpy as np
import pytest

from fedtrellis.domains import Domain, L1Ball, L2Ball, LInfBall, Simplex
from fedtrellis.objectives import LeastSquares, MultinomialLogistic
from fedtrellis.objectives.reference import certified_minimum


@pytest.mark.parametrize(
    "domain", [L1Ball(2.0), L2Ball(1.5), LInfBall(0.3), Simplex(1.0)], ids=repr
)
def test_least_squares_agrees_with_cvxpy(domain: Domain) -> None:
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(30, 12)), rng.normal(size=30)
    x = cp.Variable(12)
    constraint = {
        "l1-ball": lambda: cp.norm1(x) <= 2.0,
        "l2-ball": lambda: cp.norm2(x) <= 1.5,
        "linf-ball": lambda: cp.norm_inf(x) <= 0.3,
        "simplex": lambda: cp.sum(x) == 1.0,
    }[domain.name]()
    constraints = [constraint] + ([x >= 0] if domain.name == "simplex" else [])
    optimum = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), constraints).solve(
        solver=cp.CLARABEL
    )
    found = certified_minimum(LeastSquares(A, b), domain, np.zeros(12), 1e-9)
    assert domain.contains(found.point)
    assert found.gap <= 1e-9 * max(1.0, found.value)
    assert found.value == pytest.approx(optimum, rel=1e-6)


def test_the_certificate_holds_even_when_stopped_early() -> None:
    rng = np.random.default_rng(2)
    objective = MultinomialLogistic(
        rng.normal(size=(60, 5)), rng.integers(3, size=60), 3, intercept=True
    )
    domain = L1Ball(5.0)
    start = np.zeros(objective.shape)
    best = certified_minimum(objective, domain, start, 1e-9)
    early = certified_minimum(objective, domain, start, 1e-9, max_iterations=10)
    assert early.gap > 10 * best.gap
    assert early.value - early.gap <= best.value + 1e-12 <= early.value + 1e-9
