"""Examples for a PyTorch objective: tensors, a data set or a data loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from fedtrellis.objectives.checks import IntArray

__all__ = ["Collate", "CollatedExamples", "Inputs", "TensorExamples", "read_examples"]

#: What the model is called with: keyword arguments, or one tensor, named "".
Inputs = dict[str, Tensor]
Batch = tuple[Inputs, Tensor]
Collate = Callable[[list[Any]], Any]

# Examples of a data set that are collated at once while it is read.
_READ_TOGETHER = 1024


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

    loader, tensors = (
        isinstance(data, DataLoader),
        isinstance(data, tuple | list | Mapping),
    )
    if collate is not None and (loader or tensors):
        why = (
            "a DataLoader, which has one" if loader else "tensors; it is for a Dataset"
        )
        raise ValueError(f"collate_fn is given beside {why}")
    if loader and _in_any_order(data):
        data, collate, loader = data.dataset, data.collate_fn, False
    if tensors:
        return TensorExamples(*arrange(data))
    if isinstance(data, TensorDataset) and collate in (None, default_collate):
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
        if not loader and collate not in (None, default_collate):
            examples = [data[i] for i in range(len(data))]
            return CollatedExamples(examples, collate, arrange)
        batches = data if loader else DataLoader(data, _READ_TOGETHER)
        return _joined(map(arrange, batches))


def _in_any_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader goes through all of its data set, in order or shuffled."""
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return False
    shuffled = type(sampler) is RandomSampler and (
        not sampler.replacement and sampler.num_samples == len(dataset)
    )
    plain = type(loader.batch_sampler) is BatchSampler
    return plain and (shuffled or type(sampler) is SequentialSampler)


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
    if not isinstance(batch, tuple | list):
        raise ValueError(
            f"the batch is a {type(batch).__name__}; it must be a pair of inputs and "
            "targets, or a mapping"
        )
    if len(batch) != 2:
        raise ValueError(f"data has {len(batch)} parts; it must be inputs, targets")
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

    def joined(name: str, tensors: list[Tensor]) -> Tensor:
        shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
        if len(shapes) > 1:
            raise ValueError(
                f"the batches' {name} have examples of the shapes {sorted(shapes)}; "
                "give the Dataset with its collate_fn, which then makes every batch"
            )
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    inputs = {
        name: joined(_label(name), [part[name] for part, _ in parts])
        for name in parts[0][0]
    }
    return TensorExamples(inputs, joined("targets", [targets for _, targets in parts]))


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
