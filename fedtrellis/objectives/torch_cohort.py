"""Many PyTorch objectives with one model, evaluated in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtrellis.objectives.checks import Array, IntArray
from fedtrellis.objectives.torch_data import TensorExamples
from fedtrellis.objectives.torch_linear import softmax_slopes
from fedtrellis.objectives.torch_points import TENSOR_DTYPES, to_numpy

if TYPE_CHECKING:
    from fedtrellis.objectives.torch_objective import TorchObjective

__all__ = ["TorchCohort", "can_stack"]

# What vmap adds to a pass is worth about as many passes of a small model.
_WORTHWHILE = 8
# On a CPU: parameters times examples of a client whose own pass is busy with arithmetic
# and not with calling it; from some five times as many on the batch is the slower one.
_LIGHT = 100_000


class TorchCohort:
    """f_1, …, f_n of one model and loss, on data of their own.

    A pass is one forward pass of ``torch.func.vmap`` over stacked parameters and
    examples, for the clients with equally many examples, and one backward pass.

    Parameters
    ----------
    objectives : sequence of TorchObjective
        For which :func:`can_stack` holds.

    Attributes
    ----------
    count : int
        n.
    num_examples : list of int
        Of each.
    entries : int
        Numbers in the copies that it keeps of the data.
    """

    def __init__(self, objectives: Sequence[TorchObjective]) -> None:
        self._objectives = list(objectives)
        self._first = self._objectives[0]
        self.count = len(self._objectives)
        self.num_examples = [f.num_examples for f in self._objectives]
        self._weights = self._column([f.weight for f in self._objectives], 1.0)
        self._l2 = self._column([f.weight * f.l2 for f in self._objectives], 0.0)
        # then the labels stand where the targets do
        self._closed = all(f.mean_loss.labels is not None for f in objectives)
        self._whole = list(self._groups([None] * self.count))
        self.entries = sum(
            part.numel()
            for _, inputs, targets in self._whole
            for part in (
                targets,
                *(inputs.values() if isinstance(inputs, dict) else (inputs,)),
            )
        )

    def _groups(
        self, rows: Sequence[IntArray | None]
    ) -> Iterator[tuple[list[int], Any, Tensor]]:
        """Yield clients with equally many examples, and their examples stacked."""
        sizes: dict[int, list[int]] = defaultdict(list)
        for i, chosen in enumerate(rows):
            size = self.num_examples[i] if chosen is None else len(chosen)
            sizes[size].append(i)
        limit = self._first.batch_size_limit
        for size, clients in sizes.items():
            step = max(1, limit // size)
            for start in range(0, len(clients), step):
                part = clients[start : start + step]
                batches = []
                for i in part:
                    chosen = rows[i]
                    index = slice(0, size) if chosen is None else chosen
                    loss = self._objectives[i].mean_loss
                    read = loss.labelled if self._closed else loss.examples.batch
                    batches.append(read(index))
                yield (
                    part,
                    _stacked([inputs for inputs, _ in batches]),
                    torch.stack([targets for _, targets in batches]),
                )

    def _slopes(self, points: Tensor, rows: Sequence[IntArray | None] | None) -> Tensor:
        """Return the mean losses' gradients at points (n, p), in the model's dtype."""
        mean_loss = self._first.mean_loss
        flat = mean_loss.flat
        slopes = torch.empty_like(points)
        at_points = None if self._closed else torch.func.vmap(mean_loss.at)
        for clients, inputs, targets in (
            self._whole if rows is None else self._groups(rows)
        ):
            everybody = len(clients) == self.count
            part = points if everybody else points[clients]
            gradients: Sequence[Tensor]
            if at_points is None:
                gradients = softmax_slopes(flat.views(part), inputs, targets)
            else:
                gradients = _differentiated(
                    at_points, flat.named(part), inputs, targets
                )
            joined = torch.cat([g.reshape(len(clients), -1) for g in gradients], dim=1)
            if everybody:
                return joined
            slopes[clients] = joined
        return slopes

    def _gradients(
        self, points: Tensor, rows: Sequence[IntArray | None] | None
    ) -> Tensor:
        """Return the gradients at points (n, p), in the points' dtype."""
        g = self._slopes(points.to(self._first.flat.dtype), rows).to(points.dtype)
        # weight ((1/d) Σ ∇loss + l2 x)
        if self._weights is not None:
            g = g * self._weights.to(g.dtype)
        if self._l2 is not None:
            g = g + points * self._l2.to(g.dtype)
        return g

    def _column(self, numbers: list[float], neutral: float) -> Tensor | None:
        """Return every client's number, shape (n, 1); None where all are neutral."""
        if all(number == neutral for number in numbers):
            return None
        column = torch.tensor(numbers, dtype=torch.float64, device=self._first.device)
        return column[:, None]

    def _tensor(self, points: Array) -> tuple[Tensor, np.dtype[Any]]:
        given = np.asarray(points)
        dtype = given.dtype if given.dtype in TENSOR_DTYPES else np.dtype(np.float64)
        flat = given.reshape(self.count, -1).astype(dtype)
        if flat.shape[1:] != self._first.shape:
            raise ValueError(
                f"points has shape {given.shape}; it must be "
                f"{(self.count, *self._first.shape)}, or of the layers' shapes"
            )
        return torch.from_numpy(flat).to(self._first.device), dtype

    def gradients(
        self, points: Array, rows: Sequence[IntArray | None] | None = None
    ) -> Array:
        """Return ∇f_i(x_i) for every client.

        Parameters
        ----------
        points : ndarray of shape (n, p)
            x_1, …, x_n, or (n, *shape) for a model of one array.
        rows : sequence of (ndarray of int or None), optional
            Every client's mini-batch; None: all of its examples.

        Returns
        -------
        ndarray of the shape and dtype of ``points``
        """
        tensor, dtype = self._tensor(points)
        return to_numpy(self._gradients(tensor, rows), dtype).reshape(np.shape(points))

    def local_steps(
        self,
        points: Array,
        sizes: Sequence[float],
        rows: Sequence[Sequence[IntArray | None]] | None = None,
        *,
        pull: float = 0.0,
    ) -> Array:
        """Take every client's steps; see :meth:`TorchObjective.local_steps`.

        Parameters
        ----------
        points : ndarray of shape (n, p)
            Or (n, *shape) for a model of one array.
        sizes : sequence of float
            γ_1, γ_2, …, the same for everybody.
        rows : sequence of sequences, optional
            For every step every client's mini-batch.
        pull : float, default 0.0

        Returns
        -------
        ndarray of the shape and dtype of ``points``
        """
        point, dtype = self._tensor(points)
        start = point.clone() if pull else point
        for k, size in enumerate(sizes):
            g = self._gradients(point, None if rows is None else rows[k])
            if pull:
                g = g + (point - start).mul_(pull)
            # x_i ← x_i − γ_k (∇f_i(x_i) + pull (x_i − x)), for all i at once
            point.sub_(g * size)
        return to_numpy(point, dtype).reshape(np.shape(points))


def _differentiated(
    at_points: Any, layers: dict[str, Tensor], inputs: Any, targets: Tensor
) -> Sequence[Tensor]:
    """The gradients of stacked models by autograd."""
    learnt = {name: layer.detach().requires_grad_() for name, layer in layers.items()}
    with torch.enable_grad():
        # each client's loss knows its own parameters alone, so the gradient of the sum
        # is the stack of the gradients
        total = at_points(learnt, inputs, targets).sum()
    return torch.autograd.grad(
        total, list(learnt.values()), allow_unused=True, materialize_grads=True
    )


def can_stack(objectives: Sequence[TorchObjective]) -> bool:
    """Whether the objectives differ in data and weights alone, and fit one pass.

    On a CPU there also have to be enough of each number of examples, and models and
    data so small that a batch saves time.
    """
    first = objectives[0]
    sizes = {f.num_examples for f in objectives}
    if first.device.type == "cpu" and (
        len(objectives) < _WORTHWHILE * len(sizes)
        or first.shape[0] * max(sizes) > _LIGHT
    ):
        return False
    return all(
        f.mean_loss.vectorize
        and f.device == first.device
        and f.flat.dtype == first.flat.dtype
        and f.shapes == first.shapes
        and f.flat.parameters.keys() == first.flat.parameters.keys()
        and f.num_examples <= f.batch_size_limit
        and isinstance(f.mean_loss.examples, TensorExamples)
        and _example_shapes(f) == _example_shapes(first)
        and _same_module(f.flat.module, first.flat.module, set(f.flat.parameters))
        and _same(f.mean_loss.loss, first.mean_loss.loss)
        for f in objectives
    )


def _stacked(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: torch.stack([p[name] for p in parts]) for name in parts[0]}
    return torch.stack(parts)


def _example_shapes(objective: TorchObjective) -> Any:
    examples = objective.mean_loss.examples
    assert isinstance(examples, TensorExamples)
    inputs = examples.inputs
    parts = inputs if isinstance(inputs, dict) else {"": inputs}
    return {
        name: (part.shape[1:], part.dtype)
        for name, part in (parts | {"targets": examples.targets}).items()
    }


def _same(one: Any, other: Any) -> bool:
    """Whether two settings of a module are equal; False where that cannot be told."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        return _same_module(one, other, set())
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    plain = (bool, int, float, str, bytes, set, frozenset, torch.dtype)
    return isinstance(one, plain) and bool(one == other)


def _same_module(one: nn.Module, other: nn.Module, learnt: set[str]) -> bool:
    """Whether two modules compute alike but for the parameters of these names."""
    if one is other:
        return True
    layers, others = list(one.named_modules()), list(other.named_modules())
    return (
        len(layers) == len(others)
        and _same(_fixed_tensors(one, learnt), _fixed_tensors(other, learnt))
        and all(
            name == other_name
            and type(layer) is type(other_layer)
            and _same(_settings(layer), _settings(other_layer))
            for (name, layer), (other_name, other_layer) in zip(
                layers, others, strict=True
            )
        )
    )


def _settings(layer: nn.Module) -> dict[str, Any]:
    kept_elsewhere = ("_parameters", "_modules", "_buffers", "training")
    return {k: value for k, value in vars(layer).items() if k not in kept_elsewhere}


def _fixed_tensors(module: nn.Module, learnt: set[str]) -> dict[str, Tensor]:
    parameters, buffers = module.named_parameters(), module.named_buffers()
    return {
        name: tensor for name, tensor in (*parameters, *buffers) if name not in learnt
    }
