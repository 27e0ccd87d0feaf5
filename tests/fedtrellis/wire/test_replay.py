"""A mirror against a plain dense replay of the same steps."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
)
from fedtrellis.wire import replay as mirror_module
from fedtrellis.wire.replay import ReplayedIterate

Point = NDArray[np.float64]
Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape], Atom]

#: One size on either side of the threshold between dense and sparse storage.
SMALL, LARGE = (20, 20), (130, 130)
assert 20 * 20 < mirror_module._DENSE_SIZE < 130 * 130


def sparse(rng: np.random.Generator, shape: Shape) -> Atom:
    size, count = int(np.prod(shape)), int(rng.integers(0, 4))
    indices = np.sort(rng.choice(size, count, replace=False))
    return SparseAtom(indices, rng.standard_normal(count), shape)


def same_entry(rng: np.random.Generator, shape: Shape) -> Atom:
    return SparseAtom(np.array([3]), rng.standard_normal(1), shape)


def rank_one(rng: np.random.Generator, shape: Shape) -> Atom:
    return RankOneAtom(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))


def permutation(rng: np.random.Generator, shape: Shape) -> Atom:
    return PermutationAtom(rng.permutation(shape[0]), 2.0)


def sign(rng: np.random.Generator, shape: Shape) -> Atom:
    return SignAtom(rng.random(shape) < 0.5, -1.0, 0.5)


def dense(rng: np.random.Generator, shape: Shape) -> Atom:
    return DenseAtom(rng.standard_normal(shape))


def product(rng: np.random.Generator, shape: Shape) -> Atom:
    (size,) = shape
    return ProductAtom(
        (sparse(rng, (size - 4,)), DenseAtom(rng.standard_normal((2, 2))))
    )


def mixed(rng: np.random.Generator, shape: Shape) -> Atom:
    makers: list[Maker] = [sparse, rank_one, permutation, sign, dense]
    return makers[int(rng.choice(5, p=[0.8, 0.05, 0.05, 0.05, 0.05]))](rng, shape)


CASES: list[tuple[Maker, Shape]] = [
    (maker, shape)
    for maker in (sparse, same_entry, rank_one, permutation, sign, dense, mixed)
    for shape in (SMALL, LARGE)
]
CASES += [(product, (400,)), (product, (16_900,))]


class Replay:
    """The mirror beside x ← decay · x + weight · s in plain NumPy."""

    def __init__(self, base: Point) -> None:
        self.base, self.x = base, base.copy()
        self.mirror = ReplayedIterate(base)
        self.largest = float(np.abs(base).max(initial=1.0))

    def step(self, decay: float, weight: float, atom: Atom) -> None:
        self.mirror.step(decay, weight, atom)
        added = weight * atom.dense()
        self.x = (decay * self.x if decay else np.zeros_like(self.x)) + added
        self.largest = max(self.largest, float(np.abs(added).max(initial=0.0)))

    def check(self) -> None:
        # relative to the largest number that ever took part
        bound = 1e-12 * max(float(np.abs(self.x).max()), 1e-3 * self.largest)
        assert np.abs(self.mirror.dense() - self.x).max() <= bound


@pytest.mark.parametrize(("maker", "shape"), CASES)
@pytest.mark.parametrize("zero_base", [True, False])
def test_every_kind_of_atom_is_replayed(
    maker: Maker, shape: Shape, zero_base: bool
) -> None:
    """Also from a state that was saved, and after a step that forgets all."""
    rng = np.random.default_rng(0)
    base = np.zeros(shape) if zero_base else rng.standard_normal(shape)
    kept, replay = base.copy(), Replay(base)
    for t in range(1, 40):
        eta = 2.0 / (t + 3)
        replay.step(1.0 - eta, eta, maker(rng, shape))
        if t % 13 == 0:
            replay.check()
            state = {
                name: array.copy() for name, array in replay.mirror.state().items()
            }
            replay.mirror = ReplayedIterate.from_state(base, state)
            replay.check()
    last = maker(rng, shape)
    replay.step(0.0, 1.0, last)
    assert np.array_equal(replay.mirror.dense(), last.dense())
    replay.step(0.7, 0.3, maker(rng, shape))
    replay.check()
    array = np.full(shape, 7.0)
    replay.mirror.add_to(array, -0.5)
    np.testing.assert_allclose(array, 7.0 - 0.5 * replay.x, rtol=1e-12, atol=1e-12)
    assert np.array_equal(base, kept)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("decay", [0.999, 0.5, 1e-99, 1e-101, 1e-200, -0.5])
def test_long_runs_keep_their_digits(shape: Shape, decay: float) -> None:
    """With a vanishing scale, and more steps than may wait."""
    rng = np.random.default_rng(3)
    replay = Replay(rng.standard_normal(shape))
    for t in range(3 * mirror_module._MAX_PENDING):  # 0.5^768 is 6·10^(−232)
        replay.step(decay, 0.3, sparse(rng, shape))
        assert len(replay.mirror._pending) < mirror_module._MAX_PENDING
        if t < 5:
            replay.check()
    replay.check()
    mirror = ReplayedIterate(np.ones(shape))
    empty = SparseAtom(np.array([], dtype=np.intp), np.array([]), shape)
    for _ in range(1000):
        mirror.step(0.5, 1.0, empty)
    assert np.array_equal(mirror.dense(), np.full(shape, 0.5**1000))  # 9·10^(−302)


def test_a_sparse_mirror_that_fills_up_becomes_dense() -> None:
    rng = np.random.default_rng(2)
    replay = Replay(rng.standard_normal(LARGE))
    for _ in range(200):
        indices = np.sort(rng.choice(130 * 130, 60, replace=False))
        replay.step(0.99, 0.5, SparseAtom(indices, rng.standard_normal(60), LARGE))
    replay.check()
    assert replay.mirror._array is not None


def test_decay_zero_forgets_what_is_not_finite() -> None:
    mirror = ReplayedIterate(np.full(3, np.nan))
    mirror.step(0.0, 2.0, DenseAtom(np.ones(3)))
    assert mirror.dense().tolist() == [2.0, 2.0, 2.0]


def test_two_mirrors_share_their_base_and_nothing_else() -> None:
    base = np.zeros(LARGE)
    first, second = ReplayedIterate(base), ReplayedIterate(base)
    first.step(0.5, 1.0, same_entry(np.random.default_rng(0), LARGE))
    assert not second.dense().any()
    first.dense()[:] = 9.0  # a new array each time
    assert 0.0 < np.abs(first.dense()).max() < 9.0


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([SMALL, LARGE]),
    seed=st.integers(0, 2**32),
    decays=st.lists(
        st.sampled_from([0.0, 1.0, 0.5, 0.9, 1e-60, 1e-120, -0.3]), max_size=25
    ),
    questions=st.sets(st.integers(0, 24)),
)
def test_any_sequence_of_steps_and_questions(
    shape: Shape, seed: int, decays: list[float], questions: set[int]
) -> None:
    rng = np.random.default_rng(seed)
    replay = Replay(rng.standard_normal(shape))
    for number, decay in enumerate(decays):
        replay.step(decay, float(rng.random()), mixed(rng, shape))
        if number in questions:
            replay.check()
        if rng.random() < 0.1:
            state = replay.mirror.state()
            replay.mirror = ReplayedIterate.from_state(replay.base, state)
    replay.check()
