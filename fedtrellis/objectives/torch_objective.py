"""A PyTorch module and its loss as an objective (needs the extra ``torch``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from fedtrellis.objectives.base import Objective, common_batch, draw_batch
from fedtrellis.objectives.checks import Array, IntArray, check_number
from fedtrellis.objectives.torch_cohort import TorchCohort, can_stack
from fedtrellis.objectives.torch_data import Collate, read_examples
from fedtrellis.objectives.torch_loss import Loss, MeanLoss
from fedtrellis.objectives.torch_module import FlatModule, choose_device, choose_dtype
from fedtrellis.objectives.torch_points import (
    TENSOR_DTYPES,
    Point,
    PointForms,
    to_arrays,
    to_numpy,
)

__all__ = ["TorchObjective"]


# The most examples in one pass, where nobody says.
_EXAMPLES_PER_PASS = 4096


class TorchObjective(Objective):
    """The mean loss of an ``nn.Module`` over a data set.

    f(x) = weight · ((1/d) Σ_k loss(model_x(input_k), target_k) + (l2/2)‖x‖²), x the
    parameters of ``model`` that require a gradient.

    A point is a list of arrays in the order of ``model.parameters()``, or one flat
    array of them all, each in C order; a model with a single parameter also takes one
    array of its shape. Every method accepts each form, and a gradient has the form of
    the point given, and its dtype: float32 for float32 (or float16), else float64. The
    model computes in its own precision, or in ``dtype``.

    The module given is never changed: a copy of it on ``device``, in evaluation mode,
    keeps the buffers and the frozen parameters. Dropout therefore does nothing, and
    batch normalisation goes by its running statistics, which stay; a layer that has
    none, or those of a new one, is refused. PyTorch's own random state is not used, and
    an objective is for one thread at a time.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters that require a gradient are what is learnt; of one dtype.
    loss : callable (outputs, targets) -> scalar Tensor
        The *mean* over the examples it is given, such as ``CrossEntropyLoss()``.
    data : tuple, mapping, Dataset or DataLoader
        ``(inputs, targets)``, tensors or arrays with examples on the leading axis; or a
        mapping of such: the entry ``target_key`` is the targets, the others go to the
        model as keyword arguments. Floating-point data takes the model's precision,
        integer targets become int64; all go to ``device``.

        A ``Dataset`` of pairs or mappings, or a ``DataLoader`` of such batches, is read
        once, here, so that f is one function: a transform that draws draws once. With a
        ``collate_fn`` other than PyTorch's own its examples are kept as they are read,
        and collated anew for every pass, as for texts padded to the longest of a batch.
        Of a loader that goes through its whole data set in any order, data set,
        ``collate_fn`` and batch size are taken; the methods draw their mini-batches by
        the run's seed. One with a sampler of its own is gone through once.
    weight : float, default 1.0
        A positive factor on the whole function.
    l2 : float, default 0.0
    device : str or torch.device, default "auto"
        "auto" is "cuda" where there is a GPU, else "cpu".
    batch_size_limit : int, optional
        The most examples in one pass (in :meth:`values` examples times points), which
        bounds the memory; by default a loader's batch size, else 4096. The result does
        not depend on it but for rounding: gradients of several passes are added up in
        float64, and rounded once.
    vectorize : bool, default True
        Whether :meth:`values` evaluates many points at once, and :meth:`stack` many
        objectives, with ``torch.func.vmap``; False is for modules that vmap cannot
        handle.
    dtype : str or torch.dtype, optional
        "float64", "float32", "float16" or "bfloat16": what the model computes in.
    collate_fn : callable, optional
        For a ``Dataset``: makes a batch of a list of its examples.
    target_key : str, default "labels"
        For mappings.

    Raises
    ------
    ValueError
        If nothing requires a gradient, a layer's batch normalisation has no statistics
        to go by, inputs and targets disagree or are empty or (but for what a
        ``collate_fn`` makes) not finite, or a parameter is not allowed; from the
        methods, if the point does not fit the model or the loss is not a scalar.

    Examples
    --------
    >>> import torch
    >>> from fedtrellis.objectives.torch_objective import TorchObjective
    >>> module = torch.nn.Linear(2, 1, bias=False)
    >>> data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4, 1))
    >>> objective = TorchObjective(module, torch.nn.MSELoss(), data)
    >>> objective.num_examples, objective.shape
    (4, (2,))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        *,
        weight: float = 1.0,
        l2: float = 0.0,
        device: str | torch.device | None = "auto",
        batch_size_limit: int | None = None,
        vectorize: bool = True,
        dtype: str | torch.dtype | None = None,
        collate_fn: Collate | None = None,
        target_key: str = "labels",
    ) -> None:
        if batch_size_limit is None:
            batch_size_limit = getattr(data, "batch_size", None) or _EXAMPLES_PER_PASS
        if batch_size_limit < 1:
            raise ValueError(
                f"batch_size_limit is {batch_size_limit!r}; it must be at least 1"
            )
        self.device = choose_device(device)
        self.weight = check_number("weight", weight, positive=True)
        self.l2 = check_number("l2", l2)
        self.flat = FlatModule(model, self.device, choose_dtype(dtype))
        self._initial = self.flat.point.clone()
        self.shapes = self.flat.shapes
        self._forms = PointForms(self.shapes)
        self.shape = self._forms.flat
        examples = read_examples(
            data,
            collate=collate_fn,
            target=target_key,
            dtype=self.flat.dtype,
            device=self.device,
        )
        self.num_examples = examples.count
        self.mean_loss = MeanLoss(
            self.flat, loss, examples, int(batch_size_limit), vectorize
        )

    # -- points

    def initial_point(self) -> list[Array]:
        """Return the parameters that the module had when it was given.

        In the precision that the model computes in, float32 for float16 and bfloat16.
        """
        vector = self._initial
        wide = np.float64 if vector.dtype == torch.float64 else np.float32
        return [to_numpy(layer, wide) for layer in self.flat.views(vector)]

    def parameters_to_vector(self, parameters: Sequence[Array]) -> Array:
        """Return a list of arrays as one flat array of shape (p,)."""
        return self._forms.vector(parameters)

    def vector_to_parameters(self, vector: Array) -> list[Array]:
        """Return a flat array of shape (p,) as a list of arrays, views of it."""
        return self._forms.layers(np.asarray(vector).reshape(-1))

    # -- evaluation

    def _penalty(self, layers: list[Array]) -> float:
        # (l2/2)‖x‖², in float64
        if not self.l2:
            return 0.0
        wide = [np.asarray(layer, dtype=np.float64) for layer in layers]
        return 0.5 * self.l2 * sum(float(np.vdot(layer, layer)) for layer in wide)

    def _gradient(
        self, x: Point, rows: IntArray | None, valued: bool = False
    ) -> tuple[Any, list[Tensor]]:
        """Return the gradient in the form of x, and the passes' parts of the value."""
        layers = self._forms.layers(x)
        self.flat.set(layers)
        slopes, losses = self.mean_loss.slopes(rows, valued)
        result = to_arrays(slopes, layers[0].dtype)
        # weight ((1/d) Σ ∇loss + l2 x); in place: what an operator makes of an array
        # of no axes is no array
        if self.weight != 1.0:
            for part in result:
                part *= self.weight
        if self.l2:
            for part, layer in zip(result, layers, strict=True):
                part += (self.weight * self.l2) * layer
        return self._forms.like(x, result), losses

    def value(self, x: Point) -> float:
        """Return f(x), over passes of at most ``batch_size_limit`` examples."""
        layers = self._forms.layers(x)
        self.flat.set(layers)
        return self.weight * (self.mean_loss.value() + self._penalty(layers))

    @overload
    def gradient(self, x: Array) -> Array: ...
    @overload
    def gradient(self, x: Sequence[Array]) -> list[Array]: ...
    def gradient(self, x: Point) -> Array | list[Array]:
        """Return ∇f(x), in the form of x."""
        gradient: Array | list[Array] = self._gradient(x, None)[0]
        return gradient

    @overload
    def value_and_gradient(self, x: Array) -> tuple[float, Array]: ...
    @overload
    def value_and_gradient(self, x: Sequence[Array]) -> tuple[float, list[Array]]: ...
    def value_and_gradient(self, x: Point) -> tuple[float, Array | list[Array]]:
        """Return f(x) and ∇f(x), at the price of ∇f(x)."""
        gradient, losses = self._gradient(x, None, valued=True)
        total = sum(float(loss.detach()) for loss in losses)
        return self.weight * (total + self._penalty(self._forms.layers(x))), gradient

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
        gradient: Array | list[Array] = self._gradient(x, rows)[0]
        return gradient

    def local_steps(
        self,
        x: Array,
        sizes: Sequence[float],
        rng: np.random.Generator | None = None,
        batch_size: int = 0,
        *,
        pull: float = 0.0,
    ) -> Array:
        """Take gradient steps from x on the device, and return where they end.

        x_k ← x_{k−1} − γ_k (∇f(x_{k−1}) + pull · (x_{k−1} − x)), k = 1, 2, …, in the
        dtype of x; the model computes in its own.

        Parameters
        ----------
        x : ndarray
            In one array; it is not changed.
        sizes : sequence of float
            γ_1, γ_2, …
        rng : numpy.random.Generator, optional
            Draws a mini-batch for every step, as :meth:`stochastic_gradient` does.
        batch_size : int, default 0
            Examples in a mini-batch; 0: all.
        pull : float, default 0.0
            How strongly the steps are pulled back to x.

        Returns
        -------
        ndarray of the shape of x

        Notes
        -----
        To the last bit what steps on arrays with :meth:`gradient` come to, on a CPU.
        """
        layers = self._forms.layers(x)
        self.flat.set(layers)
        dtype = TENSOR_DTYPES[layers[0].dtype]
        point, points = self.flat.point, self.flat.layers
        if dtype != point.dtype:
            point = torch.tensor(self._forms.vector(x), device=self.device)
            points = self.flat.views(point)
        # layer by layer on a CPU; on other devices every call has its price
        whole = self.device.type != "cpu"
        if whole:
            points = [point]
        starts = [part.clone() for part in points] if pull else points
        for size in sizes:
            rows = None
            if batch_size:
                assert rng is not None
                rows = draw_batch(rng, self.num_examples, batch_size)
            self.flat.set_tensor(point)
            slopes = self.mean_loss.slopes(rows)[0]
            if whole:
                slopes = [torch.cat([slope.reshape(-1) for slope in slopes])]
            for part, start, slope in zip(points, starts, slopes, strict=True):
                g = slope if slope.dtype == dtype else slope.to(dtype)
                if self.weight != 1.0:
                    g.mul_(self.weight)
                if self.l2:
                    g.add_(part * (self.weight * self.l2))
                if pull:
                    g.add_((part - start).mul_(pull))
                # x ← x − γ_k g, in two roundings, as NumPy does it
                part.sub_(g.mul_(size))
        return to_numpy(point, layers[0].dtype).reshape(x.shape)

    @classmethod
    def stack(cls, objectives: Sequence[TorchObjective]) -> TorchCohort | None:
        """Return what evaluates all of them in one call of ``torch.func.vmap``.

        None where they differ in more than data, weight and l2 (another model, loss,
        frozen parameter, device), where an own ``collate_fn`` makes the batches, with
        ``vectorize=False``, where one does not fit one pass, and on a CPU where it
        would gain nothing: fewer than 8 for each number of examples, or more than
        100 000 parameters times examples.
        """
        return TorchCohort(objectives) if can_stack(objectives) else None

    @property
    def batch_size_limit(self) -> int:
        """The most examples in one pass."""
        return self.mean_loss.limit

    @batch_size_limit.setter
    def batch_size_limit(self, limit: int) -> None:
        self.mean_loss.limit = limit

    def curvature(self, x: Point, direction: Point) -> float:
        """Return dᵀ∇²f(x)d, by differentiating γ ↦ f(x + γd) twice.

        With kinks in the model (ReLU) it is that of the piece that x lies on.

        Raises
        ------
        RuntimeError
            PyTorch cannot differentiate an operation of the model or the loss twice.
        """
        along = self._forms.layers(direction)
        second = self.mean_loss.curvature(self._tensor(x), self._tensor(direction))
        # weight ((1/d) Σ d²loss/dγ² + l2 ‖d‖²)
        return self.weight * (second + 2.0 * self._penalty(along))

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
        rows = common_batch(rng, self.num_examples, batch_size)
        # a list's layers and an array have the points on the leading axis
        first = points if isinstance(points, np.ndarray) else next(iter(points), ())
        batch = (np.shape(first)[0],)
        losses = to_numpy(self.mean_loss.values(self._tensor(points, batch), rows))
        if self.l2:
            for layer in self._forms.layers(points, batch):
                axes = tuple(range(1, layer.ndim))
                wide = np.asarray(layer, dtype=np.float64)
                losses += 0.5 * self.l2 * np.square(wide).sum(axis=axes)
        return self.weight * losses

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` where targets are class labels, else ``{}``.

        Targets are class labels where they are integers of shape (d, ...) and the
        model's outputs have shape (d, classes, ...).
        """
        self.flat.set(self._forms.layers(x))
        accuracy = self.mean_loss.accuracy()
        return {} if accuracy is None else {"accuracy": accuracy}

    def _tensor(self, x: Point, batch: tuple[int, ...] = ()) -> Tensor:
        """Return a point, or a batch of them, as vectors on the device."""
        vectors = self._forms.vector(x, batch)
        return torch.tensor(vectors, dtype=self.flat.dtype, device=self.device)
