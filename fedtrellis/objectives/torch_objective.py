"""A PyTorch module and its loss as an objective (needs the extra ``torch``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from fedtrellis.objectives.base import Objective, draw_batch
from fedtrellis.objectives.checks import Array, IntArray, check_number

__all__ = ["TorchObjective"]

Point = Array | Sequence[Array]
Loss = Callable[[Tensor, Tensor], Tensor]

# The examples that values() evaluates each point on in one pass, where there are more.
_EXAMPLES_PER_POINT = 128


class TorchObjective(Objective):
    """The mean loss of an ``nn.Module`` over a data set.

    f(x) = weight · ((1/d) Σ_k loss(model_x(input_k), target_k) + (l2/2)‖x‖²), x the
    parameters of ``model`` that require a gradient.

    A point is a list of arrays in the order of ``model.parameters()``, or one flat
    array of them all, each in C order; a model with a single parameter also takes one
    array of its shape. Every method accepts each form, and a gradient has the form of
    the point given. Points and gradients are float64; the model computes in its own
    precision.

    The module given is never changed: a copy of it on ``device``, in evaluation mode
    (no dropout; batch normalisation by its running statistics), keeps the buffers and
    the frozen parameters. PyTorch's own random state is not used.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters that require a gradient are what is learnt.
    loss : callable (outputs, targets) -> scalar Tensor
        The *mean* over the examples it is given, such as ``CrossEntropyLoss()``.
    data : tuple of Tensor or ndarray
        ``(inputs, targets)``, examples on the leading axis. Floating-point data takes
        the model's precision, integer targets become int64; both go to ``device``.
    weight : float, default 1.0
        A positive factor on the whole function.
    l2 : float, default 0.0
    device : str or torch.device, optional
        By default "cuda" where there is one, else "cpu".
    batch_size_limit : int, default 4096
        The most examples in one pass (in :meth:`values` examples times points), which
        bounds the memory; the result does not depend on it but for rounding.
    vectorize : bool, default True
        Whether :meth:`values` evaluates many points at once with ``torch.func.vmap``;
        False is for modules that vmap cannot handle.

    Raises
    ------
    ValueError
        If nothing requires a gradient, inputs and targets disagree or are empty or not
        finite, or a parameter is not allowed; from the methods, if the point does not
        fit the model or the loss is not a scalar.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: tuple[Any, Any],
        *,
        weight: float = 1.0,
        l2: float = 0.0,
        device: str | torch.device | None = None,
        batch_size_limit: int = 4096,
        vectorize: bool = True,
    ) -> None:
        if batch_size_limit < 1:
            raise ValueError(
                f"batch_size_limit is {batch_size_limit!r}; it must be at least 1"
            )
        if len(data) != 2:
            raise ValueError(f"data has {len(data)} parts; it must be inputs, targets")
        self.device = torch.device(
            device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        self.weight = check_number("weight", weight, positive=True)
        self.l2 = check_number("l2", l2)
        self.batch_size_limit = int(batch_size_limit)
        self.vectorize = vectorize
        self._loss = loss
        self._model = copy.deepcopy(model).to(self.device).eval()
        self._initial = {
            name: parameter.detach()
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        if not self._initial:
            raise ValueError("model has no parameter that requires a gradient")
        self.shapes = [tuple(p.shape) for p in self._initial.values()]
        self._sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.shape = (sum(self._sizes),)
        dtype = next(iter(self._initial.values())).dtype
        self._inputs = _on_device("inputs", data[0], dtype, self.device)
        targets = _on_device("targets", data[1], dtype, self.device)
        if not (targets.is_floating_point() or targets.dtype == torch.bool):
            targets = targets.long()
        self._targets = targets
        self.num_examples = len(self._inputs)
        if self.num_examples != len(targets) or self.num_examples == 0:
            raise ValueError(
                f"inputs has {self.num_examples} examples and targets {len(targets)}; "
                "they must have the same number, at least one"
            )

    # -- points

    def initial_point(self) -> list[Array]:
        """Return the parameters that the module had when it was given."""
        return [_to_numpy(parameter) for parameter in self._initial.values()]

    def parameters_to_vector(self, parameters: Sequence[Array]) -> Array:
        """Return a list of arrays as one flat array of shape (p,)."""
        arrays = self._layers(parameters, ())
        return np.concatenate([array.ravel() for array in arrays])

    def vector_to_parameters(self, vector: Array) -> list[Array]:
        """Return a flat array of shape (p,) as a list of arrays, views of it."""
        return self._layers(np.asarray(vector, dtype=np.float64).reshape(-1), ())

    def _layers(self, x: Point, batch: tuple[int, ...]) -> list[Array]:
        """Return a point, or a batch of them, as a list of float64 arrays."""
        if isinstance(x, np.ndarray):
            array = np.asarray(x, dtype=np.float64)
            if len(self.shapes) == 1 and array.shape == (*batch, *self.shapes[0]):
                return [array]
            if array.shape != (*batch, *self.shape):
                wanted = (*batch, *self.shape)
                raise ValueError(f"x has shape {array.shape}; it must be {wanted}")
            parts = np.split(array, np.cumsum(self._sizes)[:-1], axis=-1)
        else:
            parts = [np.asarray(part, dtype=np.float64) for part in x]
            wanted_shapes = [(*batch, *shape) for shape in self.shapes]
            if [part.shape for part in parts] != wanted_shapes:
                given = [part.shape for part in parts]
                raise ValueError(f"x has shapes {given}; they must be {wanted_shapes}")
        shapes = self.shapes
        return [p.reshape((*batch, *s)) for p, s in zip(parts, shapes, strict=True)]

    def _like(self, x: Point, layers: list[Array]) -> Any:
        """Return ``layers`` in the form that the point x has."""
        if not isinstance(x, np.ndarray):
            return layers
        if len(layers) == 1:
            return layers[0].reshape(x.shape)
        return np.concatenate([layer.ravel() for layer in layers])

    def _tensors(self, layers: list[Array]) -> dict[str, Tensor]:
        """Return arrays as the tensors that the model computes with."""
        return {
            name: torch.tensor(layer, dtype=initial.dtype, device=self.device)
            for layer, (name, initial) in zip(
                layers, self._initial.items(), strict=True
            )
        }

    # -- evaluation

    def _chunks(
        self, rows: IntArray | None, size: int
    ) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield inputs, targets and their share of the examples, chunk by chunk."""
        if rows is None:
            count = self.num_examples
            inputs, targets = self._inputs, self._targets
        else:
            count = len(rows)
            index = torch.as_tensor(rows, device=self.device)
            inputs, targets = self._inputs[index], self._targets[index]
        for start in range(0, count, size):
            stop = min(start + size, count)
            # the last chunk is short: f = Σ (chunk's examples / d) · chunk's mean
            yield inputs[start:stop], targets[start:stop], (stop - start) / count

    def _mean_loss(
        self, tensors: dict[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> Tensor:
        outputs = torch.func.functional_call(self._model, tensors, (inputs,))
        loss = self._loss(outputs, targets)
        if loss.ndim != 0:
            raise ValueError(
                f"loss returned shape {tuple(loss.shape)}; "
                "it must return a scalar, the mean over the examples"
            )
        return loss

    def _penalty(self, layers: list[Array]) -> float:
        # (l2/2)‖x‖²
        return 0.5 * self.l2 * sum(float(np.vdot(layer, layer)) for layer in layers)

    def _value_and_gradient(self, x: Point, rows: IntArray | None) -> tuple[float, Any]:
        layers = self._layers(x, ())
        tensors = self._tensors(layers)
        parameters = [tensor.requires_grad_() for tensor in tensors.values()]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for inputs, targets, share in self._chunks(rows, self.batch_size_limit):
            with torch.enable_grad():
                loss = self._mean_loss(tensors, inputs, targets)
                gradients = torch.autograd.grad(
                    loss, parameters, allow_unused=True, materialize_grads=True
                )
            total += share * loss.detach()
            for accumulated, gradient in zip(sums, gradients, strict=True):
                accumulated.add_(gradient, alpha=share)
        # weight ((1/d) Σ ∇loss + l2 x)
        result = [_to_numpy(accumulated) for accumulated in sums]
        for part in result:
            # in place: what an operator makes of an array of no axes is no array
            part *= self.weight
        if self.l2:
            for part, layer in zip(result, layers, strict=True):
                part += (self.weight * self.l2) * layer
        value = self.weight * (float(total) + self._penalty(layers))
        return value, self._like(x, result)

    def value(self, x: Point) -> float:
        """Return f(x), over chunks of at most ``batch_size_limit`` examples."""
        layers = self._layers(x, ())
        tensors = self._tensors(layers)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for inputs, targets, share in self._chunks(None, self.batch_size_limit):
                total += share * self._mean_loss(tensors, inputs, targets)
        return self.weight * (float(total) + self._penalty(layers))

    @overload
    def gradient(self, x: Array) -> Array: ...
    @overload
    def gradient(self, x: Sequence[Array]) -> list[Array]: ...
    def gradient(self, x: Point) -> Array | list[Array]:
        """Return ∇f(x), in the form of x."""
        gradient: Array | list[Array] = self._value_and_gradient(x, None)[1]
        return gradient

    @overload
    def value_and_gradient(self, x: Array) -> tuple[float, Array]: ...
    @overload
    def value_and_gradient(self, x: Sequence[Array]) -> tuple[float, list[Array]]: ...
    def value_and_gradient(self, x: Point) -> tuple[float, Array | list[Array]]:
        """Return f(x) and ∇f(x), at the price of ∇f(x)."""
        return self._value_and_gradient(x, None)

    @overload
    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int
    ) -> Array: ...
    @overload
    def stochastic_gradient(
        self, x: Sequence[Array], rng: np.random.Generator, batch_size: int
    ) -> list[Array]: ...
    def stochastic_gradient(
        self, x: Point, rng: np.random.Generator, batch_size: int
    ) -> Array | list[Array]:
        """Return the gradient on a mini-batch that ``rng`` draws, in the form of x."""
        rows = draw_batch(rng, self.num_examples, batch_size)
        gradient: Array | list[Array] = self._value_and_gradient(x, rows)[1]
        return gradient

    def curvature(self, x: Point, direction: Point) -> float:
        """Return dᵀ∇²f(x)d, by differentiating γ ↦ f(x + γd) twice.

        With kinks in the model (ReLU) it is that of the piece that x lies on.

        Raises
        ------
        RuntimeError
            PyTorch cannot differentiate an operation of the model or the loss twice.
        """
        layers, along = self._layers(x, ()), self._layers(direction, ())
        tensors, changes = self._tensors(layers), self._tensors(along)

        def on_line(step: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            moved = {name: p + step * changes[name] for name, p in tensors.items()}
            return self._mean_loss(moved, inputs, targets)

        second = torch.func.grad(torch.func.grad(on_line))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        start = next(iter(tensors.values())).new_zeros(())
        for inputs, targets, share in self._chunks(None, self.batch_size_limit):
            total += share * second(start, inputs, targets)
        # weight ((1/d) Σ d²loss/dγ² + l2 ‖d‖²)
        return self.weight * (float(total) + 2.0 * self._penalty(along))

    def values(
        self,
        points: Point,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of m points, evaluated together.

        Parameters
        ----------
        points : ndarray of shape (m, p), or list of ndarrays of shape (m, *layer shape)
        rng : numpy.random.Generator, optional
            Draws the mini-batch; not used without ``batch_size``.
        batch_size : int, optional
            Estimate all m values from one mini-batch that they share.

        Returns
        -------
        ndarray of shape (m,)
        """
        rows = None
        if batch_size is not None:
            if rng is None:
                raise ValueError("rng is None; batch_size needs a random generator")
            rows = draw_batch(rng, self.num_examples, batch_size)
        # a list's layers and an array have the points on the leading axis
        first = points if isinstance(points, np.ndarray) else next(iter(points), ())
        count = np.shape(first)[0]
        layers = self._layers(points, (count,))
        losses = np.zeros(count)
        # Examples times points in a pass stay within the limit, which bounds the
        # activations; few examples for many points would make slow, thin products.
        limit = self.batch_size_limit
        examples = self.num_examples if rows is None else len(rows)
        size = min(limit, examples, max(_EXAMPLES_PER_POINT, limit // max(count, 1)))
        step = max(1, limit // size)
        with torch.no_grad():
            for start in range(0, count, step):
                part = slice(start, start + step)
                tensors = self._tensors([layer[part] for layer in layers])
                losses[part] = self._losses(tensors, rows, size)
        if self.l2:
            for layer in layers:
                axes = tuple(range(1, layer.ndim))
                losses += 0.5 * self.l2 * np.square(layer).sum(axis=axes)
        return self.weight * losses

    def _losses(
        self, tensors: dict[str, Tensor], rows: IntArray | None, size: int
    ) -> Array:
        """Return the mean loss at each of the stacked points."""
        count = len(next(iter(tensors.values())))
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        if self.vectorize:
            at_points = torch.func.vmap(self._mean_loss, in_dims=(0, None, None))
            for inputs, targets, share in self._chunks(rows, size):
                total += share * at_points(tensors, inputs, targets)
            return _to_numpy(total)
        for i in range(count):
            point = {name: tensor[i] for name, tensor in tensors.items()}
            for inputs, targets, share in self._chunks(rows, self.batch_size_limit):
                total[i] += share * self._mean_loss(point, inputs, targets)
        return _to_numpy(total)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` where targets are class labels, else ``{}``.

        Targets are class labels where they are integers of shape (d,) and the model's
        outputs have shape (d, classes).
        """
        if self._targets.dtype != torch.int64 or self._targets.ndim != 1:
            return {}
        tensors = self._tensors(self._layers(x, ()))
        correct = 0
        with torch.no_grad():
            for inputs, targets, _ in self._chunks(None, self.batch_size_limit):
                outputs = torch.func.functional_call(self._model, tensors, (inputs,))
                if outputs.ndim != 2:
                    return {}
                correct += int((outputs.argmax(dim=1) == targets).sum())
        return {"accuracy": correct / self.num_examples}


def _on_device(
    name: str, data: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return data as a tensor on the device, floating point in the given precision."""
    # A copy of what NumPy holds: PyTorch must not share read-only memory.
    tensor = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    if tensor.ndim == 0:
        raise ValueError(f"{name} is a scalar; it must have examples on its first axis")
    if tensor.is_floating_point():
        tensor = tensor.to(device=device, dtype=dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has NaN or infinite entries; all must be finite")
    return tensor.to(device)


def _to_numpy(tensor: Tensor) -> Array:
    # np.array copies: a float64 tensor on the CPU would be shared
    return np.array(tensor.detach().to("cpu", torch.float64).numpy())
