"""ZerothOrderSGD: the model by scalars alone, to the last bit, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clients import ZerothOrderSGDClient
from fedtrellis import Callback, RoundRecord
from fedtrellis.domains.atoms import RandomSigns, unpack_atoms
from fedtrellis.domains.atoms.packing import sign_bits, signed
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.broadcast import Step, pack_steps, unpack_steps
from strategies import ZerothOrderSGD
from tests.harness import Array, contexts, grid_of, memory_of, play

P = 40
_rng = np.random.default_rng(0)
A = [_rng.standard_normal((d, P)) for d in (30, 20, 40, 25, 35)]
B = [a @ (2.0 * _rng.standard_normal(P)) for a in A]
LOSSES = [
    LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in zip(A, B, strict=True)
]
START = [np.full(P, 0.1)]
FAULTS = {"request_loss": 0.1, "reply_loss": 0.15, "wipe": 0.2, "garbage": 0.1}


def directions(seed: int, stream: int, count: int, size: int = P) -> Array:
    bits = [np.unpackbits(b, count=size) for b in sign_bits(seed, stream, size, count)]
    return 2.0 * np.array(bits, dtype=float) - 1.0


def value(i: int, x: Array) -> float:
    residual = A[i] @ x - B[i]
    return float(0.5 * residual @ residual / len(residual) + 0.05 * x @ x)


def loop(
    sets: Sequence[Sequence[int]], tau: int, m: int, gamma: float, signs: bool = False
) -> Array:
    """A central replay, by the text of the algorithm."""
    x, mu = START[0], 1e-3
    for t, S in enumerate(sets, start=1):
        u = directions(3, t, tau * m).reshape(tau, m, P)
        found = []
        for i in S:
            x_i, s = x, np.zeros((tau, m))
            for k in range(tau):
                at = value(i, x_i)
                s[k] = [(value(i, x_i + mu * u_j) - at) / mu for u_j in u[k]]
                x_i = x_i - gamma / m * s[k] @ u[k]
            found.append(np.where(s > 0.0, 1.0, -1.0) if signs else s)
        if found:
            mean = np.mean(found, axis=0)
            mean = np.where(mean >= 0.0, 1.0, -1.0) if signs else mean
            x = x - gamma / m * np.einsum("km,kmp->p", mean, u)
    return x


# --------------------------------------------------------------------- sums of signs


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_signs_is_what_it_says(dtype: Any) -> None:
    size = 2**18 + 13  # more than a block
    atom = RandomSigns(4, 9, np.array([0.5, -2.0, 3.0]), (size,))
    u = directions(4, 9, 3, size)
    # E[u uᵀ] = I, and other seeds and streams have other directions
    assert np.abs(u @ u.T / size - np.eye(3)).max() < 0.02
    assert np.array_equal(u[:2], directions(4, 9, 2, size))
    for seed, stream in ((4, 8), (3, 9)):
        assert np.abs(u @ directions(seed, stream, 3, size).T).max() < 0.02 * size
    array = np.ones(size, dtype)
    atom.add_to(array, 2.0)
    assert array.dtype == dtype
    assert np.abs(array - (1.0 + 2.0 * atom.scalars @ u)).max() < 1e-5
    assert np.allclose(atom.dense(), atom.scalars @ u)
    assert atom.dot(np.ones(size)) == pytest.approx(float((atom.scalars @ u).sum()))
    # in place, an entry by itself
    point = np.zeros(5, dtype)
    signed(np.array([0b10100000], np.uint8), 0.25, point)
    assert point.tolist() == [0.25, -0.25, 0.25, -0.25, -0.25]


def test_sums_of_signs_are_taken_nowhere_else_and_whole() -> None:
    steps = [
        Step(1.0, 1.0, (RandomSigns(2, t, np.arange(1.0, 2 + t), (70,)),))
        for t in range(3)
    ]
    arrays = pack_steps(steps)
    with pytest.raises(ValueError, match="random atoms are not taken here"):
        unpack_atoms(arrays[1:], (70,))
    head = np.array(arrays[2])
    head[0] = -1
    for bad in (
        [*arrays[:2], head, arrays[3]],
        [*arrays[:3], arrays[3][:-1]],
        [*arrays[:3], np.full_like(arrays[3], np.nan)],
        arrays[:3],
    ):
        with pytest.raises(ValueError, match=r"."):
            unpack_steps(bad, (70,))


@pytest.mark.parametrize("count", [1, 2, 64, 65, 130])
def test_scalars_that_differ_in_sign_alone_are_a_bit_each(count: int) -> None:
    rng = np.random.default_rng(count)
    atoms = [
        RandomSigns(2, 5, 0.01 * rng.choice([-1.0, 1.0], count), (9,)),
        RandomSigns(2, 6, rng.standard_normal(3), (9,)),
        RandomSigns(2, 7, 0.02 * rng.choice([-1.0, 1.0], count), (9,)),
    ]
    steps = [Step(1.0, 1.0, (atom,)) for atom in atoms]
    arrays = pack_steps(steps)
    for atom, again in zip(atoms, unpack_steps(arrays, (9,)), strict=True):
        (found,) = again.atoms
        assert isinstance(found, RandomSigns)
        assert np.array_equal(found.scalars, atom.scalars)
        assert (found.seed, found.stream) == (atom.seed, atom.stream)
    assert sum(a.nbytes for a in arrays[2:]) == sum(a.nbytes for a in atoms)
    assert atoms[0].nbytes == 24 + (8 if count == 1 else 8 + 8 * -(-count // 64))
    for bad in (arrays[2][:-1], np.append(arrays[2], 0)):
        with pytest.raises(ValueError, match="random atom"):
            unpack_steps([*arrays[:2], bad, arrays[3]], (9,))


# ------------------------------------------------------------------------ the iterates


@pytest.mark.parametrize("variant", ["decomfl", "feedsign", "fedkseed"])
@pytest.mark.parametrize(("tau", "m"), [(1, 6), (3, 4)])
def test_equals_a_central_replay(variant: Any, tau: int, m: int) -> None:
    own: dict[str, Any] = {"pool": 30} if variant == "fedkseed" else {}
    strategy = ZerothOrderSGD(
        **own,
        local_steps=tau,
        samples=m,
        step_size=0.02,
        batch_size=0,
        participation=0.6,
        variant=variant,
        seed=3,
    )
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES), START, 30)
    assert {len(S) for S in run.used} > {1, 2}
    if variant == "fedkseed":
        expected = pooled(run.used, tau, m, 30)
    else:
        expected = loop(run.used, tau, m, 0.02, variant == "feedsign")
    assert np.abs(run.arrays[0] - expected).max() < 1e-7
    assert np.abs(expected - START[0]).max() > 0.1


def pooled(sets: Sequence[Sequence[int]], tau: int, m: int, K: int) -> Array:
    """FedKSeed by a loop: accumulators of K directions."""
    U = []
    for j in range(K):
        rng = generator(3, "pool of signs", j)
        bits = np.frombuffer(rng.bytes(P // 8), np.uint8)
        U.append(2.0 * np.unpackbits(bits) - 1.0)
    a, mu, gamma = np.zeros(K), 1e-3, 0.02
    for t, S in enumerate(sets, start=1):
        x, total = START[0] + a @ np.array(U), np.zeros(K)
        for i in S:
            chosen = generator(3, "choice of the pool", str(i), t).integers(
                K, size=tau * m
            )
            x_i = x
            for k in range(tau):
                of_step = chosen[k * m : (k + 1) * m]
                s = [(value(i, x_i + mu * U[j]) - value(i, x_i)) / mu for j in of_step]
                for j, s_j in zip(of_step, s, strict=True):
                    x_i = x_i - gamma / m * s_j * U[j]
                    total[j] += gamma / m * s_j
        a -= total / max(1, len(S))
    return START[0] + a @ np.array(U)


class Linear:
    """⟨a, x⟩ with a of ones: values are cheap, whatever the size."""

    num_examples = 1

    def value(self, x: Array) -> float:
        return float(x.sum())


class Models(Callback):
    """Keeps the model of every version, or of one."""

    def __init__(self, only: int | None = None) -> None:
        self.by_version: dict[int, Array] = {}
        self._only = only

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        ours = strategy.broadcast
        if self._only in (None, ours.version):
            self.by_version[ours.version] = ours.model.copy()
        return False


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_whoever_was_away_has_the_model_to_the_last_bit(dtype: Any) -> None:
    """Clients miss rounds, lose what they have and come back; all models are equal."""
    models = Models()
    strategy = ZerothOrderSGD(
        step_size=0.01,
        samples=3,
        batch_size=0,
        participation=0.3,
        dtype=dtype,
        seed=1,
        max_failed_rounds=100,
        callbacks=[models],
    )
    grid = grid_of(ZerothOrderSGDClient, LOSSES * 3, seed=2, **FAULTS)
    play(strategy, grid, START, 100)
    assert strategy.broadcast.version >= 90
    found = [memory_of(strategy, context).model for context in contexts(grid).values()]
    stored = [model for model in found if model is not None]
    assert len(stored) > 7
    assert len({model.version for model in stored}) > 3
    for model in stored:
        assert model.point.dtype == np.dtype(dtype)
        assert np.array_equal(model.point, models.by_version[model.version])


# ------------------------------------------------------------------------ what it costs


def test_a_round_is_scalars_both_ways() -> None:
    """At p = 200 000, m = 10: 1.5 kB up; 1.5 kB and 8 bytes a scalar down; 10 clients.

    One is away for 100 rounds and then has the server's model, bit for bit; the model
    is that of a central replay.
    """
    size, away, m = 200_000, 102, 10
    watched = []

    class Absent(ZerothOrderSGD):
        def sample(self, server_round: int) -> list[str]:
            if server_round == 1:
                return self.clients
            return self.clients[:1] if server_round < away else self.clients[:2]

        def _model_for(self, client: str, entries: dict[str, Any]) -> Any:
            made = super()._model_for(client, entries)
            watched.append((self.broadcast.version, made[1]["model-encoding"]))
            return made

    models = Models(away - 1)
    strategy = Absent(
        samples=m, batch_size=0, dtype="float32", step_size=1e-6, callbacks=[models]
    )
    grid = grid_of(ZerothOrderSGDClient, [Linear()] * 10)
    start = [np.zeros(size, np.float32)]
    run = play(strategy, grid, start, away)
    rounds = strategy.history
    assert rounds[0].bytes_up / 10 < 1500
    assert {record.used for record in rounds[1:-1]} == {1}
    for record in rounds[1:-1]:
        assert record.bytes_up < 1500
        assert record.bytes_down < 1500 + 8 * m
    # one lacks one round and one 101, and a step has a row and a head beside scalars
    assert rounds[-1].bytes_up / 2 < 1500
    assert rounds[-1].bytes_down < 2 * 1500 + (8 * m + 64) * away
    # the model itself once, at the beginning, and of zeros alone it is small
    assert {how for version, how in watched if not version} == {"sparse"}
    assert {how for version, how in watched if version} == {"steps"}
    came_back = memory_of(strategy, contexts(grid)[1]).model
    assert came_back is not None
    assert came_back.version == away - 1
    assert np.array_equal(came_back.point, models.by_version[away - 1])
    # a central replay: all of the losses are Σ_k x_k, so the scalars are Σ_k u_k
    x, gamma = np.zeros(size), 1e-6
    for t in range(1, away + 1):
        for bits in sign_bits(0, t, size, m):
            ones = int(np.unpackbits(bits, count=size).sum())
            signed(bits, -gamma / m * (2.0 * ones - size), x)
    assert np.abs(run.arrays[0] - x).max() < 1e-5 * np.abs(x).max()


# --------------------------------------------------------------------------- the house


def test_clip_bounds_what_a_client_can_say() -> None:
    strategy = ZerothOrderSGD(step_size=0.02, samples=4, batch_size=0, clip=0.5)
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES), START, 1)
    # one step of (γ/m) Σ_j s̄_j u_j with every |s̄_j| at the bound
    assert np.abs(run.arrays[0] - START[0]).max() <= 0.02 * 0.5 + 1e-15
    with pytest.raises(SettingsError, match="clip"):
        ZerothOrderSGD(variant="feedsign", clip=0.5)
    with pytest.raises(SettingsError, match="pool"):
        ZerothOrderSGD(pool=5)
