"""Contractive compressors: what goes up instead of a dense vector, with error feedback.

C is contractive if ‖C(v) − v‖² ≤ (1 − α) ‖v‖² for an α in (0, 1]. A client that keeps
what the server has of it, and sends C of the difference, loses nothing for good (EF21).

Source: Richtárik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021, arXiv 2106.05203; Horváth,
Ho, Horváth, Sahu, Canini, Richtárik, "Natural Compression for Distributed Deep
Learning", arXiv 1905.10988, whose random rounding to powers of two is to the nearest
here, which needs no random numbers and is contractive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.sparse import check_entries

__all__ = ["COMPRESSORS", "Compressor", "LowRank", "Natural", "TopK", "compressor"]

COMPRESSORS = ("top-k", "rank", "natural")

Arrays = Sequence[NDArray[Any]]


class Compressor(Protocol):
    """Writes a point as fewer bytes, and reads what it wrote."""

    def pack(self, point: FloatArray, layout: Layout) -> list[NDArray[Any]]:
        """Return the arrays that stand for C(point)."""

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """Return C(point), the same on both sides; ValueError if malformed."""


def compressor(name: str, kept_fraction: float, rank: int) -> Compressor:
    """Make a compressor by its name, one of :data:`COMPRESSORS`."""
    if name == "top-k":
        return TopK(kept_fraction)
    return LowRank(rank) if name == "rank" else Natural()


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude, k = ⌈fraction · p⌉, of p; α = k/p.

    Parameters
    ----------
    fraction : float
        In (0, 1].
    """

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
        indices, values = _exactly(arrays, 2)
        check_entries(indices, values, layout.size)
        if indices.size != self.count(layout.size):
            raise ValueError(
                f"{indices.size} entries came instead of {self.count(layout.size)}"
            )
        point = np.zeros(layout.size, layout.point_dtype)
        point[indices] = layout.from_wire(values)
        return point.reshape(layout.point_shape)


@dataclass(frozen=True)
class LowRank:
    """Each layer's largest r singular triples, where these are smaller than the layer.

    α = r / (the smaller side), the least over the layers. A convolution's kernel is the
    matrix of its output channels.

    Parameters
    ----------
    rank : int
        r, at least 1.
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
            matrix = layer.reshape(sides)
            u, sigma, vt = np.linalg.svd(matrix, full_matrices=False)
            r = self.rank
            arrays += [layout.to_wire(u[:, :r] * sigma[:r]), layout.to_wire(vt[:r])]
        return arrays

    def unpack(self, arrays: Arrays, layout: Layout) -> FloatArray:
        """Each layer U_r Σ_r V_rᵀ, or as it came."""
        cut = [self._sides(shape) for shape in layout.shapes]
        _exactly(arrays, sum(1 if sides is None else 2 for sides in cut))
        rest, layers = iter(arrays), []
        for shape, sides in zip(layout.shapes, cut, strict=True):
            expected = [shape] if sides is None else self._factors(sides)
            parts = [next(rest) for _ in expected]
            if [part.shape for part in parts] != expected:
                raise ValueError(
                    f"a layer came as {[part.shape for part in parts]}, "
                    f"expected {expected}"
                )
            wide = [layout.from_wire(part) for part in parts]
            layers.append(wide[0] if sides is None else (wide[0] @ wide[1]))
        return layout.point(
            [layer.reshape(s) for layer, s in zip(layers, layout.shapes, strict=True)]
        )

    def _factors(self, sides: tuple[int, int]) -> list[tuple[int, ...]]:
        rows, columns = sides
        return [(rows, self.rank), (self.rank, columns)]


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
        code, top = _exactly(arrays, 2)
        if code.dtype != np.uint8 or code.shape != (layout.size,):
            raise ValueError(
                f"codes of shape {code.shape} and dtype {code.dtype} came, "
                f"expected {(layout.size,)} and uint8"
            )
        if top.dtype != np.int16 or top.shape != (1,) or abs(int(top[0])) > 1100:
            raise ValueError("the largest exponent is malformed")
        power = (code & 0x7F).astype(np.int32)
        values = np.ldexp(1.0, power - 127 + int(top[0]))
        values[power == 0] = 0.0
        values[code > 0x7F] *= -1.0
        point: FloatArray = values.astype(layout.point_dtype)
        return point.reshape(layout.point_shape)


def _exactly(arrays: Arrays, count: int) -> Arrays:
    if len(arrays) != count:
        raise ValueError(f"the answer has {len(arrays)} arrays instead of {count}")
    return arrays
