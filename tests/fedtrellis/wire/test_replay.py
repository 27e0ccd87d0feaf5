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
from fedtrellis.wire import replay as replay_module
from fedtrellis.wire.replay import ReplayedIterate

Point = NDArray[np.float64]
Shape = tuple[int, ...]

#: One size on either side of the threshold between dense and sparse storage.
SMALL, LARGE = (20, 20), (130, 130)
assert 20 * 20 < replay_module._DENSE_SIZE < 130 * 130


def sparse(rng: np.random.Generator, shape: Shape) -> SparseAtom:
    size, count = int(np.prod(shape)), int(rng.integers(0, 4))
    indices = np.sort(rng.choice(size, count, replace=False))
    return SparseAtom(indices, rng.standard_normal(count), shape)


#: One of each kind, drawn anew.
ATOMS: dict[str, Callable[[np.random.Generator, Shape], Atom]] = {
    "sparse": sparse,
    "one entry": lambda rng, shape: SparseAtom(np.array([3]), rng.random(1), shape),
    "rank one": lambda rng, shape: RankOneAtom(
        rng.random(shape[0]), rng.random(shape[1])
    ),
    "permutation": lambda rng, shape: PermutationAtom(rng.permutation(shape[0]), 2.0),
    "sign": lambda rng, shape: SignAtom(rng.random(shape) < 0.5, -1.0, 0.5),
    "dense": lambda rng, shape: DenseAtom(rng.standard_normal(shape)),
    "product": lambda rng, shape: ProductAtom(
        (sparse(rng, (shape[0] - 4,)), DenseAtom(rng.standard_normal((2, 2))))
    ),
}


def mixed(rng: np.random.Generator, shape: Shape) -> Atom:
    kinds = ["sparse", "rank one", "permutation", "sign", "dense"]
    return ATOMS[rng.choice(kinds, p=[0.8, 0.05, 0.05, 0.05, 0.05])](rng, shape)


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

    def save(self) -> None:
        state = {name: a.copy() for name, a in self.mirror.state().items()}
        self.mirror = ReplayedIterate.from_state(self.base, state)

    def check(self) -> None:
        # relative to the largest number that ever took part
        bound = 1e-12 * max(float(np.abs(self.x).max()), 1e-3 * self.largest)
        assert np.abs(self.mirror.dense() - self.x).max() <= bound


@pytest.mark.parametrize("kind", ATOMS)
@pytest.mark.parametrize("zero_base", [True, False])
def test_every_kind_of_atom_is_replayed(kind: str, zero_base: bool) -> None:
    """Also from a state that was saved, and after a step that forgets all."""
    rng, maker = np.random.default_rng(0), ATOMS[kind]
    for shape in ((400,), (16_900,)) if kind == "product" else (SMALL, LARGE):
        base = np.zeros(shape) if zero_base else rng.standard_normal(shape)
        kept, replay = base.copy(), Replay(base)
        for t in range(1, 30):
            eta = 2.0 / (t + 3)
            replay.step(1.0 - eta, eta, maker(rng, shape))
            if t % 13 == 0:
                replay.check()
                replay.save()
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
    for t in range(3 * replay_module._MAX_PENDING):  # 0.5^768 is 6·10^(−232)
        replay.step(decay, 0.3, sparse(rng, shape))
        assert len(replay.mirror._pending) < replay_module._MAX_PENDING
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
    other = ReplayedIterate(replay.base)
    for _ in range(200):
        indices = np.sort(rng.choice(130 * 130, 60, replace=False))
        replay.step(0.99, 0.5, SparseAtom(indices, rng.standard_normal(60), LARGE))
    replay.check()
    assert replay.mirror._array is not None
    assert np.array_equal(other.dense(), replay.base)  # they share nothing else


@settings(max_examples=40, deadline=None)
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
            replay.save()
    replay.check()
