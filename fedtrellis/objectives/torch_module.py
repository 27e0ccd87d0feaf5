"""What a PyTorch objective is made of: a module over one vector, and its examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from fedtrellis.objectives.checks import Array, IntArray

#: What the model is called with: keyword arguments, or one tensor, named "".
Inputs = dict[str, Tensor]
Batch = tuple[Inputs, Tensor]
Collate = Callable[[list[Any]], Any]

# Examples of a data set that are collated at once while it is read.
_READ_TOGETHER = 1024

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

    One copy into ``point`` sets a model, and an ordinary forward and backward pass is
    taken on it: on ``module``, a copy of the model, whose ``parameters`` that require a
    gradient, by name, are ``layers``, views of ``point``, in the module's dtype. It is
    for one thread at a time.
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

    def slope(self, loss: Tensor) -> Tensor:
        """Differentiate a loss by the parameters: a vector, good until the next one."""
        self._slope.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._slope


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
            why = "normalises by the statistics of a batch, not of one example"
        elif not bool(mean.any()) and bool((variance == 1).all()):
            why = "has the running statistics that it was made with: it does nothing"
        else:
            continue
        raise ValueError(
            f"model's layer {name or type(layer).__name__!r} {why}; use GroupNorm, or "
            "running statistics (track_running_stats=True) of a trained model"
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


# -- the examples


class TensorExamples:
    """Examples that lie on the device as tensors, on the leading axis; finite."""

    def __init__(self, inputs: Inputs, targets: Tensor) -> None:
        self.inputs, self.targets, self.count = inputs, targets, len(targets)
        for name, tensor in _labelled(inputs, targets):
            if len(tensor) != self.count or self.count == 0:
                raise ValueError(
                    f"{name} has {len(tensor)} examples and targets {self.count}; "
                    "they must have the same number, at least one"
                )
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(
                    f"{name} has NaN or infinite entries; all must be finite"
                )

    def batch(self, rows: IntArray | slice) -> Batch:
        """Return the inputs and targets of some examples."""
        index: Any = rows
        if not isinstance(rows, slice):
            index = torch.as_tensor(rows, device=self.targets.device)
        elif rows.start == 0 and rows.stop == self.count:
            return self.inputs, self.targets
        inputs = {name: part[index] for name, part in self.inputs.items()}
        return inputs, self.targets[index]


class CollatedExamples:
    """Examples that a collate function puts together anew for every batch.

    ``arrange`` makes inputs and targets on the device of what ``collate`` returns.
    """

    def __init__(
        self, examples: list[Any], collate: Collate, arrange: Callable[[Any], Batch]
    ) -> None:
        self._examples, self._collate, self._arrange = examples, collate, arrange
        self.count = len(examples)
        if not self.count:
            raise ValueError("data has 0 examples; it must have at least one")

    def batch(self, rows: IntArray | slice) -> Batch:
        """Collate some examples."""
        chosen = range(self.count)[rows] if isinstance(rows, slice) else rows
        examples = [self._examples[row] for row in chosen]
        inputs, targets = self._arrange(self._collate(examples))
        for name, tensor in _labelled(inputs, targets):
            if len(tensor) != len(examples):
                raise ValueError(
                    f"collate_fn made {len(tensor)} {name} of {len(examples)} examples"
                )
        return inputs, targets


def read_examples(
    data: Any,
    *,
    collate: Collate | None,
    target: str,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorExamples | CollatedExamples:
    """Read, once, the ``data`` that a ``TorchObjective`` is given."""

    def arrange(batch: Any) -> Batch:
        inputs, targets = _split(batch, target)
        targets = _on_device("targets", targets, dtype, device)
        if not (targets.is_floating_point() or targets.dtype == torch.bool):
            targets = targets.long()
        named = inputs if isinstance(inputs, Mapping) else {"": inputs}
        return {
            str(name): _on_device(_label(name), part, dtype, device)
            for name, part in named.items()
        }, targets

    loader = isinstance(data, DataLoader)
    tensors = isinstance(data, tuple | list | Mapping)
    if collate is not None and (loader or tensors):
        raise ValueError("collate_fn is for a Dataset; tensors and loaders need none")
    if loader and _in_any_order(data):
        data, collate, loader = data.dataset, data.collate_fn, False
    if collate is default_collate:
        collate = None
    if tensors:
        return TensorExamples(*arrange(data))
    if isinstance(data, TensorDataset) and collate is None:
        return TensorExamples(*arrange(data.tensors))
    if not loader and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ValueError(
            f"data is a {type(data).__name__}; it must be (inputs, targets), a mapping "
            "of tensors, a Dataset with a length, or a DataLoader"
        )
    # samplers, and transforms that draw from PyTorch's random state, draw alike in
    # every process
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if collate is not None and not loader:
            examples = [data[i] for i in range(len(data))]
            return CollatedExamples(examples, collate, arrange)
        batches = data if loader else DataLoader(data, _READ_TOGETHER)
        return _joined(map(arrange, batches))


def _in_any_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader goes through all of its data set, in order or shuffled."""
    sampler: Any = loader.sampler
    if type(sampler) is RandomSampler:
        whole = not sampler.replacement and len(sampler) == len(sampler.data_source)
    else:
        whole = type(sampler) is SequentialSampler
    return whole and type(loader.batch_sampler) is BatchSampler


def _split(batch: Any, target: str) -> tuple[Any, Any]:
    """Return a batch's inputs and its targets."""
    if isinstance(batch, Mapping):
        inputs = {name: part for name, part in batch.items() if name != target}
        if target not in batch or not inputs:
            raise ValueError(
                f"the batch has the keys {list(batch)}; it must have the targets as "
                f"{target!r} (target_key) and inputs beside them"
            )
        return inputs, batch[target]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        parts = f" of {len(batch)} parts" if isinstance(batch, tuple | list) else ""
        raise ValueError(
            f"the batch is a {type(batch).__name__}{parts}; it must be a pair of "
            "inputs and targets, or a mapping"
        )
    return batch[0], batch[1]


def _label(name: object) -> str:
    return "inputs" if name == "" else f"inputs[{name!r}]"


def _labelled(inputs: Inputs, targets: Tensor) -> list[tuple[str, Tensor]]:
    """Return all tensors by the names that errors have for them."""
    named = [(_label(name), part) for name, part in inputs.items()]
    return [*named, ("targets", targets)]


def _joined(batches: Iterable[Batch]) -> TensorExamples:
    """Make one set of tensors of the batches of a pass."""
    parts = list(batches)
    if not parts:
        raise ValueError("data has 0 examples; it must have at least one")
    try:
        targets = torch.cat([part for _, part in parts])
        names = parts[0][0]
        inputs = {name: torch.cat([part[name] for part, _ in parts]) for name in names}
    except RuntimeError as error:
        raise ValueError(
            "the batches' examples have several shapes; give the Dataset with its "
            f"collate_fn, which then makes every batch: {error}"
        ) from None
    return TensorExamples(inputs, targets)


def _on_device(
    name: str, data: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return data as a tensor on the device, floating point in the given precision."""
    try:
        # A copy of what NumPy holds: PyTorch must not share read-only memory.
        tensor = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} is a {type(data).__name__}; it must be a tensor or an array"
        ) from error
    if tensor.ndim == 0:
        raise ValueError(f"{name} is a scalar; it must have examples on its first axis")
    return tensor.to(device, dtype if tensor.is_floating_point() else None)
