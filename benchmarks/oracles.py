"""Oracles and projections against what they were: old and new ways side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import svds

from fedtrellis.domains import GroupL1Ball, L1Ball, NuclearNormBall, SpectralNormBall
from fedtrellis.domains.atoms.base import FloatArray
from fedtrellis.domains.singular import sparse_plus_low_rank

from .report import Aim, Comparison, Spread, ratios

__all__ = ["FULL", "QUICK", "Sizes", "compare"]

_RADIUS = 2000.0
_PENALTY = 1e-6


@dataclass(frozen=True)
class Sizes:
    """What is measured, and how often.

    ``aim`` is by how much the nuclear norm oracle is meant to be quicker, 0 where
    nothing is.
    """

    ratings: tuple[int, int, int]
    rounds: range
    matrices: tuple[tuple[int, int], ...]
    vectors: tuple[int, ...]
    repetitions: int
    aim: float = 0.0


QUICK = Sizes((300, 400, 7_000), range(10, 14), ((128, 64),), (100_000,), 3)
FULL = Sizes(
    (943, 1682, 100_000),
    range(20, 32),
    ((128, 64), (784, 100), (1024, 128), (512, 512), (1000, 1000)),
    (1_000, 100_000, 1_000_000),
    5,
    3.0,
)


@dataclass(frozen=True)
class Case:
    """Two ways from the same inputs to the same answers.

    ``before`` and ``now`` go through all inputs in order and return an answer for each.
    ``differ`` says by how much these differ, which is at most ``bound``.
    """

    what: str
    size: str
    inputs: str
    count: int
    before: Callable[[], list[Any]]
    now: Callable[[], list[Any]]
    differ: Callable[[list[Any], list[Any]], float]
    bound: float
    aim: float = 0.0


def _checked(array: FloatArray) -> FloatArray:
    """Return the array; every oracle and projection looks at it like this first."""
    assert np.isfinite(array.min())
    assert np.isfinite(array.max())
    return array


def _old_leading_pair(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Find the pair from nowhere, to a residual of 1e-10."""
    largest = float(np.abs(_checked(matrix)).max())
    scaled = matrix / 2.0 ** np.floor(np.log2(largest))
    v0 = np.random.default_rng(0).standard_normal(min(matrix.shape))
    left, values, right = svds(scaled, k=1, tol=1e-11, v0=v0, maxiter=40)
    u, sigma, v = left[:, 0], float(values[0]), right[0]
    residual = max(
        float(np.linalg.norm(scaled @ v - sigma * u)),
        float(np.linalg.norm(u @ scaled - sigma * v)),
    )
    assert residual <= 1e-10 * sigma
    return u, v


def _old_polar_factor(matrix: FloatArray) -> FloatArray:
    scaled = matrix / 2.0 ** np.floor(np.log2(np.abs(_checked(matrix)).max()))
    left, _, right = np.linalg.svd(scaled, full_matrices=False)
    return np.asarray(left @ right)


def _old_l1(vector: FloatArray, radius: float) -> FloatArray:
    """Project by sorting."""
    magnitudes = np.abs(vector)
    assert magnitudes.sum() > radius
    shifted = magnitudes - magnitudes.max()
    descending = np.sort(shifted[shifted > -radius])[::-1]
    thresholds = (np.cumsum(descending) - radius) / np.arange(1, descending.size + 1)
    k = np.flatnonzero(descending > thresholds)[-1]
    return np.asarray(np.copysign(np.maximum(shifted - thresholds[k], 0.0), vector))


def _old_group_norms(
    flat: FloatArray, size: int
) -> tuple[FloatArray, np.ndarray[Any, Any]]:
    """Return the groups' norms, and the group of every entry."""
    labels = np.arange(flat.size) // size
    scale = float(np.abs(flat).max()) or 1.0
    squares = np.bincount(labels, weights=np.square(flat / scale))
    return scale * np.sqrt(squares), labels


def _old_group_lmo(flat: FloatArray, size: int, radius: float) -> FloatArray:
    best = int(_old_group_norms(flat, size)[0].argmax())
    support = np.arange(best * size, (best + 1) * size)
    values = -radius * flat[support] / np.linalg.norm(flat[support])
    atom = np.zeros(flat.size)
    atom[support] = values
    return atom


def _old_group_projection(flat: FloatArray, size: int, radius: float) -> FloatArray:
    norms, labels = _old_group_norms(flat, size)
    factors = _old_l1(norms, radius) / norms
    return np.asarray(flat * factors[labels])


def _gradients(sizes: Sizes) -> list[tuple[scipy.sparse.csr_array, Any, Any]]:
    """Return ∇F(x_t) = S + L Rᵀ as Frank-Wolfe comes by them, t in ``sizes.rounds``.

    F(x) = the mean over ratings of (x_ij − rating)² + (penalty/2) ‖x‖². The ratings
    are made up, of users and items that rate and are rated unevenly.
    """
    m, n, count = sizes.ratings
    rng = np.random.default_rng(0)
    users, items = (1.0 / np.arange(1, size + 1) ** 0.6 for size in (m, n))
    drawn = [rng.choice(len(p), 4 * count, p=p / p.sum()) for p in (users, items)]
    cells = np.unique(drawn[0] * n + drawn[1])
    row, column = np.divmod(np.sort(rng.choice(cells, count, replace=False)), n)
    factors = [rng.standard_normal((size, 8)) * 0.7 ** np.arange(8) for size in (m, n)]
    ratings = np.einsum("kr,kr->k", factors[0][row], factors[1][column])
    ratings += 0.5 * rng.standard_normal(n)[column] + 0.8 * rng.standard_normal(count)
    left, right, x, result = np.zeros((m, 0)), np.zeros((n, 0)), 0.0 * ratings, []
    start = None
    for t in range(1, sizes.rounds.stop):
        entries = 2.0 / count * (x - ratings)
        sparse = scipy.sparse.csr_array((entries, (row, column)), shape=(m, n))
        gradient = sparse, _PENALTY * left, right
        if t in sizes.rounds:
            result.append(gradient)
        ball, operator = NuclearNormBall(_RADIUS), sparse_plus_low_rank(*gradient)
        atom, start = ball.lmo_from(operator, start)
        eta = 2.0 / (t + 1)
        x = (1.0 - eta) * x + eta * atom.left[row] * atom.right[column]
        left = np.column_stack([(1.0 - eta) * left, eta * atom.left])
        right = np.column_stack([right, atom.right])
    return result


def _nuclear(sizes: Sizes) -> list[Case]:
    gradients = _gradients(sizes)
    dense = [sparse.toarray() + left @ right.T for sparse, left, right in gradients]
    forms: dict[str, Sequence[Any]] = {
        "array": dense,
        "sparse + low rank": [sparse_plus_low_rank(*one) for one in gradients],
    }

    def before() -> list[Any]:
        return [_old_leading_pair(matrix) for matrix in dense]

    def now(form: str, tolerance: float, warm: bool) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            ball, start, atoms = NuclearNormBall(1.0, tolerance), None, []
            for gradient in forms[form]:
                atom, kept = ball.lmo_from(gradient, start)
                start = kept if warm else None
                atoms.append(atom)
            return atoms

        return run

    def differ(old: list[Any], new: list[Any]) -> float:
        best = [float(u @ g @ v) for (u, v), g in zip(old, dense, strict=True)]
        found = [float(-atom.dot(g)) for atom, g in zip(new, dense, strict=True)]
        return max((a - b) / a for a, b in zip(best, found, strict=True))

    m, n, _ = sizes.ratings
    kinds = [
        ("array", 1e-10, False),
        ("array", 1e-10, True),
        ("array", 1e-2, True),
        ("sparse + low rank", 1e-10, True),
        ("sparse + low rank", 1e-2, False),
        ("sparse + low rank", 1e-2, True),
    ]
    return [
        Case(
            "nuclear norm, oracle",
            f"{m} × {n}",
            f"{form}, tolerance {tolerance:g}"
            + (", from the last one" if warm else ""),
            len(dense),
            before,
            now(form, tolerance, warm),
            differ,
            max(1e-12, tolerance),
            sizes.aim if warm and form != "array" else 0.0,
        )
        for form, tolerance, warm in kinds
    ]


def _largest(old: list[FloatArray], new: list[FloatArray]) -> float:
    pairs = zip(old, new, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def _spectral(sizes: Sizes) -> list[Case]:
    rng, cases, ball = np.random.default_rng(1), [], SpectralNormBall(1.0)
    for shape in sizes.matrices:
        left, values, right = np.linalg.svd(
            rng.standard_normal(shape), full_matrices=False
        )
        for condition in (1e2, 1e8):
            values = np.geomspace(1.0, 1.0 / condition, len(values))
            x = (left * values) @ right

            def before(x: FloatArray = x) -> list[FloatArray]:
                return [-_old_polar_factor(x)]

            def now(x: FloatArray = x) -> list[FloatArray]:
                return [ball.lmo(x).dense()]

            name = f"condition {condition:.0e}"
            size = " × ".join(map(str, shape))
            bound = 1e-10 if condition < 1e4 else 1e-6
            cases.append(
                Case(
                    "spectral norm, oracle", size, name, 1, before, now, _largest, bound
                )
            )
    return cases


def _vectors(sizes: Sizes) -> list[Case]:
    rng, cases = np.random.default_rng(2), []
    for p in sizes.vectors:
        normal = rng.standard_normal(p)
        spread = np.where(rng.random(p) < 0.01, 1.0, 1e-3) * rng.standard_normal(p)
        for inputs, x, share in (
            ("normal, to a hundredth of its norm", normal, 0.01),
            ("normal, to 0.9 of its norm", normal, 0.9),
            ("a hundredth of it large, to half its norm", spread, 0.5),
        ):
            radius = share * float(np.abs(x).sum())
            cases.append(
                _pair("l1 ball, projection", x, inputs, _old_l1, L1Ball(radius))
            )
        for size in (10, 100):
            ball = GroupL1Ball(0.3 * float(np.abs(normal).sum()) / size**0.5, size)
            inputs = f"groups of {size}"

            def before(x: FloatArray, radius: float, size: int = size) -> FloatArray:
                return _old_group_projection(x, size, radius)

            def oracle(x: FloatArray, radius: float, size: int = size) -> FloatArray:
                return _old_group_lmo(x, size, radius)

            cases.append(
                _pair("group l1 ball, projection", normal, inputs, before, ball)
            )
            cases.append(_pair("group l1 ball, oracle", normal, inputs, oracle, ball))
    return cases


def _pair(
    what: str,
    x: FloatArray,
    inputs: str,
    before: Callable[[FloatArray, float], FloatArray],
    ball: Any,
) -> Case:
    def now() -> list[FloatArray]:
        if what.endswith("oracle"):
            return [ball.lmo(x).dense()]
        return [ball.project(x)]

    return Case(
        what,
        f"{x.size:,}",
        inputs,
        1,
        # the checks are the same
        lambda: [before(ball._input(x, "point"), ball.radius)],
        now,
        _largest,
        1e-10,
    )


def _measure(case: Case, repetitions: int) -> tuple[Spread, Spread, float]:
    """Seconds of a call before and now, and how far their answers differ."""
    seconds: tuple[list[float], list[float]] = ([], [])
    sides = (case.before, case.now)
    began = time.process_time()
    error = case.differ(sides[0](), sides[1]())
    if not error <= case.bound:
        raise AssertionError(f"{case.what}, {case.inputs}: they differ by {error:g}")
    # so many calls that a clock's tick does not count
    calls = max(1, int(0.01 / max(time.process_time() - began, 1e-6)))
    for repetition in range(repetitions):
        # who goes first changes
        for side in (0, 1) if repetition % 2 else (1, 0):
            began = time.process_time()
            for _ in range(calls):
                sides[side]()
            passed = (time.process_time() - began) / (calls * case.count)
            seconds[side].append(passed)
    return Spread(tuple(seconds[0]), "ms"), Spread(tuple(seconds[1]), "ms"), error


def compare(sizes: Sizes) -> Comparison:
    """Oracles and projections as they are against as they were, a row a case."""
    result = Comparison(
        "oracles",
        "oracles and projections, before and now",
        "Processor time of one call, one thread, in turns; median (min – max). Before: "
        "one singular pair by ARPACK to 1e-10 of the dense gradient, a singular value "
        "decomposition, sorting, an index for every entry. The nuclear norm's "
        f"gradients are Frank-Wolfe's on made-up ratings of {sizes.ratings[2]:,} "
        f"entries, rounds {sizes.rounds.start} to {sizes.rounds.stop - 1}; the "
        "difference is of −<G, s>, elsewhere of the largest entry, both relative.",
    )
    for case in (*_nuclear(sizes), *_spectral(sizes), *_vectors(sizes)):
        before, now, error = _measure(case, sizes.repetitions)
        ratio = ratios(before, now)
        result.rows.append(
            {
                "set": case.what,
                "size": case.size,
                "input": case.inputs,
                "before": before,
                "now": now,
                "before / now": ratio,
                "difference": f"{max(error, 0.0):.0e}",
            }
        )
        if case.aim:
            result.aims.append(
                Aim(
                    f"{case.what}, {case.inputs}: at most 1/{case.aim:g} of the time",
                    f"1/{ratio.median:.1f}",
                    ratio.median >= case.aim,
                )
            )
    return result
