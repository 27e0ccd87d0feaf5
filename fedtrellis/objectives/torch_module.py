"""A copy of a PyTorch module whose parameters are views of one vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedtrellis.objectives.checks import Array

_DTYPES = {
    name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")
}


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the device that a setting names; "auto" is a CUDA GPU where there is one.

    A ValueError: PyTorch does not know it, or there is none on this machine.
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device is {str(device)!r}; it must be auto, cpu, cuda, cuda:1 or another "
            f"that PyTorch knows: {reason}"
        ) from None


def choose_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the floating-point dtype that a setting names; None for the model's own.

    A ValueError: it is none of float64, float32, float16 and bfloat16.
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
    """Return a model's learnt parameters by name, all of them of one dtype."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            "model has a lazy layer without shapes; call it once on an example"
        )
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
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

    One copy sets a model, and an ordinary forward and backward pass is taken on it: on
    ``module``, a copy of the model, whose ``parameters`` that require a gradient, by
    name, are the ``layers``, views of ``point``, in the module's dtype. It is for one
    thread at a time.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        check_learnable(model, dtype)
        # gradients that its owner left on it are of no use here
        self.module = copy.deepcopy(model).to(device, dtype).eval()
        prepare(self.module)
        self._bind()
        self.initial = self.point.clone()

    def _bind(self) -> None:
        """Make the parameters views of one new vector."""
        self.parameters = check_learnable(self.module, None)
        parts = list(self.parameters.values())
        self.shapes = [tuple(part.shape) for part in parts]
        self._sizes = [prod(shape) for shape in self.shapes]
        self.point = torch.cat([part.detach().reshape(-1) for part in parts])
        self.dtype = self.point.dtype
        self.layers = self.views(self.point)
        for part, layer in zip(parts, self.layers, strict=True):
            part.data = layer
        # NumPy's way in: the vector's own memory where NumPy can share it
        self._staging, kind = self.point, self.point.device.type
        if kind != "cpu" or self.dtype == torch.bfloat16:
            wide = torch.float64 if self.dtype == torch.float64 else torch.float32
            self._staging = torch.empty(
                self.point.shape, dtype=wide, pin_memory=kind == "cuda"
            )
        self._host_layers = [layer.numpy() for layer in self.views(self._staging)]

    # A copy's parameters would be tensors of their own, so copies are bound anew.

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "initial": self.initial}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    def views(self, vector: Tensor) -> list[Tensor]:
        """Split a vector (p,), or stacked ones (n, p), into the layers, as views."""
        parts = torch.split(vector, self._sizes, -1)
        lead = vector.shape[:-1]
        return [p.view((*lead, *s)) for p, s in zip(parts, self.shapes, strict=True)]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the layers of a vector, or of stacked ones, for ``torch.func``."""
        return dict(zip(self.parameters, self.views(vector), strict=True))

    def set(self, layers: Sequence[Array]) -> None:
        """Give the parameters the values of arrays of their shapes: one copy."""
        for target, layer in zip(self._host_layers, layers, strict=True):
            target[...] = layer
        if self._staging is not self.point:
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
            slopes.append(slope.to_dense() if slope.is_sparse else slope)
        return slopes


def prepare(module: nn.Module) -> None:
    """Make a module one function of an example, or name the layer that is none."""
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
            why = (
                "normalises by the statistics of a batch, so the loss is no mean over "
                "examples; use GroupNorm, or running statistics "
                "(track_running_stats=True)"
            )
        elif not bool(mean.any()) and bool((variance == 1).all()):
            why = (
                "has the running statistics that it was made with, by which it "
                "normalises nothing; use GroupNorm, or a model that was trained in "
                "training mode before"
            )
        else:
            continue
        raise ValueError(f"model's layer {name or type(layer).__name__!r} {why}")


def to_numpy(tensor: Tensor, dtype: DTypeLike = np.float64) -> Array:
    """Return a new array with the entries of a tensor that requires no gradient."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not know
        tensor = tensor.float()
    array: Array = tensor.cpu().numpy().astype(dtype)
    return array


def to_arrays(tensors: list[Tensor], dtype: DTypeLike) -> list[Array]:
    """Return tensors that nobody else holds as arrays, which may share their memory."""
    if tensors[0].is_cpu and tensors[0].dtype != torch.bfloat16:
        return [tensor.numpy().astype(dtype, copy=False) for tensor in tensors]
    # one way over from the device, not one for each of them
    vector = to_numpy(torch.cat([tensor.reshape(-1) for tensor in tensors]), dtype)
    parts = np.split(vector, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [p.reshape(t.shape) for p, t in zip(parts, tensors, strict=True)]


def descend(
    parts: Sequence[Tensor],
    sizes: Sequence[float],
    gradient: Callable[[int], Sequence[Tensor]],
    pull: float = 0.0,
) -> None:
    """Take steps in place, x_k ← x_{k−1} − γ_k (∇f(x_{k−1}) + pull · (x_{k−1} − x_0)).

    ``gradient(k)`` makes ∇f at the parts as they are, new tensors of their dtype.
    """
    starts = [part.clone() for part in parts] if pull else parts
    for k, size in enumerate(sizes):
        for part, start, g in zip(parts, starts, gradient(k), strict=True):
            if pull:
                g.add_((part - start).mul_(pull))
            # in two roundings, as NumPy does it
            part.sub_(g.mul_(size))
