"""ZerothOrderSGD: the model by scalars alone, to the last bit, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clients import ZerothOrderSGDClient
from fedtrellis.domains.atoms import RandomSigns, unpack_atoms
from fedtrellis.domains.atoms.packing import StreamedSigns
from fedtrellis.random import generator
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.broadcast import Step, pack_steps, unpack_steps
from strategies import ZerothOrderSGD
from tests.harness import Array, contexts, grid_of, memory_of, play
from tests.strategies.methods import LOSSES, P

START = np.full(P, 0.1)


def directions(seed: int, stream: int, count: int, size: int = P) -> Array:
    u = StreamedSigns(seed, stream, size)
    bits = [np.unpackbits(u.draw(), count=size) for _ in range(count)]
    return 2.0 * np.array(bits, dtype=float) - 1.0


def scalars(i: int, x: Array, u: Array) -> Array:
    """[f_i(x + μu_j) − f_i(x)]/μ with μ = 1e-3."""
    f = LOSSES[i]
    return np.array([(f.value(x + 1e-3 * u_j) - f.value(x)) / 1e-3 for u_j in u])


def replayed(sets: Sequence[Sequence[int]], tau: int, m: int, signs: bool) -> Array:
    """A central replay, by the text of the algorithm; γ = 0.02."""
    x = START
    for t, S in enumerate(sets, start=1):
        u = directions(3, t, tau * m).reshape(tau, m, P)
        found = []
        for i in S:
            x_i, s = x, np.zeros((tau, m))
            for k in range(tau):
                s[k] = scalars(i, x_i, u[k])
                x_i = x_i - 0.02 / m * s[k] @ u[k]
            found.append(np.where(s > 0.0, 1.0, -1.0) if signs else s)
        if found:
            mean = np.mean(found, axis=0)
            mean = np.where(mean >= 0.0, 1.0, -1.0) if signs else mean
            x = x - 0.02 / m * np.einsum("km,kmp->p", mean, u)
    return x


def pooled(sets: Sequence[Sequence[int]], tau: int, m: int, K: int = 30) -> Array:
    """FedKSeed by a loop: accumulators of K directions."""
    drawn = [generator(3, "pool of signs", j).bytes(P // 8) for j in range(K)]
    U = 2.0 * np.array([np.unpackbits(np.frombuffer(b, np.uint8)) for b in drawn]) - 1.0
    a = np.zeros(K)
    for t, S in enumerate(sets, start=1):
        x, total = START + a @ U, np.zeros(K)
        for i in S:
            coins = generator(3, "choice of the pool", str(i), t)
            x_i = x
            for of_step in coins.integers(K, size=tau * m).reshape(tau, m):
                s = 0.02 / m * scalars(i, x_i, U[of_step])
                x_i = x_i - s @ U[of_step]
                np.add.at(total, of_step, s)
        a -= total / max(1, len(S))
    return np.asarray(START + a @ U)


@pytest.mark.parametrize("variant", ["decomfl", "feedsign", "fedkseed"])
def test_equals_a_central_replay(variant: Any) -> None:
    how: Any = {"pool": 30} if variant == "fedkseed" else {}
    how |= {"local_steps": 3, "samples": 4, "batch_size": 0, "step_size": 0.02}
    strategy = ZerothOrderSGD(variant=variant, participation=0.5, seed=3, **how)
    assert strategy.stateful == (variant == "fedkseed")  # the others restore nothing
    run = play(strategy, grid_of(ZerothOrderSGDClient, LOSSES[:5]), START, 30)
    assert {len(S) for S in run.used} > {1, 2}
    if variant == "fedkseed":
        expected = pooled(run.used, 3, 4)
    else:
        expected = replayed(run.used, 3, 4, variant == "feedsign")
    assert np.abs(run.model - expected).max() < 1e-7
    assert np.abs(expected - START).max() > 0.1


def test_a_sum_of_signs_is_what_it_says() -> None:
    size = 2**18 + 13  # more than a block
    atom = RandomSigns(4, 9, np.array([0.5, -2.0, 3.0]), (size,))
    u = directions(4, 9, 3, size)
    # E[u uᵀ] = I, and other seeds and streams have other directions
    assert np.abs(u @ u.T / size - np.eye(3)).max() < 0.02
    for seed, stream in ((4, 8), (3, 9)):
        assert np.abs(u @ directions(seed, stream, 3, size).T).max() < 0.02 * size
    array = np.ones(size, np.float32)
    atom.add_to(array, 2.0)
    assert np.abs(array - (1.0 + 2.0 * atom.scalars @ u)).max() < 1e-5
    assert np.allclose(atom.dense(), atom.scalars @ u)
    assert atom.dot(np.ones(size)) == pytest.approx(float((atom.scalars @ u).sum()))


@pytest.mark.parametrize("count", [1, 64, 65])
def test_scalars_that_differ_in_sign_alone_are_a_bit_each(count: int) -> None:
    """And they are refused anywhere but in a model's steps."""
    rng = np.random.default_rng(count)
    atoms = [
        RandomSigns(2, 5, 0.01 * rng.choice([-1.0, 1.0], count), (9,)),
        RandomSigns(2, 6, rng.standard_normal(3), (9,)),
    ]
    arrays = pack_steps([Step(1.0, 1.0, (atom,)) for atom in atoms])
    for atom, again in zip(atoms, unpack_steps(arrays, Layout(((9,),))), strict=True):
        assert np.array_equal(again.atoms[0].dense(), atom.dense())
    assert atoms[0].nbytes == 24 + (8 if count == 1 else 8 + 8 * -(-count // 64))
    assert sum(a.nbytes for a in arrays[2:]) == sum(a.nbytes for a in atoms)
    with pytest.raises(ValueError, match="random atoms are not taken here"):
        unpack_atoms(arrays[1:], (9,))


class Linear:
    """Σ_j x_j: values are cheap, whatever the size."""

    num_examples = 1

    def value(self, x: Array) -> float:
        return float(x.sum())


def test_a_round_is_scalars_both_ways() -> None:
    """At p = 200 000, m = 10: 1.5 kB up; 1.5 kB and 8 bytes a scalar down; 10 clients.

    One is away for 100 rounds and then has the server's model, bit for bit; the model
    is that of a central replay.
    """
    size, away, m, gamma = 200_000, 102, 10, 1e-6
    encodings = set()

    class Absent(ZerothOrderSGD):
        def sample(self, server_round: int) -> list[str]:
            if server_round == away:
                self.known = self.broadcast.model.copy()
            who = slice(None if server_round == 1 else 1 + (server_round == away))
            return self.clients[who]

        def _model_for(self, client: str, entries: dict[str, Any]) -> Any:
            made = super()._model_for(client, entries)
            encodings.add((bool(self.broadcast.version), made[1]["model-encoding"]))
            return made

    strategy = Absent(dtype="float32", samples=m, batch_size=0, step_size=gamma)
    grid = grid_of(ZerothOrderSGDClient, [Linear()] * 10)
    run = play(strategy, grid, np.zeros(size, np.float32), away)
    first, *between, last = strategy.history
    assert first.bytes_up / 10 < 1500
    for record in between:
        assert (record.used, record.bytes_up < 1500) == (1, True)
        assert record.bytes_down < 1500 + 8 * m
    # one lacks one round and one 101, and a step has a row and a head beside scalars
    assert last.bytes_up / 2 < 1500
    assert last.bytes_down < 2 * 1500 + (8 * m + 64) * away
    # the model itself once, at the beginning, and of zeros alone it is small
    assert encodings == {(False, "sparse"), (True, "steps")}
    came_back = memory_of(strategy, contexts(grid)[1]).model
    assert came_back is not None
    assert np.array_equal(came_back.point, strategy.known)
    # a central replay: all of the losses are Σ_k x_k, so the scalars are Σ_k u_k
    x = np.zeros(size)
    for t in range(1, away + 1):
        u = directions(0, t, m, size)
        x -= gamma / m * u.sum(axis=1) @ u
    assert np.abs(run.model - x).max() < 1e-5 * np.abs(x).max()
