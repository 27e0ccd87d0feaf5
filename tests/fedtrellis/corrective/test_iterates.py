"""What travels of an iterate: it stays in its set, and nothing else gets in."""

import importlib
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.corrective import Entries, Form, Iterate, LocalProblem
from fedtrellis.corrective.consensus import Balance, Consensus
from fedtrellis.domains import (
    Box,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    NonNegativeL1Ball,
    NuclearNormBall,
    Product,
    SparseGroupBall,
)
from fedtrellis.wire.arrays import Layout
from tests.fedtrellis.domains.cases import CASES, IDS, constraints
from tests.harness import Distance

cp: Any = importlib.import_module("cvxpy")

STEPS = 6
all_cases = pytest.mark.parametrize(("domain", "shape"), CASES, ids=IDS)


def local_problem(shape: tuple[int, ...], seed: int) -> LocalProblem:
    """What clients want lies outside."""
    c, y, z = np.random.default_rng(seed).standard_normal((3, *shape))
    return LocalProblem(Distance(4.0 * c), Layout((shape,)), 3, y, z, penalty=1.0)


def walk(
    domain: Domain, shape: tuple[int, ...], rounds: int
) -> list[tuple[Iterate, list[NDArray[Any]]]]:
    """Iterates, and what changes each of them; every round has another problem."""
    iterate = Form(domain).start_at(domain.centre(shape))
    found = []
    for seed in range(rounds):
        arrays = iterate.corrections(local_problem(shape, seed), domain, STEPS)
        found.append((iterate, arrays))
        iterate = iterate.changed(arrays, domain, STEPS)
    return [*found, (iterate, [])]


@all_cases
def test_iterates_stay_in_their_set(domain: Domain, shape: tuple[int, ...]) -> None:
    """Rounded to float16, replayed, packed and unpacked: the same bits, in D."""
    steps, form = walk(domain, shape, 8), Form(domain)
    for (before, arrays), (after, _) in itertools.pairwise(steps):
        x = after.dense()
        assert domain.contains(x, 1e-9)
        # the other side starts from what was packed, and is sent read-only arrays
        mirror = form.unpack(before.arrays(), shape)
        for array in arrays:
            array.flags.writeable = False
        there = mirror.changed(arrays, domain, STEPS)
        packed = form.unpack(after.arrays(), shape)
        assert there.dense().tobytes() == packed.dense().tobytes() == x.tobytes()
    if domain.diameter(shape) > 0.0:
        assert not np.array_equal(steps[-1][0].dense(), steps[0][0].dense())


@all_cases
def test_corrections_come_nearer(domain: Domain, shape: tuple[int, ...]) -> None:
    """L_i falls from round to round, to where its Frank-Wolfe gap vanishes."""
    problem = local_problem(shape, 1)
    iterate = Form(domain).start_at(domain.centre(shape))
    values = [problem.value(iterate.dense())]
    for _ in range(60):
        arrays = iterate.corrections(problem, domain, 20)
        iterate = iterate.changed(arrays, domain, 20)
        values.append(problem.value(iterate.dense()))
    scale, x = 1.0 + abs(values[0]), iterate.dense()
    assert values[1] <= values[0]
    assert values[-1] <= min(values) + 1e-9 * scale
    assert domain.gap(problem.gradient(x), x) <= 1e-5 * scale


WALKED: list[tuple[Domain, tuple[int, ...]]] = [
    (L1Ball(2.5), (30,)),
    (NuclearNormBall(2.0), (4, 3)),
    (Product([L1Ball(1.0), NuclearNormBall(1.0)], [(3,), (2, 2)]), (7,)),
]


def spoilt(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    flat = array.reshape(-1)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from (flat[:-1], np.concatenate([flat, flat]), array[None], flat[:0])
        yield from (array.astype(kind) for kind in ("i8", "f2", "c16", "?"))
        if array.dtype.kind == "f":
            yield from (array * f for f in (-1.0, 1.01, 3.0, 1e6, np.nan, np.inf))
        else:
            yield from (array + np.array(d, array.dtype) for d in (1, 100))


@pytest.mark.parametrize(("domain", "shape"), WALKED)
def test_what_comes_is_refused_or_fits(domain: Domain, shape: tuple[int, ...]) -> None:
    """Never another exception than ValueError, and what there was stays as it was."""
    refused = 0
    for iterate, arrays in walk(domain, shape, 4)[:-1]:
        before = iterate.dense().tobytes()
        arrived = [[], arrays[:-1], [*arrays, arrays[0]], arrays[:1] * 3]
        for i, array in enumerate(arrays):
            arrived += [[*arrays[:i], bad, *arrays[i + 1 :]] for bad in spoilt(array)]
        arrived += [[bad] for bad in spoilt(arrays[0])]
        for each in arrived:
            try:
                after = iterate.changed(each, domain, STEPS)
            except ValueError:
                refused += 1
            else:
                assert after.shape == shape
                assert domain.contains(after.dense(), 3e-9)
        assert iterate.dense().tobytes() == before
    assert refused > 20


SPARSE = [(domain, shape) for domain, shape in CASES if domain.sparse_atoms] + [
    *((GroupL1Ball(1.0, 3), (6,)), (SparseGroupBall(1.5, 3, 0.7), (6,))),
    *((KSupportBall(2, 0.3), (6,)), (NonNegativeL1Ball(1.0), (6,))),
]


@pytest.mark.parametrize(("domain", "shape"), SPARSE, ids=lambda item: str(item)[:40])
def test_face_projections_are_cvxpys(domain: Domain, shape: tuple[int, ...]) -> None:
    rng, x = np.random.default_rng(math.prod(shape)), cp.Variable(shape)
    for _ in range(3):
        point, support = 2.0 * rng.standard_normal(shape), rng.random(shape) < 0.6
        support.flat[0] = True  # the simplex has no point without any
        found = domain.project_on(point, support)
        zeros = [x[index] == 0 for index in zip(*np.nonzero(~support), strict=True)]
        objective = cp.Minimize(cp.sum_squares(x - point))
        programme = cp.Problem(objective, [*constraints(domain, x), *zeros])
        programme.solve(solver=cp.CLARABEL)
        assert not found[~support].any()
        assert domain.contains(found)
        # in the set, and as near as what the solver found
        assert np.sum((found - point) ** 2) <= programme.value + 1e-7
        assert np.abs(found - x.value).max() < 1e-4


def test_a_consensus_in_a_box_is_the_clipped_mean() -> None:
    """Of x_i in closed form; F* is above every bound, and a checkpoint goes on."""
    n, domain, start = 3, Box(0.0, 1.0), np.full(4, 0.5)
    centres = np.random.default_rng(0).normal(0.5, 1.0, (n, 4))
    best, forms = (
        centres.mean(axis=0).clip(0.0, 1.0),
        dict.fromkeys("abc", Form(domain)),
    )
    lowest, z = float(np.square(best - centres).sum()) / (2 * n), start
    one, other = (Consensus(domain, forms, start, Balance(1.0), 1e-9) for _ in range(2))
    for k in range(100):
        if k == 5:
            other.load_state(one.state())
            one = other
        for name, c in zip(forms, centres, strict=True):
            # argmin over the box of ‖x − c‖²/2n + ⟨y, x⟩ + ½‖x − z‖²
            x = np.clip((c / n - one.duals[name] + z) / (1.0 / n + 1.0), 0.0, 1.0)
            one.take(name, Entries(x), z, 1.0)
            gap = domain.gap((x - c) / n + one.duals[name], x)
            one.certificates[name] = float(np.square(x - c).sum()) / (2 * n), gap
        z = one.advance([*forms], z)
        one.settle(dict.fromkeys(forms), z)
        bound = one.certify([*forms])["lower-bound"]
        assert bound <= lowest + 1e-12
    assert one.converged(True)
    assert lowest - bound < 1e-8
    assert np.allclose(one.model, best, atol=1e-8)
