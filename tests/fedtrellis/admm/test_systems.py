"""FedGiA's linear systems and majorisers against explicit inverses and plain loops."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from fedtrellis.admm import shifted_systems
from fedtrellis.admm.hessians import FactorHessian, lipschitz_of, majoriser_of
from fedtrellis.admm.shifted_systems import cached_system, make_system
from fedtrellis.admm.systems import (
    CholeskySystem,
    ConjugateGradientSystem,
    DiagonalSystem,
    ShiftedSystem,
    SpectralSystem,
    UserSystem,
    WideCholeskySystem,
    WideSpectralSystem,
)
from fedtrellis.objectives import (
    LeastSquares,
    Logistic,
    MultinomialLogistic,
    Objective,
)
from tests.fedtrellis.admm.systems import (
    OBJECTIVES,
    WEIGHT,
    Array,
    M,
    cached,
    check_system,
    data,
    factored,
    hessian,
    make,
    sparse_squares,
    squares,
)

S = 0.25


KINDS = [
    shape + suffix
    for shape in ("tall", "wide", "square")
    for suffix in ("", ", deficient", ", sparse")
]


class GivenSolver:
    def __init__(self, H: Array) -> None:
        self.H = H

    def solve(self, vector: Array, shift: float) -> Array:
        shifted = self.H + shift * np.eye(len(self.H))
        result = np.asarray(np.linalg.solve(shifted, vector), dtype=np.float64)
        vector[:] = np.nan  # it may do with the vector as it likes
        return result


Maker = Callable[[Any, float, float, float], ShiftedSystem]


MAKERS: dict[str, Maker] = {
    "Cholesky": partial(factored, CholeskySystem),
    "spectral": partial(factored, SpectralSystem),
    "wide Cholesky": partial(factored, WideCholeskySystem),
    "wide spectral": partial(factored, WideSpectralSystem),
    "conjugate gradients": lambda A, s, c, shift: ConjugateGradientSystem(
        FactorHessian(A, s, c).product, WEIGHT, shift
    ),
    "products": lambda A, s, c, shift: ConjugateGradientSystem(
        lambda v: hessian(A, s, c) @ v, WEIGHT, shift
    ),
    "user": lambda A, s, c, shift: UserSystem(
        GivenSolver(hessian(A, s, c)), WEIGHT, shift
    ),
}


@pytest.mark.parametrize("ratio", [0.15, 6.0, 1e3])
@pytest.mark.parametrize("c", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MAKERS)
def test_systems_agree_with_explicit_matrices(
    name: str, kind: str, c: float, ratio: float
) -> None:
    A = data(kind)
    H = hessian(A, S, c)
    sigma = ratio * WEIGHT * float(np.linalg.eigvalsh(H)[-1])
    u = np.random.default_rng(1).standard_normal(len(H))
    check_system(MAKERS[name](A, S, c, sigma), H, u)


@pytest.mark.parametrize("sigma", [1e-2, 1.0, 50.0])
@pytest.mark.parametrize(
    "h", [0.0, 1.7, np.array([0.0, 3.0, 1e-9, 12.0]), np.array([2.0, 2.0, 5.0, 1.0])]
)
def test_diagonal_system(h: float | Array, sigma: float) -> None:
    u = np.array([1.0, -2.0, 0.5, 3.0])
    check_system(DiagonalSystem(h, WEIGHT, sigma), np.diag(h * np.ones(4)), u)


def test_conjugate_gradients_say_when_they_do_not_converge() -> None:
    spectrum = np.logspace(-6, 6, 200)
    system = ConjugateGradientSystem(lambda v: spectrum * v, 1.0, 1e-6)
    system.maxiter = 20
    with pytest.raises(
        RuntimeError, match="did not converge .* sigma = 1e-06; a larger sigma"
    ):
        system.solve(np.ones(200))


# -- which system for which objective -------------------------------------------------


class Plain(Objective):
    shape = (3,)
    num_examples = 1

    def value(self, x: Array) -> float:
        return 0.0

    def gradient(self, x: Array) -> Array:
        return np.zeros(3)


class Bounded(Plain):
    def __init__(self, bound: Any) -> None:
        self.bound = bound
        self.shape = (len(bound) if isinstance(bound, np.ndarray) else bound.shape[0],)

    def hessian_bound(self) -> Any:
        return self.bound


def operator(order: int) -> Any:
    return scipy.sparse.linalg.aslinearoperator(np.eye(order))


@pytest.mark.parametrize(
    ("objective", "steps", "expected"),
    [
        (lambda: squares(60, 20), 1, CholeskySystem),
        (lambda: squares(60, 20), 5, CholeskySystem),
        (lambda: squares(60, 20), 6, SpectralSystem),
        (lambda: squares(20, 60), 5, WideCholeskySystem),
        (lambda: squares(20, 60), 6, WideSpectralSystem),
        # the threshold grows with the smaller order
        (lambda: squares(500, 300), 9, CholeskySystem),
        (lambda: squares(500, 300), 10, SpectralSystem),
        (lambda: squares(300, 500), 9, WideCholeskySystem),
        (lambda: squares(300, 500), 10, WideSpectralSystem),
        # a factor no larger than the data, or than 2 MB
        (lambda: squares(600, 700), 1, WideCholeskySystem),
        (lambda: sparse_squares(500, 4000, 10), 1, WideCholeskySystem),
        (lambda: sparse_squares(501, 4000, 10), 1, ConjugateGradientSystem),
        (lambda: sparse_squares(4000, 501, 60), 1, CholeskySystem),
        (lambda: sparse_squares(4000, 800, 60), 1, ConjugateGradientSystem),
        # above order 2048, though the data are larger
        (lambda: sparse_squares(2049, 4000, 1500), 1, ConjugateGradientSystem),
        (lambda: Bounded(np.eye(30)), 1, CholeskySystem),
        (lambda: Bounded(np.eye(30)), 6, SpectralSystem),
        (lambda: Bounded(operator(500)), 1, CholeskySystem),
        (lambda: Bounded(operator(501)), 1, ConjugateGradientSystem),
    ],
)
def test_the_system_suits_the_order_and_the_data(
    objective: Callable[[], Objective], steps: int, expected: type[ShiftedSystem]
) -> None:
    assert type(make(objective(), steps=steps)) is expected


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kind", ["gram", "diagonal"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_systems_of_objectives(
    name: str, kind: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = OBJECTIVES[name]()
    bound = np.asarray(objective.hessian_bound())
    r = float(np.linalg.eigvalsh(bound)[-1])
    H = bound if kind == "gram" else r * np.eye(len(bound))
    assert lipschitz_of(objective) == pytest.approx(r, rel=1e-12)
    if not direct:
        monkeypatch.setattr(shifted_systems, "DENSE_ORDER", 0)
    u = np.random.default_rng(3).standard_normal(len(H))
    for steps in (1, 10):
        system = make_system(
            objective, kind, weight=WEIGHT, shift=0.15 * r / M, steps=steps
        )
        if kind == "gram":
            assert isinstance(system, ConjugateGradientSystem) is not direct
        check_system(system, H, u)


@pytest.mark.parametrize(
    ("given_as", "message"),
    [
        (-1.0, "hessian is -1.0; it must be a finite number at least 0"),
        (np.ones(2), "hessian has 2 entries; it must have 3"),
        (np.array([1.0, -2.0, 1.0]), "hessian has the entry -2; all must be at least"),
        ("gram", "hessian is of type str; it must be a number, a 1-D array, or an"),
    ],
)
def test_a_wrong_hessian_of_ones_own(given_as: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Plain(), user_hessian=given_as)


def test_lipschitz_of() -> None:
    objective = squares(9, 4)
    number: Any = GivenSolver(np.eye(4))
    number.lipschitz = 5
    for given_as, expected in (
        *((None, objective.lipschitz()), (2, 2.0), (np.array([1.0, 3.0, 0, 2]), 3.0)),
        *((GivenSolver(np.eye(4)), objective.lipschitz()), (number, 5.0)),
    ):
        assert lipschitz_of(objective, given_as) == expected
    with pytest.raises(ValueError, match="hessian is 0, as for data"):
        lipschitz_of(objective, 0.0)


@pytest.mark.parametrize("build", [make_system, cached_system])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hessian": "full"}, "hessian is 'full'; allowed: 'gram', 'diagonal'"),
        ({"weight": 0.0}, "weight is 0.0; it must be a finite number above 0"),
        ({"shift": -1.0}, "shift is -1.0; it must be a finite number above 0"),
        ({"shift": np.nan}, "shift is nan"),
        ({"steps": 0}, "steps is 0; it must be a whole number of at least 1"),
        ({"steps": 1.5}, "steps is 1.5"),
    ],
)
def test_wrong_arguments(build: Any, changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "hessian": "gram",
        "weight": 1.0,
        "shift": 1.0,
        "steps": 1,
    }
    with pytest.raises(ValueError, match=message):
        build(squares(5, 3), **{**arguments, **changed})


# -- keeping systems -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gram", "diagonal"])
def test_a_system_is_made_once(kind: str) -> None:
    objective = squares(8, 4)
    first = cached(objective, hessian=kind)
    assert cached(objective, hessian=kind) is first
    other = cached(objective, hessian=kind, shift=0.4)
    assert other is not first
    assert other.shift == 0.4
    assert cached(objective, hessian=kind) is first
    assert cached(squares(8, 4), hessian=kind) is not first
    third = cached(objective, hessian=kind, shift=0.5)
    # the last two used are kept
    assert cached(objective, hessian=kind) is first
    assert cached(objective, hessian=kind, shift=0.5) is third
    assert cached(objective, hessian=kind, shift=0.4) is not other


def badly_scaled(rows: int = 30, columns: int = 6, seed: int = 0) -> Array:
    """Correlated columns of lengths from 1 to 1 000, one of them zeros."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns)) + 2.0 * rng.standard_normal((rows, 1))
    A *= np.geomspace(1.0, 1e3, columns)
    A[:, 2] = 0.0
    return A


def losses() -> dict[str, Any]:
    A = badly_scaled()
    b = (np.arange(30) % 2).astype(float)
    wide = badly_scaled(4, 9)
    return {
        "least squares": LeastSquares(A, b, scale="half-mean"),
        "ridge": LeastSquares(A, b, scale="half-mean", l2=0.3),
        "logistic": Logistic(A, b, l2=0.1),
        "sparse": Logistic(scipy.sparse.csr_array(A), b, l2=0.1),
        "wide": LeastSquares(wide, b[:4], scale="half-mean"),
        "multinomial": MultinomialLogistic(A, np.arange(30) % 3, 3, l2=0.1),
        "many": LeastSquares(badly_scaled(90, 80), np.zeros(90)),
    }


@pytest.mark.parametrize("name", losses())
def test_it_majorises_and_touches(name: str) -> None:
    objective = losses()[name]
    H = np.asarray(objective.hessian_bound())
    d = majoriser_of(objective)
    assert isinstance(d, np.ndarray)
    assert d.shape == (len(H),)
    lengths = np.sqrt(np.where(H.diagonal() > 0, H.diagonal(), 1.0))
    gap = (np.diag(d) - H) / lengths / lengths[:, None]
    # c·D − H is positive semi-definite, and singular where a column counts
    assert np.linalg.eigvalsh(gap)[0] > -1e-12
    present = H.diagonal() > 0
    assert np.linalg.eigvalsh(gap[np.ix_(present, present)])[0] < 1e-6
    assert (d[~present] == 0.0).all()


def test_a_file_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "factor.npz")
    first = majoriser_of(losses()["logistic"], None, path)
    monkeypatch.setattr(
        "fedtrellis.admm.hessians.largest_eigenvalue",
        lambda *_: pytest.fail("it was computed again"),
    )
    again = majoriser_of(losses()["logistic"], None, path)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("name", losses())
def test_steps_are_those_with_a_diagonal_sigma(
    name: str, hessian: str, steps: int
) -> None:
    objective = losses()[name]
    H = np.asarray(objective.hessian_bound())
    if hessian == "diagonal":
        H = np.diag(majoriser_of(objective))
    rng = np.random.default_rng(1)
    scale = np.geomspace(1e-2, 1e4, len(H))
    u, weight, shift = rng.standard_normal(len(H)), 0.2, 0.7
    sigma = shift * scale
    w = u.copy()
    for _ in range(steps - 1):
        w = w - sigma * np.linalg.solve(weight * H + np.diag(sigma), w)
    d = np.linalg.solve(weight * H + np.diag(sigma), w)
    options: Any = {"scale": scale, "weight": weight, "shift": shift, "steps": steps}
    system = cached_system(objective, hessian, **options)
    assert cached_system(objective, hessian, **options) is system
    found = system.admm_steps(u, steps)
    root = np.sqrt(scale)
    # in the coordinates that are scaled, where all entries count alike
    solved = system.solve(w)
    pairs = ((found[0] / root, w / root), (found[1] * root, d * root))
    for got, expected in (*pairs, (solved * root, d * root)):
        assert np.abs(got - expected).max() <= 1e-9 * np.abs(u / root).max()


class Slotted:
    """An objective that cannot be weakly referenced, and says no shape."""

    __slots__ = ()

    def lipschitz(self) -> float:
        return 3.0


def test_objectives_without_weak_references() -> None:
    objective = Slotted()
    first, second = (cached(objective, hessian="diagonal") for _ in range(2))
    assert first is not second
    np.testing.assert_allclose(first.solve(np.ones(2)), 1 / (3.0 * WEIGHT + 0.3))
