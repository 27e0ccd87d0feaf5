"""ZerothOrderSGD: the model by scalars alone, to the last bit, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import ZerothOrderSGDClient
from fedtrellis import Callback, RoundRecord
from fedtrellis.domains.atoms import RandomSigns, unpack_atoms
from fedtrellis.domains.atoms.random_signs import sign_bits, signed
from fedtrellis.objectives import LeastSquares
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.steps import pack_steps, unpack_steps
from strategies import ZerothOrderSGD
from tests.harness import Array, Stop, contexts, grid_of, memory_of, play

N, P = 5, 40
_rng = np.random.default_rng(0)
A = [_rng.standard_normal((d, P)) for d in (30, 20, 40, 25, 35)]
B = [a @ (2.0 * _rng.standard_normal(P)) for a in A]
LOSSES = [
    LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in zip(A, B, strict=True)
]
START = [np.full(P, 0.1)]
FAULTS = {"request_loss": 0.1, "reply_loss": 0.15, "wipe": 0.2, "garbage": 0.1}


def directions(seed: int, stream: int, count: int, size: int = P) -> Array:
    """u_1, …, u_count, from the generator itself."""
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
            mean = np.sign(mean) if signs else mean
            x = x - gamma / m * np.einsum("km,kmp->p", mean, u)
    return x


# --------------------------------------------------------------------- sums of signs


def test_directions_are_random_signs() -> None:
    u = directions(1, 7, 4000, 6)
    assert set(np.unique(u)) == {-1.0, 1.0}
    # E[u uᵀ] = I, and other seeds and streams have other directions
    assert np.abs(u.T @ u / 4000 - np.eye(6)).max() < 0.08
    first = directions(1, 7, 3, 64)
    assert np.array_equal(first, directions(1, 7, 9, 64)[:3])
    assert not np.array_equal(first, directions(1, 8, 3, 64))
    assert not np.array_equal(first, directions(2, 7, 3, 64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_signs_is_what_it_says(dtype: Any) -> None:
    size = 2**18 + 13  # more than a block
    atom = RandomSigns(4, 9, np.array([0.5, -2.0, 3.0]), (size,))
    u = directions(4, 9, 3, size)
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


def test_sums_of_signs_travel_in_steps_and_nowhere_else() -> None:
    steps = [
        Step(1.0, 1.0, (RandomSigns(2, t, np.arange(1.0, 2 + t), (70,)),))
        for t in range(3)
    ]
    arrays = pack_steps(steps)
    for before, after in zip(steps, unpack_steps(arrays, (70,)), strict=True):
        (a,), (b,) = before.atoms, after.atoms
        assert np.array_equal(a.dense(), b.dense())
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


# ------------------------------------------------------------------------ the iterates


@pytest.mark.parametrize("upload", ["scalars", "signs"])
@pytest.mark.parametrize(("tau", "m"), [(1, 6), (3, 4)])
def test_equals_a_central_replay(upload: str, tau: int, m: int) -> None:
    strategy = ZerothOrderSGD(
        local_steps=tau,
        samples=m,
        step_size=0.02,
        batch_size=0,
        participation=0.6,
        upload=upload,
        seed=3,
    )
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES), START, 30)
    assert {len(S) for S in run.used} > {1, 2}
    expected = loop(run.used, tau, m, 0.02, upload == "signs")
    assert np.abs(run.arrays[0] - expected).max() < 1e-7
    assert np.abs(expected - START[0]).max() > 0.1


class Models(Callback):
    """Keeps the model of every version."""

    def __init__(self) -> None:
        self.by_version: dict[int, Array] = {}

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        ours = strategy.broadcast
        self.by_version[ours.version] = ours.model.copy()
        return False


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_whoever_was_away_has_the_model_to_the_last_bit(dtype: str) -> None:
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


def test_it_solves_least_squares() -> None:
    H = np.mean([a.T @ a / len(a) for a in A], axis=0) + 0.1 * np.eye(P)
    best = np.linalg.solve(
        H, np.mean([a.T @ b / len(b) for a, b in zip(A, B, strict=True)], axis=0)
    )
    strategy = ZerothOrderSGD(step_size=0.02, samples=20, batch_size=0)
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES), START, 800)
    before, after = (
        sum(value(i, x) - value(i, best) for i in range(N))
        for x in (START[0], run.arrays[0])
    )
    assert after < 1e-3 * before


# ------------------------------------------------------------------------ what it costs


class Linear:
    """⟨a, x⟩ with a of ones: values are cheap, whatever the size."""

    num_examples = 1

    def value(self, x: Array) -> float:
        return float(x.sum())


def test_a_round_is_scalars_both_ways() -> None:
    """At p = 10⁶, m = 10: 1.5 kB up; 1.5 kB and 8 bytes a scalar down."""
    size, away = 1_000_000, 40
    watched = []

    class Absent(ZerothOrderSGD):
        def sample(self, server_round: int) -> list[str]:
            return self.clients if server_round in (1, away) else self.clients[:2]

        def model_for(self, client: str, entries: dict[str, Any]) -> Any:
            made = super().model_for(client, entries)
            watched.append((self.broadcast.version, made[1]["model-encoding"]))
            return made

    strategy = Absent(samples=10, batch_size=0, dtype="float32", step_size=1e-6)
    grid = grid_of(ZerothOrderSGDClient, [Linear()] * 3)
    start = [np.zeros(size, np.float32)]
    play(strategy, grid, start, away)
    ordinary = strategy.history[4]
    assert ordinary.bytes_up / 2 < 1500
    assert ordinary.bytes_down / 2 < 1500 + 8 * 10
    last = strategy.history[-1]
    # two clients lack one round and one lacks 39
    assert last.bytes_down < 3 * 1500 + 8 * 10 * (2 + away - 1) + 24 * 2 * away
    # the model itself once, at the beginning, and of zeros alone it is small
    assert {how for version, how in watched if not version} == {"sparse"}
    assert {how for version, how in watched if version} == {"steps"}


# --------------------------------------------------------------------------- the house


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"step_size": 0.02, "batch_size": 0, "seed": 4}
    whole = play(
        ZerothOrderSGD(**options), grid_of(ZerothOrderSGDClient, LOSSES), START, 12
    )
    file = tmp_path / "checkpoint.npz"
    grid = grid_of(ZerothOrderSGDClient, LOSSES)
    play(
        ZerothOrderSGD(
            **options, checkpoint=file, checkpoint_every=1, callbacks=[Stop(5)]
        ),
        grid,
        START,
        12,
    )
    resumed = play(ZerothOrderSGD(**options, resume=file), grid, START, 12)
    assert np.array_equal(whole.arrays[0], resumed.arrays[0])


def test_clip_bounds_what_a_client_can_say() -> None:
    strategy = ZerothOrderSGD(step_size=0.02, samples=4, batch_size=0, clip=0.5)
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES), START, 1)
    # one step of (γ/m) Σ_j s̄_j u_j with every |s̄_j| at the bound
    assert np.abs(run.arrays[0] - START[0]).max() <= 0.02 * 0.5 + 1e-15
    with pytest.raises(SettingsError, match="clip"):
        ZerothOrderSGD(upload="signs", clip=0.5)
