"""What compressors keep of a vector, in how many bytes, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients import CompressedSGDClient, FedLMOClient
from fedtrellis.compressors import Natural, Quantized, Signs, TopK, TopTriples
from fedtrellis.wire.arrays import Layout
from strategies import CompressedSGD, FedLMO
from tests.harness import Distance, grid_of, play

LAYOUT = Layout(((7, 90), (13,)))
COMPRESSED = [TopK(0.2), TopTriples(2), Natural()]


@pytest.mark.parametrize("by", COMPRESSED, ids=lambda by: type(by).__name__)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_compressors_are_contractive(by: Any, dtype: str) -> None:
    """‖C(v) − v‖² ≤ (1 − α) ‖v‖² with the α that they state; zeros stay zeros."""
    layout = Layout(((9, 6), (7,), (4, 3, 5, 5)), dtype)
    rng = np.random.default_rng(0)
    alpha = {"TopK": 0.2, "TopTriples": 2 / 6, "Natural": 8 / 9}[type(by).__name__]
    for scale in (1.0, 1e-20, 1e20):
        v = scale * rng.standard_normal(layout.point_shape)
        v = np.where(rng.random(v.shape) < 0.2, 0.0, v).astype(layout.point_dtype)
        read = by.unpack(by.pack(v, layout), layout)
        assert read.dtype == layout.point_dtype
        error = np.linalg.norm((read - v).astype(np.float64) / scale)
        whole = np.linalg.norm(v.astype(np.float64) / scale)
        assert 0.0 < error**2 <= (1.0 - alpha) * whole**2 * 1.001
    assert not by.unpack(by.pack(np.zeros_like(v), layout), layout).any()


def test_compressors_against_plain_formulas() -> None:
    layout = Layout(((3, 3), (4,)))
    v = np.array([5.0, -0.1, 3, 0, 2, 1, -9, 4, 0.2, 6, -7, 0.3, 8])
    top = TopK(0.3)
    kept = top.unpack(top.pack(v, layout), layout)
    assert kept.tolist() == [0, 0, 0, 0, 0, 0, -9, 0, 0, 6, -7, 0, 8]
    powers = Natural().unpack(Natural().pack(v, layout), layout)
    assert powers.tolist() == pytest.approx(
        [4, -0.125, 4, 0, 2, 1, -8, 4, 0.25, 8, -8, 0.25, 8]
    )
    cut = Layout(((8, 6), (4,)))
    v = np.random.default_rng(0).standard_normal(52)
    u, sigma, vt = np.linalg.svd(v[:48].reshape(8, 6))
    read = TopTriples(2).unpack(TopTriples(2).pack(v, cut), cut)
    best = (u[:, :2] * sigma[:2]) @ vt[:2]
    assert np.abs(read[:48].reshape(8, 6) - best).max() < 1e-12
    assert np.array_equal(read[48:], v[48:])


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


ALL = [*COMPRESSED, Quantized(1), Quantized(7), Signs()]


@pytest.mark.parametrize("by", ALL, ids=str)
def test_what_is_malformed_is_refused(by: Any) -> None:
    rng = np.random.default_rng(0)
    maker = Quantized(by.levels, rng) if isinstance(by, Quantized) else by
    good = maker.pack(np.ones(LAYOUT.size), LAYOUT)
    for bad in ([], [*good, good[0]], [good[0][:-1], *good[1:]]):
        with pytest.raises(ValueError, match=r"."):
            by.unpack(bad, LAYOUT)
    if isinstance(by, Quantized):
        for wrong in (np.nan, -1.0):
            with pytest.raises(ValueError, match="negative or not finite"):
                by.unpack([good[0], good[1] * np.float32(wrong)], LAYOUT)
        with pytest.raises(ValueError, match="a level lies outside"):
            by.unpack([np.full_like(good[0], 255), good[1]], LAYOUT)


LMO: Any = (FedLMO, FedLMOClient, {"variant": "ef21", "batch_size": 0})
SGD: Any = (CompressedSGD, CompressedSGDClient, {"batch_fraction": 1.0})


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        # six bytes for each entry kept
        (LMO, {"compressor": "top-k", "kept_fraction": 0.01}, 200 * 6),
        (SGD, {"compressor": "top-k", "kept_fraction": 0.01}, 200 * 6),
        # two vectors of a matrix, for each rank; a byte an entry; two bits, and one
        (LMO, {"compressor": "rank", "rank": 2}, 2 * 300 * 4),
        (LMO, {"compressor": "natural"}, 20_000),
        (SGD, {"compressor": "qsgd", "levels": 1}, 5_000),
        (SGD, {"compressor": "sign"}, 2_500),
    ],
)
def test_bytes_up(kind: Any, settings: dict[str, Any], size: int) -> None:
    make, client, own = kind
    start = [np.zeros((200, 100)), np.zeros(1)]
    loss = Distance(*(layer + 1.0 for layer in start))
    strategy = make(dtype="float32", **own, **settings)
    run = play(strategy, grid_of(client, [loss, loss]), start, 2)
    assert size < run.strategy.history[-1].bytes_up / 2 < size + 1700
