"""SCAFFOLD and FedOpt against plain loops, FedAvg and PyTorch's own optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clients import (
    CompressedSGDClient,
    FedAvgGDClient,
    FedOptClient,
    ScaffoldClient,
)
from fedtrellis.compressors import Quantized, Signs
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.arrays import Layout
from strategies import CompressedSGD, FedAvgGD, FedOpt, Scaffold
from tests.harness import Array, Played, grid_of, play

N, P, K, A = 5, 6, 4, 0.15
_rng = np.random.default_rng(0)
DATA = [
    (_rng.standard_normal((d, P)), 2.0 * _rng.standard_normal(d))
    for d in (12, 7, 20, 9, 15)
]
LOSSES = [LeastSquares(a, b, scale="half-mean", l2=0.1) for a, b in DATA]
START = [np.full(P, 0.1)]


def gradient(i: int, x: Array) -> Array:
    a, b = DATA[i]
    g: Array = a.T @ (a @ x - b) / len(b) + 0.1 * x
    return g


def optimum() -> Array:
    H = np.mean([a.T @ a / len(a) for a, _ in DATA], axis=0) + 0.1 * np.eye(P)
    x: Array = np.linalg.solve(H, np.mean([a.T @ b / len(b) for a, b in DATA], axis=0))
    return x


def played(make: Any, client: Any, rounds: int = 15, **options: Any) -> Played[Any]:
    shared = {"step_schedule": "constant", "local_steps": K, "step_size": A, "seed": 3}
    strategy = make(max_failed_rounds=1000, **shared, **options)
    grid = grid_of(client, LOSSES, seed=1)
    return play(strategy, grid, START, rounds)


# ---------------------------------------------------------------------------- SCAFFOLD


def scaffold_loop(sets: Sequence[Sequence[int]]) -> Array:
    """The last model, by the text of the algorithm with option II."""
    x = START[0]
    c_i = dict.fromkeys(range(N), np.zeros(P))
    for S in sets:
        c, ends = np.mean(list(c_i.values()), axis=0), {}
        for i in S:
            x_i = x
            for _ in range(K):
                x_i = x_i - A * (gradient(i, x_i) + c - c_i[i])
            ends[i] = x_i
        for i, x_i in ends.items():
            c_i[i] = c_i[i] - c + (x - x_i) / (K * A)
        if ends:
            x = np.mean(list(ends.values()), axis=0)
    return x


def test_scaffold_equals_loop() -> None:
    run = played(Scaffold, ScaffoldClient, 25, participation=0.7)
    assert len({len(S) for S in run.used}) > 2
    assert np.abs(run.arrays[0] - scaffold_loop(run.used)).max() < 1e-12


def test_scaffold_ends_at_the_optimum_where_fedavg_does_not() -> None:
    ours = played(Scaffold, ScaffoldClient, 500)
    fedavg = played(FedAvgGD, FedAvgGDClient, 500)
    assert np.abs(ours.arrays[0] - optimum()).max() < 1e-10
    assert np.abs(fedavg.arrays[0] - optimum()).max() > 1e-3


# ------------------------------------------------------------------------------ FedOpt


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi"])
def test_fedopt_equals_loop(optimizer: str) -> None:
    run = played(
        FedOpt,
        FedOptClient,
        optimizer=optimizer,
        server_step_size=0.3,
        batch_fraction=1.0,
    )
    x, m = START[0], np.zeros(P)
    v = np.zeros(P) if optimizer == "adam" else np.full(P, 1e-6)
    for _ in range(15):
        ends = []
        for i in range(N):
            x_i = x
            for _ in range(K):
                x_i = x_i - A * gradient(i, x_i)
            ends.append(x_i)
        change = np.mean(ends, axis=0) - x
        if optimizer == "momentum":
            m = 0.9 * m + change
            x = x + 0.3 * m
            continue
        m = 0.9 * m + 0.1 * change
        if optimizer == "adam":
            v = 0.99 * v + 0.01 * change**2
        else:
            v = v - 0.01 * change**2 * np.sign(v - change**2)
        x = x + 0.3 * m / (np.sqrt(v) + 1e-3)
    assert np.abs(run.arrays[0] - x).max() < 1e-12


# ---------------------------------------------------------------------- CompressedSGD

LAYOUT = Layout(((7, 90), (13,)))


@pytest.mark.parametrize("levels", [1, 5, 7, 127])
def test_quantized_entries_are_unbiased_and_near(levels: int) -> None:
    rng = np.random.default_rng(0)
    v = rng.standard_normal(LAYOUT.size)
    v[:20] = 0.0
    by = Quantized(levels, rng)
    read = [by.unpack(by.pack(v, LAYOUT), LAYOUT) for _ in range(400)]
    for row in read:
        assert np.abs(row - v).max() <= np.abs(v).max() / levels * 1.001
        assert not row[:20].any()
    error = np.abs(np.mean(read, axis=0) - v).max()
    assert error < 5 * np.abs(v).max() / levels / np.sqrt(400)
    # bits of an entry, and four bytes a bucket of 512
    bits = {1: 2, 5: 4, 7: 4, 127: 8}[levels]
    packed, largest = by.pack(v, LAYOUT)
    assert packed.nbytes == -(-LAYOUT.size * bits // 8)
    assert largest.nbytes == 8


@pytest.mark.parametrize("by", [Quantized(1), Quantized(7), Signs()], ids=str)
def test_malformed_levels_and_signs_are_refused(by: Any) -> None:
    maker = Quantized(by.levels, np.random.default_rng(0)) if by != Signs() else by
    good = maker.pack(np.ones(LAYOUT.size), LAYOUT)
    for bad in ([], [*good, good[0]], [good[0][:-1], *good[1:]]):
        with pytest.raises(ValueError, match=r"."):
            by.unpack(bad, LAYOUT)
    if by != Signs():
        for wrong in (np.nan, -1.0):
            with pytest.raises(ValueError, match="negative or not finite"):
                by.unpack([good[0], good[1] * np.float32(wrong)], LAYOUT)
        with pytest.raises(ValueError, match="a level lies outside"):
            by.unpack([np.full_like(good[0], 255), good[1]], LAYOUT)


def test_error_feedback_equals_a_loop() -> None:
    run = played(
        CompressedSGD,
        CompressedSGDClient,
        kept_fraction=0.3,
        batch_fraction=1.0,
        participation=0.7,
        server_momentum=0.4,
    )
    assert len({len(S) for S in run.used}) > 2
    x, m = START[0], np.zeros(P)
    errors = dict.fromkeys(range(N), np.zeros(P))
    for S in run.used:
        sent = []
        for i in S:
            x_i = x
            for _ in range(K):
                x_i = x_i - A * gradient(i, x_i)
            wanted = errors[i] + x_i - x
            # two of six
            kept = np.where(np.abs(wanted) >= np.sort(np.abs(wanted))[-2], wanted, 0.0)
            errors[i] = wanted - kept
            sent.append(kept)
        if S:
            m = 0.4 * m + np.mean(sent, axis=0)
            x = x + m
    assert np.abs(run.arrays[0] - x).max() < 1e-12


def test_the_majority_of_signs_steps_by_its_length() -> None:
    run = played(
        CompressedSGD,
        CompressedSGDClient,
        1,
        compressor="sign",
        batch_fraction=1.0,
        server_step_size=0.25,
    )
    votes = np.zeros(P)
    for i in range(N):
        x_i = START[0]
        for _ in range(K):
            x_i = x_i - A * gradient(i, x_i)
        votes += np.sign(x_i - START[0])
    assert np.abs(run.arrays[0] - START[0] - 0.25 * np.sign(votes)).max() < 1e-15


def test_compressed_bytes_up() -> None:
    """Six bytes for each entry kept, two bits or one for each entry that there is."""

    class Large:
        num_examples = 4

        def value(self, x: Array) -> float:
            return float(np.vdot(x, x))

        def gradient(self, x: Array) -> Array:
            return x

    sizes = {}
    settings: dict[Any, Any] = {
        "top-k": {"kept_fraction": 0.01},
        "qsgd": {"levels": 1},
        "sign": {},
    }
    for name, more in settings.items():
        strategy = CompressedSGD(
            compressor=name, dtype="float32", batch_fraction=1.0, **more
        )
        play(
            strategy,
            grid_of(CompressedSGDClient, [Large(), Large()]),
            [np.ones(20_000, np.float32)],
            1,
        )
        sizes[name] = strategy.history[-1].bytes_up / 2
    assert 1200 < sizes["top-k"] < 1200 + 1700
    assert 5000 < sizes["qsgd"] < 5160 + 1700
    assert 2500 < sizes["sign"] < 2500 + 1700
