"""A small convolutional network for CIFAR-10 (needs the extra ``torch``)."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..base import Array, DataFileError

__all__ = ["SHAPES", "ConvolutionalClassifier", "load_weights"]

Weights = Mapping[str, NDArray[np.float32]]

_CLASSES = 10

#: The arrays of a file of weights, in the order of the layers.
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1.weight": (32, 3, 5, 5),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "conv2.bias": (64,),
    "conv3.weight": (64, 64, 3, 3),
    "conv3.bias": (64,),
    "dense.weight": (_CLASSES, 64 * 4 * 4),
    "dense.bias": (_CLASSES,),
}

# Images that pass through the network together.
_SLICE = 128


def load_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read the weights of a network from an ``.npz`` file of plain arrays.

    Raises
    ------
    DataFileError
        The file is no such archive, or an array is missing, of another shape or dtype,
        or not finite.
    """
    weights = {}
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {item.filename: item.file_size for item in archive.infolist()}
        for name, shape in SHAPES.items():
            if name + ".npy" not in sizes:
                raise DataFileError(f"{path}: has no array {name!r}")
            # no more is read than the array may take, with its header
            if sizes[name + ".npy"] > 4 * math.prod(shape) + 1024:
                raise DataFileError(f"{path}: array {name!r} is too large")
        with np.load(path, allow_pickle=False) as arrays:
            for name, shape in SHAPES.items():
                array = arrays[name]
                if array.shape != shape or array.dtype != np.float32:
                    raise DataFileError(
                        f"{path}: array {name!r} has shape {array.shape} and dtype "
                        f"{array.dtype}; they must be {shape} and float32"
                    )
                if not np.isfinite(array).all():
                    raise DataFileError(f"{path}: array {name!r} is not finite")
                weights[name] = array
    except DataFileError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataFileError(f"{path}: not an archive of weights: {reason}") from error
    return weights


class ConvolutionalClassifier:
    """The network of ``scripts/train_cifar_cnn.py`` in inference.

    Three convolutions of stride 2, each with ReLU, and a dense layer.

    Parameters
    ----------
    weights : mapping from str to ndarray of float32
        Of :data:`SHAPES`.
    dtype : torch.dtype, default torch.float32
        What scores are computed in.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype
        tensors = {name: torch.tensor(weights[name], dtype=dtype) for name in SHAPES}
        self._convolutions = [
            (_channels_last(tensors[f"conv{i}.weight"]), tensors[f"conv{i}.bias"])
            for i in (1, 2, 3)
        ]
        self._dense = tensors["dense.weight"], tensors["dense.bias"]

    def _scores(self, x: Tensor) -> Tensor:
        for weight, bias in self._convolutions:
            half = weight.shape[-1] // 2
            x = functional.relu(functional.conv2d(x, weight, bias, 2, half))
        return functional.linear(x.flatten(1), *self._dense)

    def _input(self, images: Array) -> Tensor:
        # A copy, as images may be read-only.
        return _channels_last(torch.tensor(images, dtype=self._dtype))

    def logits(self, images: Array) -> Array:
        """Return scores of shape (n, 10) for images of shape (n, 3, 32, 32)."""
        scores = np.empty((len(images), _CLASSES))
        with torch.inference_mode():
            for part in _slices(len(images)):
                scores[part] = self._scores(self._input(images[part])).numpy()
        return scores

    def pullback(self, images: Array, cotangents: Array) -> Array:
        """Return ∇ Σ_kc cotangents_kc · logits_kc by the images, of their shape."""
        slopes = np.empty(np.shape(images))
        for part in _slices(len(images)):
            with torch.enable_grad():
                x = self._input(images[part]).requires_grad_()
                outer = torch.tensor(cotangents[part], dtype=self._dtype)
                [slope] = torch.autograd.grad(self._scores(x), x, outer)
            slopes[part] = slope.numpy()
        return slopes


def _channels_last(x: Tensor) -> Tensor:
    """Lay the channels out innermost, which makes convolutions 3 times as fast."""
    return x.contiguous(memory_format=torch.channels_last)


def _slices(count: int) -> list[slice[Any, Any, Any]]:
    return [slice(start, start + _SLICE) for start in range(0, count, _SLICE)]
