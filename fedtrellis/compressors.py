"""Compressors: what goes up instead of a dense vector.

:class:`Quantized` is unbiased, :class:`Signs` keeps no size at all; the others are
contractive, for error feedback: ‖C(v) − v‖² ≤ (1 − α) ‖v‖² for an α in (0, 1]. A client
that keeps what the server has of it, and sends C of the difference, loses nothing for
good (EF21).

``pack(point, layout)`` returns the arrays that stand for C(point); ``unpack(arrays,
layout)`` returns C(point), the same on both sides, and raises ValueError for others.

Source: Richtárik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021, arXiv 2106.05203; Horváth,
Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
Learning", arXiv 1905.10988, whose random rounding to powers of two is to the nearest
here, which needs no random numbers and is contractive; Alistarh, Grubic, Li, Tomioka,
Vojnović, "QSGD", NeurIPS 2017, arXiv 1610.02132, with the buckets and the largest entry
of its experiments; Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD", ICML 2018,
arXiv 1802.04434.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray, Layout, from_sparse_or_dense

Compression = Literal["top-k", "rank", "natural"]
#: Of a client's change, where the server does not mirror what it has sent.
ChangeCompression = Literal["top-k", "qsgd", "sign"]

Arrays = Sequence[NDArray[Any]]

# entries that are quantized by one largest entry
_BUCKET = 512


def compressor(
    name: str,
    kept_fraction: float,
    *,
    rank: int = 1,
    levels: int = 1,
    rng: np.random.Generator | None = None,
) -> TopK | TopTriples | Natural | Quantized | Signs:
    """Make a compressor by its name; ``rng`` is needed to pack by ``qsgd``."""
    if name == "top-k":
        return TopK(kept_fraction)
    if name == "rank":
        return TopTriples(rank)
    if name == "qsgd":
        return Quantized(levels, rng)
    return Signs() if name == "sign" else Natural()


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude, k = ⌈fraction · p⌉, of p; α = k/p."""

    fraction: float

    def count(self, size: int) -> int:
        """Return k for p = ``size``."""
        return max(1, ceil(self.fraction * size - 1e-9))

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """Indices and values."""
        flat = point.reshape(-1)
        k = self.count(flat.size)
        chosen = np.argpartition(np.abs(flat), flat.size - k)[flat.size - k :]
        chosen = np.sort(chosen)
        indices = chosen.astype(np.min_scalar_type(max(flat.size - 1, 0)))
        return [indices, layout.to_wire(flat[chosen])]

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """Zeros but for those entries."""
        k = self.count(layout.size)
        sizes = [array.size for array in arrays]
        if sizes != [k, k]:
            raise ValueError(f"arrays of sizes {sizes} came, expected {[k, k]}")
        return layout.from_wire(from_sparse_or_dense(arrays, layout.point_shape))


@dataclass(frozen=True)
class TopTriples:
    """Each layer's largest r singular triples, where these are smaller than the layer.

    α = r / (the smaller side), the least over the layers. A convolution's kernel is the
    matrix of its output channels.
    """

    rank: int

    def _sides(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns of a layer that is cut off; None: it is sent whole."""
        if len(shape) < 2:
            return None
        rows, columns = shape[0], prod(shape[1:])
        return (rows, columns) if self.rank * (rows + columns) < prod(shape) else None

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """U_r Σ_r and V_r of the layers that are cut off, and the others whole."""
        arrays: list[NDArray[Any]] = []
        for layer in layout.layers(point):
            sides = self._sides(layer.shape)
            if sides is None:
                arrays.append(layout.to_wire(layer))
                continue
            u, sigma, vt = np.linalg.svd(layer.reshape(sides), full_matrices=False)
            r = self.rank
            arrays += [layout.to_wire(u[:, :r] * sigma[:r]), layout.to_wire(vt[:r])]
        return arrays

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """Each layer U_r Σ_r V_rᵀ, or as it came."""
        rest, layers = iter(arrays), []
        for shape in layout.shapes:
            sides = self._sides(shape)
            expected = [shape]
            if sides is not None:
                expected = [(sides[0], self.rank), (self.rank, sides[1])]
            parts = list(islice(rest, len(expected)))
            if [part.shape for part in parts] != expected:
                raise ValueError(
                    f"a layer came as {[part.shape for part in parts]}, "
                    f"expected {expected}"
                )
            wide = [layout.from_wire(part) for part in parts]
            layer = wide[0] if sides is None else wide[0] @ wide[1]
            layers.append(layer.reshape(shape))
        if len(list(rest)):
            raise ValueError(f"{len(arrays)} arrays came, too many for the layers")
        return layout.point(layers)


@dataclass(frozen=True)
class Natural:
    """Each entry rounded to ±2^e, in one byte; α = 8/9.

    The byte has the sign and how far e is below the largest entry's exponent, which
    travels beside; what is 2¹²⁷ times smaller becomes 0.
    """

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """A byte an entry, and the largest exponent."""
        flat = np.asarray(point.reshape(-1), dtype=np.float64)
        fraction, exponent = np.frexp(np.abs(flat))
        # |v| = f 2^e with f in [1/2, 1): 2^(e−1) is nearer if f < 3/4, else 2^e
        power = exponent - (fraction < 0.75)
        # of zeros alone every code is 0
        top = int(power[flat != 0.0].max(initial=-1074))
        code = np.clip(power - top + 127, 0, 127).astype(np.uint8)
        code[flat == 0.0] = 0
        code[(flat < 0.0) & (code > 0)] |= 0x80
        return [code, np.array([top], dtype=np.int16)]

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """±2^e of every entry."""
        code, top = _checked(arrays, (np.uint8, layout.size), (np.int16, 1))
        if abs(int(top[0])) > 1100:
            raise ValueError(f"the largest exponent is {top[0]}")
        power = (code & 0x7F).astype(np.int32)
        values = np.ldexp(1.0, power - 127 + int(top[0]))
        values[power == 0] = 0.0
        values[code > 0x7F] *= -1.0
        return _point(values, layout)


@dataclass(frozen=True)
class Quantized:
    """Each entry at random to one of the two nearest of 2s + 1 levels; unbiased.

    In buckets of 512 entries, whose levels are −M, …, −M/s, 0, M/s, …, M with M the
    bucket's largest entry and s = ``levels``, from 1 to 127. An entry takes 2, 4 or 8
    bits, as few as suffice. The random numbers are needed to pack.
    """

    levels: int
    rng: np.random.Generator | None = None

    @property
    def bits(self) -> int:
        """Of an entry: 2^bits ≥ 2s + 1."""
        return next(bits for bits in (2, 4, 8) if 2**bits > 2 * self.levels)

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """Levels, as many to a byte as fit, and every bucket's largest entry."""
        assert self.rng is not None
        s = self.levels
        flat = np.zeros(-(-layout.size // _BUCKET) * _BUCKET)
        flat[: layout.size] = point.reshape(-1)
        buckets = flat.reshape(-1, _BUCKET)
        # as it will be read, and not below the largest entry
        largest = np.abs(buckets).max(axis=1).astype(np.float32)
        largest = np.nextafter(largest, np.float32(np.inf)) * (largest > 0.0)
        at = buckets * (s / np.where(largest > 0.0, largest, 1.0))[:, None]
        # ⌊s v/M + u⌋ with u uniform on [0, 1): its mean is s v/M
        levels = np.floor(at + self.rng.random(at.shape)).reshape(-1)[: layout.size]
        per_byte = 8 // self.bits
        codes = np.zeros(-(-layout.size // per_byte) * per_byte, np.uint8)
        codes[: layout.size] = (levels + s).astype(np.uint8)
        shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(self.bits)
        packed = np.bitwise_or.reduce(codes.reshape(-1, per_byte) << shifts, axis=1)
        return [packed, largest]

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """The levels' values."""
        s, per_byte = self.levels, 8 // self.bits
        packed, largest = _checked(
            arrays,
            (np.uint8, -(-layout.size // per_byte)),
            (np.float32, -(-layout.size // _BUCKET)),
        )
        if not (np.isfinite(largest).all() and (largest >= 0.0).all()):
            raise ValueError("a bucket's largest entry is negative or not finite")
        shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(self.bits)
        codes = ((packed[:, None] >> shifts) & (2**self.bits - 1)).reshape(-1)
        levels = codes[: layout.size].astype(np.float64) - s
        if levels.size and levels.max() > s:
            raise ValueError("a level lies outside those that there are")
        values = levels * np.repeat(largest / s, _BUCKET)[: layout.size]
        return _point(values, layout)


@dataclass(frozen=True)
class Signs:
    """A bit an entry: ±1, with +1 for zero."""

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """Eight to a byte."""
        return [np.packbits(point.reshape(-1) >= 0.0)]

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """1 or −1 of every entry."""
        [packed] = _checked(arrays, (np.uint8, -(-layout.size // 8)))
        bits = np.unpackbits(packed, count=layout.size)
        return _point(2.0 * bits - 1.0, layout)


def _checked(arrays: Arrays, *expected: tuple[Any, int]) -> Arrays:
    """The arrays, if they are one-dimensional and of these dtypes and sizes."""
    found = [(str(array.dtype), array.shape) for array in arrays]
    wanted = [(str(np.dtype(dtype)), (size,)) for dtype, size in expected]
    if found != wanted:
        raise ValueError(f"arrays of {found} came, expected {wanted}")
    return arrays


def _point(values: NDArray[Any], layout: Layout) -> FloatArray:
    point: FloatArray = values.astype(layout.point_dtype)
    return point.reshape(layout.point_shape)
