"""What CompressedSGD's clients send: levels, signs, and how many bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients import CompressedSGDClient
from fedtrellis.compressors import Quantized, Signs
from fedtrellis.wire.arrays import Layout
from strategies import CompressedSGD
from tests.harness import Array, grid_of, play

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
