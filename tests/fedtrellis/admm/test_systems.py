"""FedGiA's linear systems, majorisers and what is kept of them between processes.

Against explicit inverses and plain loops.
"""

import logging
import os
import stat
from collections.abc import Callable
from functools import cache, partial
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
    MatrixCompletion,
    MultinomialLogistic,
    Objective,
)
from tests.harness import Array

M = 8  # clients
WEIGHT, S = 1.0 / M, 0.25


def data(kind: str) -> Any:
    """A, tall, wide, rank-deficient or sparse."""
    rng = np.random.default_rng(0)
    shapes = {"tall": (30, 12), "wide": (9, 40), "square": (15, 15)}
    dense = rng.standard_normal(shapes[kind.split(",")[0]])
    if "deficient" in kind:
        # the last third of the rows repeats others, and two columns are equal
        count = len(dense) // 3
        dense[-count:] = dense[:count]
        dense[:, 1] = dense[:, 0]
    if "sparse" in kind:
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


HALF = np.arange(30) % 2
WELL: dict[str, Callable[[], Any]] = {
    "tall": lambda: squares(30, 7),
    "wide": lambda: squares(7, 30),
    "wide, no l2": lambda: squares(7, 30, l2=0.0),
    "logistic": lambda: Logistic(data("wide, sparse"), HALF[:9], l2=0.01),
    "logistic, tall": lambda: Logistic(data("tall, sparse"), HALF),
    "multinomial": lambda: MultinomialLogistic(data("tall"), np.arange(30) % 3, 3),
    "completion": lambda: MatrixCompletion([0, 2, 2], [1, 0, 0], [1, 2, 3], (3, 2)),
}
BADLY: dict[str, Callable[[], Any]] = {
    "badly": lambda: LeastSquares(badly_scaled(), HALF, scale="half-mean"),
    "badly, ridge": lambda: LeastSquares(badly_scaled(), HALF, l2=0.3),
    "badly, logistic": lambda: Logistic(
        scipy.sparse.csr_array(badly_scaled()), HALF, l2=0.1
    ),
    "badly, wide": lambda: LeastSquares(badly_scaled(4, 9), HALF[:4]),
    "badly, multinomial": lambda: MultinomialLogistic(
        badly_scaled(), np.arange(30) % 3, 3, l2=0.1
    ),
    "badly, many": lambda: LeastSquares(badly_scaled(90, 80), np.zeros(90)),
}


def make(objective: Any, hessian: str = "gram", steps: int = 1, **options: Any) -> Any:
    options = {"weight": WEIGHT, "shift": 0.3, **options}
    return make_system(objective, hessian, steps=steps, **options)


def cached(objective: Any, hessian: str = "gram", **options: Any) -> Any:
    options = {"weight": WEIGHT, "shift": 0.3, "steps": 1, **options}
    return cached_system(objective, hessian, **options)


def close(actual: Array, expected: Array, scale: Array) -> bool:
    """Whether the error is small beside ``scale``, whose norm a step only shrinks."""
    return bool(np.linalg.norm(actual - expected) <= 1e-10 * np.linalg.norm(scale))


def check_system(system: ShiftedSystem, H: Array, u: Array) -> None:
    """The system against an explicit inverse and the method's own loop."""
    sigma, before = system.shift, u.copy()
    inverse = np.linalg.inv(WEIGHT * H + sigma * np.eye(len(H)))
    d = system.solve(u)
    assert d.shape == u.shape
    assert d.dtype == np.float64
    assert close(d, inverse @ u, d)
    for steps in (1, 2, 5, 10):
        w, d = system.admm_steps(u, steps)
        # the steps as the paper has them, with ḡ and π apart
        g, x = 0.3 * u, np.cos(np.arange(len(u)))
        pi = u - g
        for _ in range(steps):
            last, x_i = g + pi, x - inverse @ (g + pi)
            pi = pi + sigma * (x_i - x)
        assert close(w, last, u)
        assert close(x - d, x_i, inverse @ u)
        assert close(w - sigma * d - g, pi, u)
        for one, other in ((w, u), (d, u), (w, d)):
            assert not np.shares_memory(one, other)
    np.testing.assert_array_equal(u, before)


class GivenSolver:
    def __init__(self, H: Array) -> None:
        self.H = H

    def solve(self, vector: Array, shift: float) -> Array:
        shifted = self.H + shift * np.eye(len(self.H))
        result = np.asarray(np.linalg.solve(shifted, vector), dtype=np.float64)
        vector[:] = np.nan  # it may do with the vector as it likes
        return result


def factored(cls: Any, A: Any, s: float, c: float, shift: float) -> Any:
    H = FactorHessian(A, s, c)
    return cls(H, cls.factorise(H, WEIGHT, shift), WEIGHT, shift)


def dense(A: Any, s: float, c: float) -> Array:
    full = np.asarray(A @ np.eye(A.shape[1]), dtype=np.float64)
    return np.asarray(s * full.T @ full + c * np.eye(A.shape[1]))


MAKERS: dict[str, Callable[[Any, float, float, float], ShiftedSystem]] = {
    "Cholesky": partial(factored, CholeskySystem),
    "spectral": partial(factored, SpectralSystem),
    "wide Cholesky": partial(factored, WideCholeskySystem),
    "wide spectral": partial(factored, WideSpectralSystem),
    "conjugate gradients": lambda A, s, c, shift: ConjugateGradientSystem(
        FactorHessian(A, s, c).product, WEIGHT, shift
    ),
    "user": lambda A, s, c, shift: UserSystem(
        GivenSolver(dense(A, s, c)), WEIGHT, shift
    ),
}


@pytest.mark.parametrize("c", [0.0, 0.7])
@pytest.mark.parametrize("name", MAKERS)
def test_systems_agree_with_explicit_matrices(name: str, c: float) -> None:
    for shape in ("tall", "wide", "square"):
        for suffix in ("", ", deficient", ", sparse"):
            A = data(shape + suffix)
            H = dense(A, S, c)
            u = np.random.default_rng(1).standard_normal(len(H))
            for ratio in (0.15, 6.0, 1e3):
                sigma = ratio * WEIGHT * float(np.linalg.eigvalsh(H)[-1])
                check_system(MAKERS[name](A, S, c, sigma), H, u)


@pytest.mark.parametrize("h", [0.0, 1.7, np.array([0.0, 3.0, 1e-9, 12.0])])
def test_diagonal_system(h: float | Array) -> None:
    u = np.array([1.0, -2.0, 0.5, 3.0])
    for sigma in (1e-2, 1.0, 50.0):
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


class Bounded(Objective):
    """A loss of whose second derivatives a matrix or an operator is the bound."""

    num_examples = 1

    def __init__(self, bound: Any = None, order: int = 3) -> None:
        self.bound, self.shape = bound, (order if bound is None else bound.shape[0],)

    def value(self, x: Array) -> float:
        return 0.0

    def gradient(self, x: Array) -> Array:
        return np.zeros(self.shape)

    def hessian_bound(self) -> Any:
        return self.bound


def operator(order: int) -> Any:
    return scipy.sparse.linalg.aslinearoperator(np.eye(order))


@pytest.mark.parametrize(
    ("objective", "steps", "expected"),
    [
        (lambda: squares(60, 20), 5, CholeskySystem),
        (lambda: squares(60, 20), 6, SpectralSystem),
        (lambda: squares(20, 60), 5, WideCholeskySystem),
        (lambda: squares(20, 60), 6, WideSpectralSystem),
        # the threshold grows with the smaller order
        (lambda: squares(500, 300), 9, CholeskySystem),
        (lambda: squares(300, 500), 10, WideSpectralSystem),
        # a factor no larger than the data, or than 2 MB
        (lambda: squares(600, 700), 1, WideCholeskySystem),
        (lambda: sparse_squares(500, 4000, 10), 1, WideCholeskySystem),
        (lambda: sparse_squares(501, 4000, 10), 1, ConjugateGradientSystem),
        (lambda: sparse_squares(4000, 501, 60), 1, CholeskySystem),
        (lambda: sparse_squares(4000, 800, 60), 1, ConjugateGradientSystem),
        # above order 2048, though the data are larger
        (lambda: sparse_squares(2049, 4000, 1500), 1, ConjugateGradientSystem),
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
@pytest.mark.parametrize("name", WELL)
def test_systems_of_objectives(
    name: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = WELL[name]()
    bound = np.asarray(objective.hessian_bound())
    r = float(np.linalg.eigvalsh(bound)[-1])
    assert lipschitz_of(objective) == pytest.approx(r, rel=1e-12)
    if not direct:
        monkeypatch.setattr(shifted_systems, "DENSE_ORDER", 0)
    u = np.random.default_rng(3).standard_normal(len(bound))
    for steps in (1, 10):
        for kind in ("gram", "diagonal"):
            system = make(objective, kind, steps, shift=0.15 * r / M)
            if kind == "gram":
                assert isinstance(system, ConjugateGradientSystem) is not direct
            check_system(system, bound if kind == "gram" else r * np.eye(len(u)), u)


@pytest.mark.parametrize(
    ("build", "changed", "message"),
    [
        *(
            (build, changed, message)
            for build in (make, cached)
            for changed, message in (
                ({"hessian": "full"}, "hessian is 'full'; allowed: 'gram', 'diagonal'"),
                ({"weight": 0.0}, "weight is 0.0; it must be a finite number above 0"),
                ({"shift": -1.0}, "shift is -1.0; it must be a finite number above 0"),
                ({"shift": np.nan}, "shift is nan"),
                ({"steps": 0}, "steps is 0; it must be a whole number of at least 1"),
                ({"steps": 1.5}, "steps is 1.5"),
            )
        ),
        *(
            (make, {"user_hessian": given}, message)
            for given, message in (
                (-1.0, "hessian is -1.0; it must be a finite number at least 0"),
                (np.ones(2), "hessian has 2 entries; it must have 3"),
                (np.array([1.0, -2.0, 1.0]), "hessian has the entry -2; all must be"),
                ("gram", "hessian is of type str; it must be a number, a 1-D array"),
            )
        ),
    ],
)
def test_wrong_arguments(build: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(squares(5, 3), **changed)


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


# -- majorisers, and a σ for each entry -----------------------------------------------


@pytest.mark.parametrize("name", BADLY)
def test_it_majorises_and_touches(name: str) -> None:
    objective = BADLY[name]()
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


@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
@pytest.mark.parametrize("name", BADLY)
def test_steps_are_those_with_a_diagonal_sigma(name: str, hessian: str) -> None:
    objective = BADLY[name]()
    H = np.asarray(objective.hessian_bound())
    if hessian == "diagonal":
        H = np.diag(np.asarray(majoriser_of(objective)))
    scale = np.geomspace(1e-2, 1e4, len(H))
    root, sigma = np.sqrt(scale), np.diag(0.7 * scale)
    u = np.random.default_rng(1).standard_normal(len(H))
    for steps in (1, 3, 7):
        w = u.copy()
        for _ in range(steps - 1):
            w = w - sigma @ np.linalg.solve(0.2 * H + sigma, w)
        d = np.linalg.solve(0.2 * H + sigma, w)
        how = {"scale": scale, "weight": 0.2, "shift": 0.7, "steps": steps}
        system = cached(objective, hessian, **how)
        assert cached(objective, hessian, **how) is system
        found = system.admm_steps(u, steps)
        # in the coordinates that are scaled, where all entries count alike
        pairs = ((found[0] / root, w / root), (found[1] * root, d * root))
        for got, expected in (*pairs, (system.solve(w) * root, d * root)):
            assert np.abs(got - expected).max() <= 1e-9 * np.abs(u / root).max()


# -- keeping systems -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gram", "diagonal"])
def test_a_system_is_made_once_and_the_last_two_are_kept(kind: str) -> None:
    objective = squares(8, 4)
    first, other = (cached(objective, kind, shift=shift) for shift in (0.3, 0.4))
    assert other.shift == 0.4
    assert cached(objective, kind) is first
    assert cached(squares(8, 4), kind) is not first
    third = cached(objective, kind, shift=0.5)
    assert cached(objective, kind) is first
    assert cached(objective, kind, shift=0.5) is third
    assert cached(objective, kind, shift=0.4) is not other


def test_an_objective_that_cannot_be_weakly_referenced() -> None:
    class Slotted:
        __slots__ = ()

        def lipschitz(self) -> float:
            return 3.0

    objective = Slotted()
    first, second = (cached(objective, "diagonal") for _ in range(2))
    assert first is not second
    np.testing.assert_allclose(first.solve(np.ones(2)), 1 / (3.0 * WEIGHT + 0.3))


# -- the file: used when it fits, and never else ---------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many factorisations were made since it was last called."""
    count = [0]
    for cls in (CholeskySystem, SpectralSystem, WideCholeskySystem, WideSpectralSystem):
        original = cls.factorise

        def counting(*args: Any, original: Any = original) -> Any:
            count[0] += 1
            return original(*args)

        monkeypatch.setattr(cls, "factorise", staticmethod(counting))

    def since() -> int:
        found, count[0] = count[0], 0
        return found

    return since


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("name", ["tall", "wide", "logistic", "multinomial"])
def test_a_factor_is_kept_in_the_file(
    name: str, steps: int, tmp_path: Path, made: Callable[[], int]
) -> None:
    path, objective = tmp_path / "factor.npz", WELL[name]()
    first = make(objective, steps=steps, factor_file=str(path))
    assert made() == 1
    assert os.listdir(tmp_path) == ["factor.npz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # a new process has a new objective of the same data
    second = make(WELL[name](), steps=steps, factor_file=str(path))
    assert made() == 0
    assert type(second) is type(first)
    u = np.random.default_rng(0).standard_normal(int(np.prod(objective.shape)))
    for ours, theirs in zip(
        *(s.admm_steps(u, 7) for s in (second, first)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    check_system(second, np.asarray(objective.hessian_bound()), u)


@pytest.mark.parametrize("columns", [5, 50])
@pytest.mark.parametrize("steps", [1, 10])
def test_a_factor_of_something_else_is_not_used(
    steps: int, columns: int, tmp_path: Path, made: Callable[[], int]
) -> None:
    objective = squares(20, columns)
    changed = np.array(objective.hessian_factor()[0])
    changed[3, 2] = np.nextafter(changed[3, 2], np.inf)
    near = [
        LeastSquares(changed, np.zeros(20), scale="half-mean", l2=l2)
        for l2 in (0.1, 0.2)
    ]
    for given, shift, expected in (
        *((objective, 0.3, 1), (objective, 0.3, 0)),
        # an eigendecomposition holds for every σ
        (objective, 0.4, 1 if steps == 1 else 0),
        *((squares(20, columns, seed=1), 0.4, 1), (near[0], 0.3, 1), (near[1], 0.3, 1)),
    ):
        path = str(tmp_path / "factor.npz")
        system = make(given, steps=steps, shift=shift, factor_file=path)
        check_system(system, np.asarray(given.hessian_bound()), np.ones(columns))
        assert made() == expected


def test_a_file_keeps_the_majoriser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "factor.npz")
    first = majoriser_of(BADLY["badly, logistic"](), None, path)
    monkeypatch.setattr(
        "fedtrellis.admm.hessians.largest_eigenvalue",
        lambda *_: pytest.fail("it was computed again"),
    )
    again = majoriser_of(BADLY["badly, logistic"](), None, path)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a file of arrays", b"PK\x03\x04broken", b"truncated", b"flipped"],
)
def test_a_damaged_file_is_written_anew(
    content: bytes, tmp_path: Path, made: Callable[[], int], logged: list[str]
) -> None:
    path, objective = tmp_path / "factor.npz", squares(40, 30)
    make(objective, factor_file=str(path))
    whole = path.read_bytes()
    if content == b"truncated":
        content = whole[: len(whole) // 2]
    elif content == b"flipped":
        content = whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:]
    path.write_bytes(content)
    made()
    logging.getLogger("flwr").setLevel(logging.INFO)
    system = make(objective, factor_file=str(path))
    assert any(f"{path}" in line and "cannot be read" in line for line in logged)
    assert made() == 1
    check_system(system, np.asarray(objective.hessian_bound()), np.ones(30))
    make(objective, factor_file=str(path))
    assert made() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "factor.npz"

    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    bomb: Any = np.array([Bomb()], dtype=object)
    np.savez(path, **{"factor/fingerprint": bomb, "factor/factor": bomb})
    make(squares(5, 4), factor_file=str(path))
    assert not (tmp_path / "exploded").exists()


def test_a_file_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "none" / "factor.npz")
    wrong: list[tuple[Any, str]] = [
        (missing, r"factor-file = '.*none.factor.npz': its folder does not"),
        (str(tmp_path), r"factor-file = '.*' is a folder"),
        (3, "factor-file = 3 must be the path"),
    ]
    for use in (make, partial(make, hessian="diagonal"), lipschitz_of, cached):
        for path, message in wrong:
            with pytest.raises(ValueError, match=message):
                use(squares(9, 4), factor_file=path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match=r"f\.npz' cannot be written: No space left"):
        make(squares(9, 4), factor_file=str(tmp_path / "f.npz"))
    assert not os.listdir(tmp_path)
