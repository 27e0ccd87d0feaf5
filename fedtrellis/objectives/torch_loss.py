"""The mean loss of a PyTorch module over its examples, from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedtrellis.objectives.checks import IntArray
from fedtrellis.objectives.torch_data import CollatedExamples, Inputs, TensorExamples
from fedtrellis.objectives.torch_linear import (
    is_softmax_regression,
    minus_labels,
    softmax_slopes,
)
from fedtrellis.objectives.torch_module import FlatModule

__all__ = ["Loss", "MeanLoss"]

Loss = Callable[[Any, Tensor], Tensor]

# The examples that values() evaluates each point on in one pass, where there are more.
_EXAMPLES_PER_POINT = 128


class MeanLoss:
    """(1/d) Σ_k loss(model(input_k), target_k), where the module stands or elsewhere.

    Parameters
    ----------
    flat : FlatModule
    loss : callable (outputs, targets) -> scalar Tensor
        The mean over the examples it is given.
    examples : TensorExamples or CollatedExamples
    limit : int
        The most examples in one pass.
    vectorize : bool
        Whether many points go through ``torch.func.vmap``.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Loss,
        examples: TensorExamples | CollatedExamples,
        limit: int,
        vectorize: bool,
    ) -> None:
        self.flat, self.loss, self.examples = flat, loss, examples
        self.limit, self.vectorize = limit, vectorize
        #: The labels, where :func:`~.torch_linear.softmax_slopes` gives the gradient.
        self.labels: Tensor | None = None
        if is_softmax_regression(flat, loss, examples):
            assert isinstance(examples, TensorExamples)
            self.labels = minus_labels(examples.targets, flat.layers[0])

    def _passes(
        self, rows: IntArray | None, size: int
    ) -> Iterator[tuple[Inputs, Tensor, float]]:
        """Yield inputs, targets and their share of the examples, pass by pass."""
        count = self.examples.count if rows is None else len(rows)
        for start in range(0, count, size):
            stop = min(start + size, count)
            part = slice(start, stop) if rows is None else rows[start:stop]
            # the last pass is short: f = Σ (pass's examples / d) · pass's mean
            yield *self.examples.batch(part), (stop - start) / count

    def _forward(self, inputs: Inputs) -> Any:
        module = self.flat.module
        return module(**inputs) if isinstance(inputs, dict) else module(inputs)

    def _mean(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self.loss(outputs, targets)
        if loss.ndim != 0:
            raise ValueError(
                f"loss returned shape {tuple(loss.shape)}; "
                "it must return a scalar, the mean over the examples"
            )
        return loss

    def at(
        self, parameters: Mapping[str, Tensor], inputs: Inputs, targets: Tensor
    ) -> Tensor:
        """Return the loss of a batch with other parameters, for ``torch.func``."""
        module = self.flat.module
        named, args = (inputs, ()) if isinstance(inputs, dict) else ({}, (inputs,))
        outputs = torch.func.functional_call(module, dict(parameters), args, named)
        return self._mean(outputs, targets)

    # -- where the module stands

    def slopes(
        self, rows: IntArray | None, valued: bool = False
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradient, and the value in parts.

        Parameters
        ----------
        rows : ndarray of int or None
            The examples; None: all.
        valued : bool
            Whether the value is wanted; else there may be none.

        Returns
        -------
        slopes : list of Tensor
            New ones, of the parameters' shapes. From one pass: in the module's dtype;
            from several: added up in float64.
        losses : list of Tensor
            What the passes add to the value, still requiring a gradient.
        """
        count = self.examples.count if rows is None else len(rows)
        if count <= self.limit:
            part = slice(0, count) if rows is None else rows
            if self.labels is not None and not valued:
                return softmax_slopes(self.flat.layers, *self.labelled(part)), []
            loss = self._loss(*self.examples.batch(part))
            return self.flat.slopes(loss), [loss]
        total = torch.zeros_like(self.flat.point, dtype=torch.float64)
        sums, losses = self.flat.views(total), []
        for inputs, targets, share in self._passes(rows, self.limit):
            loss = self._loss(inputs, targets)
            for sum_, slope in zip(sums, self.flat.slopes(loss), strict=True):
                sum_.add_(slope, alpha=share)
            losses.append(share * loss.detach())
        return sums, losses

    def labelled(self, rows: IntArray | slice) -> tuple[Tensor, Tensor]:
        """Return the inputs and the :attr:`labels` of some examples."""
        inputs, labels = self.examples.batch(rows)[0], self.labels
        assert isinstance(inputs, Tensor)
        assert labels is not None
        index: Any = rows
        if not isinstance(rows, slice):
            index = torch.as_tensor(rows, device=labels.device)
        return inputs, labels[index]

    def _loss(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Return the loss of a batch, to be differentiated."""
        if torch.is_grad_enabled():  # the context costs as much as a small layer
            return self._mean(self._forward(inputs), targets)
        with torch.enable_grad():
            return self._mean(self._forward(inputs), targets)

    def value(self, rows: IntArray | None = None) -> float:
        """Return the value on some examples (None: all), added up in float64."""
        total = 0.0
        with torch.no_grad():
            for inputs, targets, share in self._passes(rows, self.limit):
                total += float(share * self._mean(self._forward(inputs), targets))
        return total

    def accuracy(self) -> float | None:
        """Return the share of targets whose class has the highest output.

        None where targets are no class labels: integers of shape (d, ...), for outputs
        of shape (d, classes, ...), as PyTorch's ``CrossEntropyLoss`` has them.
        """
        correct = total = 0
        with torch.no_grad():
            for inputs, targets, _ in self._passes(None, self.limit):
                if targets.dtype != torch.int64:
                    return None
                outputs = self._forward(inputs)
                if not isinstance(outputs, Tensor) or outputs.ndim < 2:
                    return None
                best = outputs.argmax(dim=1)
                if best.shape != targets.shape:
                    return None
                correct += int((best == targets).sum())
                total += targets.numel()
        return correct / total

    # -- elsewhere

    def curvature(self, point: Tensor, direction: Tensor) -> float:
        """Return d²/dγ² of the value at point + γ direction, at γ = 0.

        Parameters
        ----------
        point, direction : Tensor of shape (p,)
        """
        named = self.flat.named

        def on_line(step: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
            return self.at(named(point + step * direction), inputs, targets)

        second = torch.func.grad(torch.func.grad(on_line))
        start = point.new_zeros(())
        return sum(
            float(share * second(start, inputs, targets))
            for inputs, targets, share in self._passes(None, self.limit)
        )

    def values(self, points: Tensor, rows: IntArray | None) -> Tensor:
        """Return the value at each of m points, a float64 Tensor of shape (m,).

        Parameters
        ----------
        points : Tensor of shape (m, p)
        rows : ndarray of int or None
            The examples, the same for all points; None: all.
        """
        count = len(points)
        # Examples times points in a pass stay within the limit, which bounds the
        # activations; few examples for many points would make slow, thin products.
        examples = self.examples.count if rows is None else len(rows)
        fit = self.limit // max(count, 1)
        size = min(self.limit, examples, max(_EXAMPLES_PER_POINT, fit))
        step = max(1, self.limit // size)
        total = torch.zeros(count, dtype=torch.float64, device=points.device)
        with torch.no_grad():
            for first in range(0, count, step):
                part = slice(first, first + step)
                if self.vectorize:
                    self._add_values(points[part], rows, size, total[part])
                    continue
                for point, sum_ in zip(points[part], total[part], strict=True):
                    for inputs, targets, share in self._passes(rows, self.limit):
                        named = self.flat.named(point)
                        sum_ += share * self.at(named, inputs, targets)
        return total

    def _add_values(
        self, points: Tensor, rows: IntArray | None, size: int, total: Tensor
    ) -> None:
        at_points = torch.func.vmap(self.at, in_dims=(0, None, None))
        for inputs, targets, share in self._passes(rows, size):
            total += share * at_points(self.flat.named(points), inputs, targets)
