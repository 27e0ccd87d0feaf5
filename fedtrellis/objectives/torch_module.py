"""What a PyTorch objective is made of: a module over one vector, and its examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from fedtrellis.objectives.base import Array, IntArray

#: What the model is called with, keyword arguments or one tensor, named "", and the
#: targets, named as ``target_key`` says.
Batch = dict[str, Tensor]
Collate = Callable[[list[Any]], Any]

# Examples of a data set that are collated at once while it is read.
_READ_TOGETHER = 1024

_NAMES = ("float64", "float32", "float16", "bfloat16")
_DTYPES = {name: getattr(torch, name) for name in _NAMES}


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
        allowed = f"auto, cpu, cuda, cuda:1 or like: {str(error).splitlines()[0]}"
        raise ValueError(f"device is '{device}'; it must be {allowed}") from None


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
        raise ValueError("model has a lazy layer; call it once on an example")
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not learnt:
        raise ValueError("model has no parameter that requires a gradient")
    dtypes = {dtype or part.dtype for part in learnt.values()}
    if len(dtypes) > 1 or not dtypes <= set(_DTYPES.values()):
        found, allowed = ", ".join(sorted(map(str, dtypes))), ", ".join(_DTYPES)
        raise ValueError(f"model is of {found}; they must have one dtype of {allowed}")
    return learnt


class FlatModule:
    """A module in evaluation mode, whose learnt parameters are views of one vector.

    One copy into ``point`` sets a model. The ``parameters`` by name of ``module``, a
    copy of the model, are ``layers``, views of ``point``, in the module's dtype.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        check_learnable(model, dtype)
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
        # and their gradients views of another, into which PyTorch adds them up
        self._slope = torch.zeros_like(self.point)
        slopes = self.views(self._slope)
        for part, layer, slope in zip(parts, self.layers, slopes, strict=True):
            part.data, part.grad = layer, slope

    # a copy's parameters would be tensors of their own, so copies are bound anew

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

    def slope(self, loss: Tensor) -> Tensor:
        """Differentiate a loss by the parameters: a vector, good until the next one."""
        self._slope.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._slope


def prepare(module: nn.Module) -> None:
    """Make a module one function of an example, or name the layer that is none."""
    for name, layer in module.named_modules():
        # cuDNN differentiates recurrent layers in training mode only
        if isinstance(layer, nn.RNNBase):
            layer.dropout = 0.0
            layer.train()
        if not isinstance(layer, _BatchNorm):
            continue
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            why = "normalises by the statistics of a batch"
        elif not bool(mean.any()) and bool((variance == 1).all()):
            why = "has the running statistics that it was made with"
        else:
            continue
        raise ValueError(
            f"model's layer {name or type(layer).__name__!r} {why}; use GroupNorm, or "
            "running statistics of a trained model"
        )


def to_numpy(tensor: Tensor) -> Array:
    """Return a new array with a tensor's entries; halves become float32."""
    dtype = torch.float32 if tensor.itemsize == 2 else tensor.dtype
    array: Array = tensor.to("cpu", dtype, copy=True).numpy()
    return array


def descend(
    point: Tensor,
    sizes: Sequence[float],
    gradient: Callable[[int], Tensor],
    pull: float = 0.0,
) -> None:
    """Take steps in place, x_k ← x_{k−1} − γ_k (∇f(x_{k−1}) + pull · (x_{k−1} − x_0)).

    ``gradient(k)`` makes ∇f at the point as it is, a new tensor of its dtype.
    """
    start = point.clone() if pull else point
    for k, size in enumerate(sizes):
        g = gradient(k)
        if pull:
            g.add_((point - start).mul_(pull))
        # in two roundings, as NumPy does it
        point.sub_(g.mul_(size))


def _checked(batch: Batch, count: int) -> Batch:
    """Return a batch all of whose tensors have so many examples."""
    counts = {name or "inputs": len(part) for name, part in batch.items()}
    if set(counts.values()) != {count} or not count:
        wanted = count or "at least 1"
        raise ValueError(f"data has {counts} examples; it must have {wanted} of each")
    return batch


class TensorExamples:
    """Examples that lie on the device as tensors, on the leading axis; finite."""

    def __init__(self, tensors: Batch) -> None:
        self.count = len(next(iter(tensors.values())))
        self.tensors = _checked(tensors, self.count)
        for name, part in tensors.items():
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise ValueError(f"{name or 'inputs'} has NaN or infinite entries")

    def batch(self, rows: IntArray | slice) -> Batch:
        """Return some examples."""
        index: Any = rows
        if not isinstance(rows, slice):
            device = next(iter(self.tensors.values())).device
            index = torch.as_tensor(rows, device=device)
        elif rows == slice(0, self.count):
            return self.tensors
        return {name: part[index] for name, part in self.tensors.items()}


class CollatedExamples:
    """Examples that a collate function puts together anew for every batch."""

    def __init__(
        self, examples: list[Any], collate: Collate, arrange: Callable[[Any], Batch]
    ) -> None:
        self._examples, self._collate, self._arrange = examples, collate, arrange
        self.count = len(examples)

    def batch(self, rows: IntArray | slice) -> Batch:
        """Collate some examples."""
        chosen = range(self.count)[rows] if isinstance(rows, slice) else rows
        examples = [self._examples[row] for row in chosen]
        return _checked(self._arrange(self._collate(examples)), len(examples))


def read_examples(
    data: Any,
    collate: Collate | None,
    target: str,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorExamples | CollatedExamples:
    """Read, once, the ``data`` that a ``TorchObjective`` is given."""

    def arrange(given: Any) -> Batch:
        if isinstance(given, tuple | list) and len(given) == 2:
            inputs, targets = given
            named = inputs if isinstance(inputs, Mapping) else {"": inputs}
            given = {**named, target: targets}
        if not isinstance(given, Mapping) or target not in given or len(given) < 2:
            found = given.keys() if isinstance(given, Mapping) else type(given)
            raise ValueError(
                f"the batch is {found}; it must be a pair of inputs and targets, or a "
                f"mapping of inputs and {target!r} (target_key)"
            )
        batch = {str(k): _on_device(k, v, dtype, device) for k, v in given.items()}
        if not (batch[target].is_floating_point() or batch[target].dtype == torch.bool):
            batch[target] = batch[target].long()
        return batch

    loader = isinstance(data, DataLoader)
    tensors = isinstance(data, tuple | list | Mapping)
    if collate is not None and (loader or tensors):
        raise ValueError("collate_fn is for a Dataset; tensors and loaders need none")
    if loader and _in_any_order(data):
        data, collate, loader = data.dataset, data.collate_fn, False
    if collate is default_collate:
        collate = None
    if tensors:
        return TensorExamples(arrange(data))
    if isinstance(data, TensorDataset) and collate is None:
        return TensorExamples(arrange(data.tensors))
    if not loader and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        allowed = "(inputs, targets), a mapping, a sized Dataset or a DataLoader"
        raise ValueError(f"data is a {type(data).__name__}; it must be {allowed}")
    # samplers, and transforms that draw from PyTorch's random state, draw alike in
    # every process
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if collate is not None and not loader:
            parts = [data[i] for i in range(len(data))]
        else:
            batches = data if loader else DataLoader(data, _READ_TOGETHER)
            parts = list(map(arrange, batches))
    if not parts:
        raise ValueError("data has 0 examples; it must have at least one")
    if collate is not None and not loader:
        return CollatedExamples(parts, collate, arrange)
    try:
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    except RuntimeError as error:
        raise ValueError(
            f"the batches' examples have several shapes ({error}); "
            "give the Dataset with its collate_fn"
        ) from None
    return TensorExamples(joined)


def _in_any_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader goes through all of its data set, in order or shuffled."""
    sampler: Any = loader.sampler
    if type(sampler) is RandomSampler:
        whole = not sampler.replacement and len(sampler) == len(sampler.data_source)
    else:
        whole = type(sampler) is SequentialSampler
    return whole and type(loader.batch_sampler) is BatchSampler


def _on_device(
    name: object, data: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return data as a tensor on the device, floating point in the given precision."""
    try:
        # a copy of what NumPy holds, which may be read-only
        tensor = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(data).__name__
        raise ValueError(f"{name or 'inputs'} is a {kind}, no array") from error
    if tensor.ndim == 0:
        raise ValueError(f"{name or 'inputs'} is a scalar; examples need an axis")
    return tensor.to(device, dtype if tensor.is_floating_point() else None)
