"""How a product is cut up into its parts, as it travels: all of it is checked."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import Shape, check

__all__ = ["MAX_DEPTH", "ProductLayout", "parse_layouts", "shapes_of_parts"]

MAX_DEPTH = 16  # products nested deeper are refused, not left to Python's stack

# A leaf is the shape of an atom, a list is a product. On the wire, in int64: a leaf as
# (ndim, *shape), a product as (-number of parts, *parts).
ProductLayout = Shape | list["ProductLayout"]


def parse_layouts(numbers: NDArray[Any], shape: Shape) -> list[ProductLayout]:
    """Read the layouts; each must be a product of as many entries as ``shape``."""
    check("product layouts", numbers, np.dtype(np.int64), None)
    stream: list[int] = numbers.tolist()
    position = 0

    def read(depth: int) -> tuple[ProductLayout, int]:
        nonlocal position
        if position >= len(stream) or depth > MAX_DEPTH:
            raise ValueError("a product layout is cut short or nested too deeply")
        head = stream[position]
        position += 1
        if head < 0:
            parts = []
            size = 0
            for _ in range(-head):  # ends when the stream does, whatever head says
                part, part_size = read(depth + 1)
                parts.append(part)
                size += part_size
            return parts, size
        dims = tuple(stream[position : position + head])
        position += head
        if len(dims) < head or head > 32 or any(dim < 1 for dim in dims):
            raise ValueError(f"a product layout has a part of invalid shape {dims}")
        return dims, math.prod(dims)

    layouts: list[ProductLayout] = []
    while position < len(stream):
        layout, size = read(0)
        if not isinstance(layout, list) or (size,) != shape:
            raise ValueError(f"a product layout of {size} entries for shape {shape}")
        layouts.append(layout)
    return layouts


def shapes_of_parts(layout: ProductLayout) -> Iterator[Shape]:
    """Yield the shapes of the atoms that a product is made of, in order."""
    if isinstance(layout, list):
        for part in layout:
            yield from shapes_of_parts(part)
    else:
        yield layout
