"""Examples for a PyTorch objective: tensors, a data set or a data loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

#: What the model is called with: one tensor, or keyword arguments.
Inputs = Tensor | dict[str, Tensor]
Collate = Callable[[list[Any]], Any]

# Examples of a data set that are collated at once while it is read.
_READ_TOGETHER = 1024


class TensorExamples:
    """Examples that lie on the device as tensors.

    Parameters
    ----------
    inputs : Tensor or dict of str to Tensor
        Examples on the leading axis.
    targets : Tensor
        As many examples.

    Raises
    ------
    ValueError
        There are none, or not as many of each, or floating-point entries that are not
        finite. They are looked at once, here.
    """

    def __init__(self, inputs: Inputs, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        parts = _named(inputs) | {"targets": targets}
        self.count = len(targets)
        for name, tensor in parts.items():
            if len(tensor) != self.count or self.count == 0:
                raise ValueError(
                    f"{name} has {len(tensor)} examples and targets {self.count}; "
                    "they must have the same number, at least one"
                )
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(
                    f"{name} has NaN or infinite entries; all must be finite"
                )

    def batch(self, rows: IntArray | slice) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets of some examples."""
        index: Any = rows
        if isinstance(rows, slice):
            if rows.start == 0 and rows.stop == self.count:
                return self.inputs, self.targets
        else:
            index = torch.as_tensor(rows, device=self.targets.device)
        if isinstance(self.inputs, dict):
            inputs: Inputs = {name: part[index] for name, part in self.inputs.items()}
        else:
            inputs = self.inputs[index]
        return inputs, self.targets[index]


class CollatedExamples:
    """Examples that a collate function puts together anew for every batch.

    Parameters
    ----------
    examples : list
        As the data set gave them.
    collate : callable
    arrange : callable
        What makes inputs and targets on the device of what ``collate`` returns.
    """

    def __init__(
        self,
        examples: list[Any],
        collate: Collate,
        arrange: Callable[[Any], tuple[Inputs, Tensor]],
    ) -> None:
        self._examples, self._collate, self._arrange = examples, collate, arrange
        self.count = len(examples)
        if not self.count:
            raise ValueError("data has 0 examples; it must have at least one")

    def batch(self, rows: IntArray | slice) -> tuple[Inputs, Tensor]:
        """Collate some examples."""
        if isinstance(rows, slice):
            examples = self._examples[rows]
        else:
            examples = [self._examples[row] for row in rows]
        inputs, targets = self._arrange(self._collate(examples))
        for name, tensor in (_named(inputs) | {"targets": targets}).items():
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
    """Read what an objective is given, once.

    Parameters
    ----------
    data : tuple, mapping, Dataset or DataLoader
        See :class:`~fedtrellis.objectives.torch_objective.TorchObjective`.
    collate : callable, optional
        For a data set. A loader has its own.
    target : str
        The key of the targets where a batch is a mapping.
    dtype : torch.dtype
        Of floating-point data.
    device : torch.device

    Raises
    ------
    ValueError
        The data are none of these, or a batch has no inputs or targets.
    """

    def arrange(batch: Any) -> tuple[Inputs, Tensor]:
        inputs, targets = _split(batch, target)
        targets = _on_device("targets", targets, dtype, device)
        if not (targets.is_floating_point() or targets.dtype == torch.bool):
            targets = targets.long()
        if isinstance(inputs, Mapping):
            named = {
                str(name): _on_device(f"inputs[{name!r}]", part, dtype, device)
                for name, part in inputs.items()
            }
            return named, targets
        return _on_device("inputs", inputs, dtype, device), targets

    if isinstance(data, DataLoader):
        if collate is not None:
            raise ValueError("collate_fn is given beside a DataLoader, which has one")
        if not _in_any_order(data):
            # in the order of its own sampler, the same in every process
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return _joined(arrange(batch) for batch in data)
        data, collate = data.dataset, data.collate_fn
    elif isinstance(data, tuple | list | Mapping):
        if collate is not None:
            raise ValueError("collate_fn is given beside tensors; it is for a Dataset")
        return TensorExamples(*arrange(data))
    if isinstance(data, TensorDataset) and collate in (None, default_collate):
        return TensorExamples(*arrange(data.tensors))
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ValueError(
            f"data is a {type(data).__name__}; it must be (inputs, targets), a mapping "
            "of tensors, a Dataset with a length, or a DataLoader"
        )
    # transforms that draw from PyTorch's random state draw alike in every process
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        count = len(data)
        if collate not in (None, default_collate):
            assert collate is not None
            examples = [data[i] for i in range(count)]
            return CollatedExamples(examples, collate, arrange)
        return _joined(
            arrange(default_collate([data[i] for i in range(start, stop)]))
            for start in range(0, count, _READ_TOGETHER)
            for stop in [min(start + _READ_TOGETHER, count)]
        )


def _in_any_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader goes through all of its data set, in order or shuffled."""
    sampler = loader.sampler
    return (
        not isinstance(loader.dataset, IterableDataset)
        and type(loader.batch_sampler) is BatchSampler
        and (
            type(sampler) is SequentialSampler
            or (
                type(sampler) is RandomSampler
                and not sampler.replacement
                and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
            )
        )
    )


def _split(batch: Any, target: str) -> tuple[Any, Any]:
    """Tell the inputs of a batch from its targets."""
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


def _named(inputs: Inputs) -> dict[str, Tensor]:
    if not isinstance(inputs, dict):
        return {"inputs": inputs}
    return {f"inputs[{name!r}]": part for name, part in inputs.items()}


def _joined(batches: Iterable[tuple[Inputs, Tensor]]) -> TensorExamples:
    """Make one set of tensors of the batches of a pass."""
    parts = list(batches)
    if not parts:
        raise ValueError("data has 0 examples; it must have at least one")
    first = parts[0][0]
    targets = _concatenated("targets", [targets for _, targets in parts])
    if isinstance(first, dict):
        inputs: Inputs = {
            name: _concatenated(name, [part[name] for part, _ in parts])  # type: ignore[index]
            for name in first
        }
        return TensorExamples(inputs, targets)
    return TensorExamples(
        _concatenated("inputs", [part for part, _ in parts]),  # type: ignore[misc]
        targets,
    )


def _concatenated(name: str, parts: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"the batches' {name} have examples of the shapes {sorted(shapes)}; give "
            "the Dataset with its collate_fn, which then makes every batch"
        )
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _on_device(
    name: str, data: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return data as a tensor on the device, floating point in the given precision."""
    if isinstance(data, Tensor):
        tensor = data.detach()
    else:
        try:
            # A copy of what NumPy holds: PyTorch must not share read-only memory.
            tensor = torch.tensor(data)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{name} is a {type(data).__name__}; it must be a tensor or an array"
            ) from error
    if tensor.ndim == 0:
        raise ValueError(f"{name} is a scalar; it must have examples on its first axis")
    return tensor.to(device, dtype if tensor.is_floating_point() else None)
