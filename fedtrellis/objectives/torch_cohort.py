"""Many PyTorch objectives with one model, evaluated in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtrellis.objectives.checks import Array, IntArray
from fedtrellis.objectives.points import FLOATS
from fedtrellis.objectives.torch_data import (
    CollatedExamples,
    Inputs,
    TensorExamples,
)
from fedtrellis.objectives.torch_module import FlatModule, descend, to_numpy

__all__ = ["TorchCohort", "closed_form", "softmax_slopes"]

Rows = Sequence[IntArray | None]


class TorchCohort:
    """f_1, …, f_n of one model and loss, on data of their own.

    A pass is one forward pass of ``torch.func.vmap`` over stacked parameters and
    examples, for the clients with equally many examples, and one backward pass.
    ``TorchObjective.stack`` has found them to be alike. ``entries`` counts the numbers
    in the copies that it keeps of the data.
    """

    def __init__(self, objectives: Sequence[Any]) -> None:
        self._objectives = list(objectives)
        self._first = first = self._objectives[0]
        self._count = len(self._objectives)
        self._weights = self._column([f.weight for f in objectives], 1.0)
        self._l2 = self._column([f.weight * f.l2 for f in objectives], 0.0)
        self._closed = all(f.closed is not None for f in objectives)
        self._at_points = torch.func.vmap(first.mean_loss)
        self._whole = list(self._groups([None] * self._count))
        self.entries = sum(
            part.numel()
            for _, inputs, targets in self._whole
            for part in (targets, *inputs.values())
        )

    def _column(self, numbers: list[float], neutral: float) -> Tensor | None:
        """Return every client's number, shape (n, 1); None where all are neutral."""
        if all(number == neutral for number in numbers):
            return None
        column = torch.tensor(numbers, dtype=torch.float64, device=self._first.device)
        return column[:, None]

    def _groups(self, rows: Rows) -> Iterator[tuple[list[int], Inputs, Tensor]]:
        """Yield clients with equally many examples, and their examples stacked."""
        sizes: dict[int, list[int]] = defaultdict(list)
        for i, chosen in enumerate(rows):
            known = self._objectives[i].num_examples
            sizes[known if chosen is None else len(chosen)].append(i)
        for size, clients in sizes.items():
            step = max(1, self._first.batch_size_limit // size)
            for start in range(0, len(clients), step):
                part = clients[start : start + step]
                batches = []
                for i in part:
                    f, chosen = self._objectives[i], rows[i]
                    examples = f.closed if self._closed else f.examples
                    index = slice(0, size) if chosen is None else chosen
                    batches.append(examples.batch(index))
                inputs = {
                    name: torch.stack([given[name] for given, _ in batches])
                    for name in batches[0][0]
                }
                yield part, inputs, torch.stack([targets for _, targets in batches])

    def _slopes(self, points: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return the mean losses' gradients at points (n, p), of their dtype."""
        flat = self._first.flat
        gradients: Sequence[Tensor]
        if self._closed:
            gradients = softmax_slopes(flat.views(points), inputs[""], targets)
        else:
            layers = {
                name: layer.detach().requires_grad_()
                for name, layer in flat.named(points).items()
            }
            with torch.enable_grad():
                # each client's loss knows its own parameters alone, so the gradient of
                # the sum is the stack of the gradients
                total = self._at_points(layers, inputs, targets).sum()
            gradients = torch.autograd.grad(
                total, list(layers.values()), allow_unused=True, materialize_grads=True
            )
        return torch.cat([g.reshape(len(points), -1) for g in gradients], dim=1)

    def _gradients(self, points: Tensor, rows: Rows | None) -> Tensor:
        """Return the gradients at points (n, p), in the points' dtype."""
        computed = points.to(self._first.flat.dtype)
        g = torch.empty_like(computed)
        groups = self._whole if rows is None else self._groups(rows)
        for clients, inputs, targets in groups:
            if len(clients) == self._count:
                g = self._slopes(computed, inputs, targets)
            else:
                g[clients] = self._slopes(computed[clients], inputs, targets)
        # weight ((1/d) Σ ∇loss + l2 x)
        g = g.to(points.dtype)
        if self._weights is not None:
            g = g * self._weights.to(g.dtype)
        if self._l2 is not None:
            g = g + points * self._l2.to(g.dtype)
        return g

    def _tensor(self, points: Array) -> tuple[Tensor, np.dtype[Any]]:
        given = np.asarray(points)
        dtype = given.dtype if given.dtype in FLOATS else np.dtype(np.float64)
        flat = given.reshape(self._count, -1).astype(dtype)
        if flat.shape[1:] != self._first.shape:
            raise ValueError(
                f"points has shape {given.shape}; it must be "
                f"{(self._count, *self._first.shape)}, or of the layers' shapes"
            )
        return torch.from_numpy(flat).to(self._first.device), dtype

    def gradients(self, points: Array, rows: Rows | None = None) -> Array:
        """Return ∇f_i(x_i) of each, in the dtype of the points; see ``Stacked``."""
        tensor, dtype = self._tensor(points)
        return to_numpy(self._gradients(tensor, rows), dtype).reshape(np.shape(points))

    def local_steps(
        self,
        points: Array,
        sizes: Sequence[float],
        rows: Sequence[Rows | None] | None = None,
        *,
        pull: float = 0.0,
    ) -> Array:
        """Take steps of the same sizes for every client, as ``TorchObjective`` does.

        ``rows`` has for every step every client's mini-batch.
        """
        point, dtype = self._tensor(points)

        def gradient(k: int) -> list[Tensor]:
            return [self._gradients(point, None if rows is None else rows[k])]

        descend([point], sizes, gradient, pull)
        return to_numpy(point, dtype).reshape(np.shape(points))


# -- one linear layer and its cross-entropy, whose gradient needs no autograd: PyTorch's
# graph of a small one takes about five times as long to make as the gradient to compute


def closed_form(
    flat: FlatModule, loss: Any, examples: TensorExamples | CollatedExamples
) -> TensorExamples | None:
    """The inputs and −e_y, for :func:`softmax_slopes`; None where it is not the loss.

    It is for ``nn.Linear`` itself, all of whose parameters are learnt, under
    ``nn.CrossEntropyLoss`` or ``cross_entropy`` as they are by default, for one label
    an example; nothing may be hooked to either. Everything else is autograd's.
    """
    module, usual = flat.module, nn.functional.cross_entropy
    plain = type(module) is nn.Linear and _is_plain(module)
    if not plain or len(flat.parameters) != len(list(module.parameters())):
        return None
    if type(loss) is nn.CrossEntropyLoss and _is_plain(loss) and loss.weight is None:
        default = loss.reduction == "mean" and loss.label_smoothing == 0.0
        loss = usual if default and loss.ignore_index < 0 else loss
    if loss is not usual or not isinstance(examples, TensorExamples):
        return None
    inputs, targets, W = examples.inputs.get(""), examples.targets, flat.layers[0]
    if (
        W.dtype not in (torch.float32, torch.float64)
        or inputs is None
        or (inputs.dtype, inputs.shape[1:]) != (W.dtype, W.shape[1:])
        or (targets.dtype, targets.ndim) != (torch.int64, 1)
        or not 0 <= int(targets.min()) <= int(targets.max()) < len(W)
    ):
        return None
    labels = W.new_zeros((len(targets), len(W)))
    return TensorExamples({"": inputs}, labels.scatter_(1, targets.unsqueeze(1), -1.0))


def _is_plain(module: nn.Module) -> bool:
    """Whether calling a module does what its class's ``forward`` does."""
    hooks = (value for name, value in vars(module).items() if name.endswith("_hooks"))
    return not any(hooks) and "forward" not in vars(module)


def softmax_slopes(
    layers: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    r"""The gradient of the mean cross-entropy by W, and by b if there is one.

    New tensors, from W of shape (\*n, c, q) and b of shape (\*n, c), which require no
    gradient, the a_k of shape (\*n, d, q) and their −e_y, of shape (\*n, d, c); n is
    nothing, or the number of models.
    """
    weight, *bias = layers
    turned = weight.transpose(-1, -2)
    if bias:
        add = torch.addmm if weight.ndim == 2 else torch.baddbmm
        scores = add(bias[0].unsqueeze(-2), inputs, turned)
    else:
        scores = inputs @ turned
    # s_k = (1/d) (softmax(W a_k + b) − e_y)
    slopes = torch.softmax(scores, -1).add_(labels).div_(inputs.shape[-2])
    # ∇_W = Σ_k s_k a_kᵀ,  ∇_b = Σ_k s_k
    found = [slopes.transpose(-1, -2) @ inputs]
    return [*found, slopes.sum(-2)] if bias else found
