"""A copy of a PyTorch module whose parameters are views of one vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

__all__ = [
    "FlatModule",
    "check_learnable",
    "choose_device",
    "choose_dtype",
    "prepare",
]

_DTYPES = {
    name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")
}


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the device that a setting names; "auto" is a CUDA GPU where there is one.

    Raises
    ------
    ValueError
        PyTorch does not know it, or there is none on this machine.
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(
            f"device is {device!r}; it must be auto, cpu, cuda, cuda:1 or another that "
            "PyTorch knows"
        ) from None
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device is {str(device)!r}: {reason}") from None
    return chosen


def choose_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the floating-point dtype that a setting names; None for the model's own.

    Raises
    ------
    ValueError
        It is none of float64, float32, float16 and bfloat16.
    """
    if dtype is None or dtype == "auto":
        return None
    chosen = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in _DTYPES.values():
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(_DTYPES)}")
    return chosen


def check_learnable(
    model: nn.Module, dtype: torch.dtype | None
) -> dict[str, nn.Parameter]:
    """Return a model's learnt parameters by name.

    Parameters
    ----------
    model : torch.nn.Module
    dtype : torch.dtype, optional
        What they are going to be.

    Raises
    ------
    ValueError
        There are none, or they have several dtypes or no shape yet.
    """
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            "model has a lazy layer without shapes; call it once on an example"
        )
    learnt = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    if not learnt:
        raise ValueError("model has no parameter that requires a gradient")
    dtypes = {dtype or part.dtype for part in learnt.values()}
    if len(dtypes) > 1 or not dtypes <= set(_DTYPES.values()):
        raise ValueError(
            f"model has parameters of {', '.join(sorted(map(str, dtypes)))}; they "
            f"must have one dtype of {', '.join(_DTYPES)}, which dtype= gives them"
        )
    return learnt


class FlatModule:
    """A module in evaluation mode, whose learnt parameters are views of one vector.

    One copy sets a model, and an ordinary forward and backward pass is taken on it. It
    is for one thread at a time.

    Parameters
    ----------
    model : torch.nn.Module
        It is copied, and never changed.
    device : torch.device
    dtype : torch.dtype, optional
        Of parameters and buffers in floating point; None: as they are.

    Attributes
    ----------
    module : torch.nn.Module
        The copy.
    parameters : dict of str to Parameter
        Those that require a gradient, in the module's order.
    shapes : list of tuple of int
        Theirs.
    point : Tensor of shape (p,)
        On the device, in the module's dtype.
    layers : list of Tensor
        Its views, of the parameters' shapes.

    Raises
    ------
    ValueError
        Nothing requires a gradient, what does has several dtypes or no shape yet, or a
        layer's batch normalisation makes of the loss no mean over examples.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        check_learnable(model, dtype)
        # gradients that its owner left on it are of no use here
        self.module = copy.deepcopy(model).to(device, dtype).eval()
        prepare(self.module)
        self._bind()

    def _bind(self) -> None:
        """Make the parameters views of one new vector."""
        self.parameters = check_learnable(self.module, None)
        parts = list(self.parameters.values())
        self.shapes = [tuple(part.shape) for part in parts]
        ends = [0, *accumulate(prod(shape) for shape in self.shapes)]
        self._ranges = list(pairwise(ends))
        self.point = torch.cat([part.detach().reshape(-1) for part in parts])
        self.layers = self.views(self.point)
        for part, layer in zip(parts, self.layers, strict=True):
            part.data = layer
        # NumPy's way in: the vector's own memory where NumPy can share it
        self._shared = self.point.device.type == "cpu" and self.dtype != torch.bfloat16
        self._staging = self.point
        if not self._shared:
            self._staging = torch.empty(
                self.point.shape,
                dtype=torch.float64 if self.dtype == torch.float64 else torch.float32,
                pin_memory=self.point.device.type == "cuda",
            )
        host: NDArray[Any] = self._staging.numpy()
        self._host_layers = [
            host[start:stop].reshape(shape)
            for (start, stop), shape in zip(self._ranges, self.shapes, strict=True)
        ]

    # A copy's parameters would be tensors of their own, so copies are bound anew.

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.module = state["module"]
        self._bind()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in."""
        return self.point.dtype

    def views(self, vector: Tensor) -> list[Tensor]:
        """Split a vector (p,), or stacked ones (n, p), into the layers, as views."""
        lead = vector.shape[:-1]
        return [
            vector[..., start:stop].view((*lead, *shape))
            for (start, stop), shape in zip(self._ranges, self.shapes, strict=True)
        ]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the layers of a vector, or of stacked ones, by the parameters' names.

        For ``torch.func``.
        """
        return dict(zip(self.parameters, self.views(vector), strict=True))

    def set(self, layers: Sequence[NDArray[Any]]) -> None:
        """Give the parameters the values of arrays of their shapes: one copy."""
        for target, layer in zip(self._host_layers, layers, strict=True):
            target[...] = layer
        if not self._shared:
            self.point.copy_(self._staging)

    def slopes(self, loss: Tensor) -> list[Tensor]:
        """Differentiate a loss by the parameters: new tensors, one of each shape."""
        parameters = self.parameters.values()
        for parameter in parameters:  # those of before are somebody else's now
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        slopes = []
        for parameter in parameters:
            slope = parameter.grad
            if slope is None:  # the loss does not depend on it
                slope = torch.zeros_like(parameter)
            elif slope.is_sparse:
                slope = slope.to_dense()
            slopes.append(slope)
        return slopes

    def set_tensor(self, point: Tensor) -> None:
        """Give the parameters the values of a vector (p,) on the device."""
        if point is not self.point:
            self.point.copy_(point)


def prepare(module: nn.Module) -> None:
    """Make a module one function of an example, or say which layer is none."""
    for name, layer in module.named_modules():
        # cuDNN differentiates recurrent layers in training mode only, where all that
        # differs is the dropout between them
        if isinstance(layer, nn.RNNBase):
            layer.dropout = 0.0
            layer.train()
        if not isinstance(layer, _BatchNorm):
            continue
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            raise ValueError(
                f"model's layer {name or type(layer).__name__!r} normalises by the "
                "statistics of a batch, so the loss is no mean over examples; use "
                "GroupNorm, or running statistics (track_running_stats=True)"
            )
        if not bool(mean.any()) and bool((variance == 1).all()):
            raise ValueError(
                f"model's layer {name or type(layer).__name__!r} has the running "
                "statistics that it was made with, by which it normalises nothing; use "
                "GroupNorm, or a model that was trained in training mode before"
            )
