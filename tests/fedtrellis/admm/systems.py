"""Data, objectives and systems for the tests of FedGiA's linear algebra."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from fedtrellis.admm.hessians import FactorHessian
from fedtrellis.admm.shifted_systems import cached_system, make_system
from fedtrellis.admm.systems import ShiftedSystem
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
)

Array = NDArray[np.float64]


M = 8  # clients


WEIGHT = 1.0 / M


STEPS = (1, 2, 5, 10)


def data(kind: str, seed: int = 0) -> Any:
    """A, tall, wide, rank-deficient or sparse."""
    rng = np.random.default_rng(seed)
    shapes = {"tall": (30, 12), "wide": (9, 40), "square": (15, 15)}
    for name, shape in shapes.items():
        if kind.startswith(name):
            dense = rng.standard_normal(shape)
    if "deficient" in kind:
        # the last third of the rows repeats others, and two columns are equal
        count = max(1, len(dense) // 3)
        dense[-count:] = dense[:count]
        dense[:, 1] = dense[:, 0]
        if kind.startswith("tall"):
            dense[:, 4:8] = dense[:, 8:12]
    if "sparse" in kind:
        dense[rng.random(dense.shape) < 0.6] = 0.0
        return scipy.sparse.csr_array(dense)
    return dense


def dense(A: Any) -> Array:
    return np.asarray(A @ np.eye(A.shape[1]), dtype=np.float64)


def hessian(A: Any, s: float, c: float) -> Array:
    return np.asarray(s * dense(A).T @ dense(A) + c * np.eye(A.shape[1]))


def factored(cls: Any, A: Any, s: float, c: float, shift: float) -> Any:
    H = FactorHessian(A, s, c)
    return cls(H, cls.factorise(H, WEIGHT, shift), WEIGHT, shift)


def close(actual: Array, expected: Array, scale: Array, tolerance: float) -> bool:
    """Whether the error is small beside ``scale``, whose norm a step only shrinks."""
    return bool(np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(scale))


def check_system(
    system: ShiftedSystem, H: Array, u: Array, tolerance: float = 1e-10
) -> None:
    """The system against powers of explicit matrices and the method's own loop."""
    sigma, identity = system.shift, np.eye(len(H))
    inverse = np.linalg.inv(WEIGHT * H + sigma * identity)
    before = u.copy()
    d = system.solve(u)
    assert d.shape == u.shape
    assert d.dtype == np.float64
    assert not np.shares_memory(d, u)
    expected = np.asarray(np.linalg.solve(WEIGHT * H + sigma * identity, u))
    assert close(d, expected, d, tolerance)
    N = identity - sigma * inverse
    for steps in STEPS:
        w, d = system.admm_steps(u, steps)
        assert not np.shares_memory(w, u)
        assert not np.shares_memory(d, u)
        assert not np.shares_memory(w, d)
        expected = np.linalg.matrix_power(N, steps - 1) @ u
        assert close(w, expected, u, tolerance)
        assert close(d, inverse @ expected, inverse @ u, tolerance)
        # the steps as the paper has them, with ḡ and π apart
        g, x = 0.3 * u, np.cos(np.arange(len(u)))
        pi = u - g
        for _ in range(steps):
            x_i = x - inverse @ (g + pi)
            pi = pi + sigma * (x_i - x)
        assert close(x - d, x_i, inverse @ u, tolerance)
        assert close(w - sigma * d - g, pi, u, tolerance)
        loop_w, loop_d = ShiftedSystem.admm_steps(system, u, steps)
        assert close(w, loop_w, u, tolerance)
        assert close(d, loop_d, inverse @ u, tolerance)
    np.testing.assert_array_equal(u, before)


def make(objective: Any, hessian: str = "gram", steps: int = 1, **options: Any) -> Any:
    return make_system(
        objective, hessian, weight=WEIGHT, shift=0.3, steps=steps, **options
    )


def squares(rows: int, columns: int, l2: float = 0.1, seed: int = 0) -> LeastSquares:
    A = np.random.default_rng(seed).standard_normal((rows, columns))
    return LeastSquares(A, np.zeros(rows), scale="half-mean", l2=l2)


def sparse_squares(rows: int, columns: int, per_row: int = 20) -> LeastSquares:
    rng = np.random.default_rng(0)
    A = scipy.sparse.csr_array(
        (
            rng.standard_normal(rows * per_row),
            rng.integers(0, columns, rows * per_row),
            np.arange(0, rows * per_row + 1, per_row),
        ),
        shape=(rows, columns),
    )
    return LeastSquares(A, np.zeros(rows), scale="half-mean", l2=0.1)


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "tall": lambda: squares(30, 7),
    "wide": lambda: squares(7, 30),
    "wide, no l2": lambda: squares(7, 30, l2=0.0),
    "logistic": lambda: Logistic(data("wide, sparse"), np.arange(9) % 2, l2=0.01),
    "logistic, tall": lambda: Logistic(data("tall, sparse"), np.arange(30) % 2),
    "multinomial": lambda: MultinomialLogistic(data("tall"), np.arange(30) % 3, 3),
    "completion": lambda: MatrixCompletion([0, 2, 2], [1, 0, 0], [1, 2, 3], (3, 2)),
}


def cached(objective: Any, shift: float = 0.3, steps: int = 1, **options: Any) -> Any:
    hessian = options.pop("hessian", "gram")
    return cached_system(
        objective, hessian, weight=WEIGHT, shift=shift, steps=steps, **options
    )
