"""Products of manifolds, one for each piece of a flat vector."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from fedtrellis.manifolds.base import FloatArray, Manifold, Shape

__all__ = ["Product"]


@dataclass(frozen=True)
class Product(Manifold):
    """M_1 × … × M_k for one flat vector, the ravelled pieces one after the other.

    The manifold of a model with a constraint for each layer, joined as
    :class:`fedtrellis.wire.arrays.Layout` does. Everything separates over the pieces.

    Parameters
    ----------
    parts : sequence of Manifold
        The manifolds M_i.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import Euclidean, Product, Sphere
    >>> manifold = Product([Sphere((2,)), Euclidean((1,))])
    >>> manifold.project(np.array([3.0, 4.0, 5.0])).round(3)
    array([0.6, 0.8, 5. ])
    """

    name: ClassVar[str] = "product"
    parts: Sequence[Manifold]
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Sequence) else ()
        if not parts or not all(isinstance(part, Manifold) for part in parts):
            raise ValueError(
                f"{self.name}: parts must be one manifold or more, got {self.parts!r}"
            )
        object.__setattr__(self, "parts", parts)
        total = sum(prod(part.shape) for part in parts)
        object.__setattr__(self, "shape", (total,))

    @property
    def dimension(self) -> int:
        """Return the sum of the parts' dimensions."""
        return sum(part.dimension for part in self.parts)

    def _pieces(self, *flat: FloatArray) -> Iterator[tuple[Manifold, list[FloatArray]]]:
        start = 0
        for part in self.parts:
            stop = start + prod(part.shape)
            yield (
                part,
                [array[:, start:stop].reshape(-1, *part.shape) for array in flat],
            )
            start = stop

    def _project(self, x: FloatArray) -> FloatArray:
        # P_M(x) = (P_{M_1}(x_1), …, P_{M_k}(x_k)), and so for what follows
        return _joined(part._project(piece) for part, [piece] in self._pieces(x))

    def _project_tangent(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return _joined(
            part._project_tangent(*pieces) for part, pieces in self._pieces(x, v)
        )

    def _exponential(self, x: FloatArray, v: FloatArray) -> FloatArray:
        return _joined(
            part._exponential(*pieces) for part, pieces in self._pieces(x, v)
        )

    def _contains(self, x: FloatArray, tolerance: float) -> bool:
        return all(
            part._contains(piece, tolerance) for part, [piece] in self._pieces(x)
        )


def _joined(pieces: Iterable[FloatArray]) -> FloatArray:
    return np.concatenate([piece.reshape(len(piece), -1) for piece in pieces], axis=1)
