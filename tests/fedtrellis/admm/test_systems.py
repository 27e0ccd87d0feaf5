"""FedGiA's linear systems, majorisers and what is kept of them.

Against explicit inverses and plain loops.
"""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

from fedtrellis.admm import shifted_systems
from fedtrellis.admm.hessians import FactorHessian, majoriser_of
from fedtrellis.admm.shifted_systems import cached_system, make_system
from fedtrellis.admm.systems import (
    CholeskySystem,
    ConjugateGradientSystem,
    WideCholeskySystem,
)
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
)
from tests.harness import Array

WEIGHT = 0.125
FACTORED = (CholeskySystem, WideCholeskySystem)
HALF = np.arange(30) % 2


def data(shape: tuple[int, int], kind: str) -> Any:
    """A, rank-deficient or sparse."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal(shape)
    if kind == "deficient":
        # the last third of the rows repeats others, and two columns are equal
        count = len(dense) // 3
        dense[-count:] = dense[:count]
        dense[:, 1] = dense[:, 0]
    if kind == "sparse":
        dense[rng.random(dense.shape) < 0.6] = 0.0
        return scipy.sparse.csr_array(dense)
    return dense


def badly_scaled(rows: int = 30, columns: int = 6) -> Array:
    """Correlated columns of lengths from 1 to 1 000, one of them zeros."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((rows, columns)) + 2.0 * rng.standard_normal((rows, 1))
    A *= np.geomspace(1.0, 1e3, columns)
    A[:, 2] = 0.0
    return A


def squares(rows: int, columns: int, l2: float = 0.1, seed: int = 0) -> LeastSquares:
    A = np.random.default_rng(seed).standard_normal((rows, columns))
    return LeastSquares(A, np.zeros(rows), scale="half-mean", l2=l2)


@cache
def sparse_squares(rows: int, columns: int, per_row: int) -> LeastSquares:
    rng, size = np.random.default_rng(0), rows * per_row
    places = rng.integers(0, columns, size), np.arange(0, size + 1, per_row)
    A = scipy.sparse.csr_array(
        (rng.standard_normal(size), *places), shape=(rows, columns)
    )
    return LeastSquares(A, np.zeros(rows), scale="half-mean", l2=0.1)


OBJECTIVES: dict[str, Callable[[], Any]] = {
    "squares": lambda: LeastSquares(badly_scaled(), HALF, scale="half-mean"),
    "ridge": lambda: LeastSquares(badly_scaled(), HALF, l2=0.3),
    "logistic": lambda: Logistic(scipy.sparse.csr_array(badly_scaled()), HALF, l2=0.1),
    "wide": lambda: LeastSquares(badly_scaled(4, 9), HALF[:4]),
    "multinomial": lambda: MultinomialLogistic(
        badly_scaled(), np.arange(30) % 3, 3, l2=0.1
    ),
    "many": lambda: LeastSquares(badly_scaled(90, 80), np.zeros(90)),
    "completion": lambda: MatrixCompletion([0, 2, 2], [1, 0, 0], [1, 2, 3], (3, 2)),
}


def make(
    objective: Any, hessian: str = "gram", build: Any = make_system, **options: Any
) -> Any:
    options = {"weight": WEIGHT, "shift": 0.3, **options}
    return build(objective, hessian, **options)


def check_system(system: Any, H: Array, u: Array) -> None:
    """The system against an explicit inverse and the method's own loop."""
    sigma, before = system.shift, u.copy()
    inverse = np.linalg.inv(WEIGHT * H + sigma * np.eye(len(H)))

    def check(actual: Array, expected: Array, scale: Array) -> None:
        # beside a scale, whose norm a step only shrinks
        assert actual.dtype == np.float64
        error = np.linalg.norm(actual - expected)
        assert error <= 1e-10 * np.linalg.norm(scale)

    check(system.solve(u), inverse @ u, inverse @ u)
    for steps in (1, 2, 5, 10):
        w, d = system.admm_steps(u, steps)
        # the steps as the paper has them, with ḡ and π apart
        g, x = 0.3 * u, np.cos(np.arange(len(u)))
        pi = u - g
        for _ in range(steps):
            last, x_i = g + pi, x - inverse @ (g + pi)
            pi = pi + sigma * (x_i - x)
        check(w, last, u)
        check(x - d, x_i, inverse @ u)
        check(w - sigma * d - g, pi, u)
        for one, other in ((w, u), (d, u), (w, d)):
            assert not np.shares_memory(one, other)
    np.testing.assert_array_equal(u, before)


@pytest.mark.parametrize("c", [0.0, 0.7])
@pytest.mark.parametrize("kind", [*FACTORED, ConjugateGradientSystem])
def test_systems_agree_with_explicit_matrices(kind: Any, c: float) -> None:
    for shape in ((30, 12), (9, 40), (15, 15)):
        for how in ("full", "deficient", "sparse"):
            A = data(shape, how)
            full, known = np.asarray(A @ np.eye(shape[1])), FactorHessian(A, 0.25, c)
            H = 0.25 * full.T @ full + c * np.eye(shape[1])
            u = np.random.default_rng(1).standard_normal(len(H))
            for ratio in (0.15, 6.0, 1e3):
                sigma = ratio * WEIGHT * float(np.linalg.eigvalsh(H)[-1])
                if kind is ConjugateGradientSystem:
                    system = kind(known.product, WEIGHT, sigma)
                else:
                    system = kind(known, WEIGHT, sigma)
                check_system(system, H, u)


def test_conjugate_gradients_say_when_they_do_not_converge() -> None:
    spectrum = np.logspace(-6, 6, 200)
    system = ConjugateGradientSystem(lambda v: spectrum * v, 1.0, 1e-6)
    system.maxiter = 20
    with pytest.raises(RuntimeError, match="did not converge .* sigma = 1e-06"):
        system.solve(np.ones(200))


def bounded(bound: Any) -> Any:
    """A loss of whose second derivatives a matrix or an operator is the bound."""
    return SimpleNamespace(hessian_bound=lambda: bound)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (lambda: squares(60, 20), CholeskySystem),
        (lambda: squares(20, 60), WideCholeskySystem),
        # a factor no larger than the data, or than 2 MB
        (lambda: squares(600, 700), WideCholeskySystem),
        (lambda: sparse_squares(500, 4000, 10), WideCholeskySystem),
        (lambda: sparse_squares(501, 4000, 10), ConjugateGradientSystem),
        (lambda: sparse_squares(4000, 501, 60), CholeskySystem),
        # above order 2048, though the data are larger
        (lambda: sparse_squares(2049, 4000, 1500), ConjugateGradientSystem),
        (lambda: bounded(np.eye(30)), CholeskySystem),
        (lambda: bounded(aslinearoperator(np.eye(500))), CholeskySystem),
        (lambda: bounded(aslinearoperator(np.eye(501))), ConjugateGradientSystem),
    ],
)
def test_systems_suit_the_data(objective: Callable[[], Any], expected: type) -> None:
    assert type(make(objective())) is expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hessian": "full"}, "hessian is 'full'; allowed: 'gram', 'diagonal'"),
        ({"weight": 0.0}, "weight is 0.0; it must be a finite number above 0"),
        ({"user_hessian": -1.0}, "hessian is -1.0; it must be a finite number at"),
        ({"user_hessian": np.ones(2)}, "hessian has 2 entries; it must have 3"),
        ({"user_hessian": np.array([1, -2, 1])}, "hessian has the entry -2; all"),
        ({"user_hessian": "gram"}, "hessian is of type str; it must be a number"),
    ],
)
def test_wrong_arguments(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(squares(5, 3), build=cached_system, **changed)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_majorises_and_touches(name: str) -> None:
    objective = OBJECTIVES[name]()
    H = np.asarray(objective.hessian_bound())
    d = np.asarray(majoriser_of(objective))
    assert d.shape == (len(H),)
    lengths = np.sqrt(np.where(H.diagonal() > 0, H.diagonal(), 1.0))
    gap = (np.diag(d) - H) / lengths / lengths[:, None]
    # c·D − H is positive semi-definite, and singular where a column counts
    assert np.linalg.eigvalsh(gap)[0] > -1e-12
    present = H.diagonal() > 0
    assert np.linalg.eigvalsh(gap[np.ix_(present, present)])[0] < 1e-6
    assert (d[~present] == 0.0).all()


@pytest.mark.parametrize("hessian", ["gram", "diagonal", "by products"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_steps_are_those_with_a_diagonal_sigma(
    name: str, hessian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, by_products = OBJECTIVES[name](), hessian == "by products"
    H = np.asarray(objective.hessian_bound())
    if hessian == "diagonal":
        H = np.diag(np.asarray(majoriser_of(objective)))
    elif by_products:
        monkeypatch.setattr(shifted_systems, "DENSE_ORDER", 0)
        hessian = "gram"
    scale = np.geomspace(1e-2, 1e4, len(H))
    root, sigma = np.sqrt(scale), np.diag(0.7 * scale)
    u = np.random.default_rng(1).standard_normal(len(H))
    for steps in (1, 3, 7):
        w = u.copy()
        for _ in range(steps - 1):
            w = w - sigma @ np.linalg.solve(0.2 * H + sigma, w)
        d = np.linalg.solve(0.2 * H + sigma, w)
        how = {"scale": scale, "weight": 0.2, "shift": 0.7}
        system = make(objective, hessian, cached_system, **how)
        again = make(objective, hessian, cached_system, **how)
        assert (again is system) is not by_products
        found = system.admm_steps(u, steps)
        # in the coordinates that are scaled, where all entries count alike
        pairs = ((found[0] / root, w / root), (found[1] * root, d * root))
        for got, expected in (*pairs, (system.solve(w) * root, d * root)):
            assert np.abs(got - expected).max() <= 1e-9 * np.abs(u / root).max()


@pytest.mark.parametrize("kind", ["gram", "diagonal"])
def test_a_system_is_made_once_and_the_last_two_are_kept(kind: str) -> None:
    def cached(objective: Any, shift: float = 0.3) -> Any:
        return make(objective, kind, cached_system, shift=shift)

    objective = squares(8, 4)
    first, other = cached(objective), cached(objective, 0.4)
    assert other.shift == 0.4
    assert cached(objective) is first
    assert cached(squares(8, 4)) is not first
    third = cached(objective, 0.5)
    assert cached(objective) is first
    assert cached(objective, 0.5) is third
    assert cached(objective, 0.4) is not other
