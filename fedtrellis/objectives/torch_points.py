"""The forms in which a PyTorch model's parameters come and go as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fedtrellis.objectives.checks import Array

__all__ = ["TENSOR_DTYPES", "Point", "PointForms", "to_arrays", "to_numpy"]

Point = Array | Sequence[Array]

#: What points can have, and the tensors that stand for them.
TENSOR_DTYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class PointForms:
    """A list of arrays, one flat array, or a single parameter's own array.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Of the parameters.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = list(shapes)
        self.sizes = [prod(shape) for shape in shapes]
        self.flat = (sum(self.sizes),)

    def layers(self, x: Point, batch: tuple[int, ...] = ()) -> list[Array]:
        """Return a point, or a batch of them, as arrays of one of the two dtypes.

        Raises
        ------
        ValueError
            It does not fit the model.
        """
        if isinstance(x, np.ndarray):
            array = _floats(x)
            if len(self.shapes) == 1 and array.shape == (*batch, *self.shapes[0]):
                return [array]
            if array.shape != (*batch, *self.flat):
                wanted = (*batch, *self.flat)
                raise ValueError(f"x has shape {array.shape}; it must be {wanted}")
            return self._split(array, batch)
        parts = [
            part
            if type(part) is np.ndarray and part.dtype in TENSOR_DTYPES
            # a call for what is as it should be would be dear for a small model
            else _floats(np.asarray(part))
            for part in x
        ]
        given = [part.shape for part in parts]
        wanted_shapes = [(*batch, *s) for s in self.shapes] if batch else self.shapes
        if given != wanted_shapes:
            raise ValueError(f"x has shapes {given}; they must be {wanted_shapes}")
        if len({part.dtype for part in parts}) > 1:
            parts = [np.asarray(part, dtype=np.float64) for part in parts]
        return parts

    def vector(self, x: Point, batch: tuple[int, ...] = ()) -> Array:
        """Return a point, or a batch of them, as a new array of shape (*batch, p)."""
        parts = [
            layer.reshape((*batch, size))
            for layer, size in zip(self.layers(x, batch), self.sizes, strict=True)
        ]
        return np.concatenate(parts, axis=-1)

    def like(self, x: Point, layers: list[Array]) -> Any:
        """Return layers in the form that the point x has."""
        if not isinstance(x, np.ndarray):
            return layers
        if len(layers) == 1:
            return layers[0].reshape(x.shape)
        return np.concatenate([layer.reshape(-1) for layer in layers])

    def _split(self, array: Array, batch: tuple[int, ...]) -> list[Array]:
        layers, start = [], 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            layers.append(array[..., start : start + size].reshape((*batch, *shape)))
            start += size
        return layers


def to_numpy(tensor: Tensor, dtype: DTypeLike = np.float64) -> Array:
    """Return a new array with the entries of a tensor that requires no gradient."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not know
        tensor = tensor.float()
    array: Array = tensor.cpu().numpy().astype(dtype)
    return array


def to_arrays(tensors: list[Tensor], dtype: DTypeLike) -> list[Array]:
    """Return tensors that nobody else holds as arrays, which may share their memory."""
    if tensors[0].is_cpu and tensors[0].dtype != torch.bfloat16:
        arrays: list[Array] = [tensor.numpy() for tensor in tensors]
        if arrays[0].dtype != dtype:
            arrays = [array.astype(dtype) for array in arrays]
        return arrays
    # one way over from the device, not one for each of them
    vector = to_numpy(torch.cat([tensor.reshape(-1) for tensor in tensors]), dtype)
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    parts = np.split(vector, ends)
    return [p.reshape(t.shape) for p, t in zip(parts, tensors, strict=True)]


def _floats(array: NDArray[Any]) -> Array:
    """Return an array as float32 if it has no more digits, else as float64."""
    if array.dtype in TENSOR_DTYPES:
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
