"""A PyTorch module and its loss as an objective (needs the extra ``torch``)."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from io import BytesIO
from types import BuiltinFunctionType, FunctionType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import attention

from fedtrellis.objectives.base import (
    Array,
    IntArray,
    Objective,
    Point,
    PointForms,
    as_floats,
    check_count,
    draw_batch,
)
from fedtrellis.objectives.torch_module import (
    Batch,
    Collate,
    FlatModule,
    TensorExamples,
    choose_device,
    choose_dtype,
    descend,
    read_examples,
    to_numpy,
)

__all__ = ["TorchObjective"]

BatchLoss = Callable[[Any, Tensor], Tensor]
Rows = Sequence[IntArray | None]

# The most examples in one pass, where nobody sets it.
_EXAMPLES_PER_PASS = 4096
# The examples that values() evaluates each point on in one pass, where there are more.
_EXAMPLES_PER_POINT = 128
# On a CPU: passes of a small model that vmap's own work is worth, and parameters times
# examples of a client whose own pass is busy with arithmetic and not with calling it.
_WORTHWHILE, _LIGHT = 8, 100_000


class ModuleLoss(Objective):
    """A module's mean loss over examples, evaluated where the module stands."""

    #: What holds the module: its ``module``, ``shapes`` and ``dtype``.
    _holder: ClassVar[Any] = FlatModule

    def __init__(
        self,
        model: nn.Module,
        loss: BatchLoss,
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
        self.batch_size_limit = check_count("batch_size_limit", batch_size_limit, 1)
        self.device = choose_device(device)
        self._weigh(weight, l2)
        self.flat = self._holder(model, self.device, choose_dtype(dtype))
        #: of the numbers that a value is computed in
        self.eps = float(torch.finfo(self.flat.dtype).eps)
        self.shapes: list[tuple[int, ...]] = self.flat.shapes
        self._forms = PointForms(self.shapes)
        self.shape = self._forms.flat
        where = self.flat.dtype, self.device
        self.examples = read_examples(data, collate_fn, target_key, *where)
        self.num_examples, self._target = self.examples.count, target_key
        self.loss, self.vectorize = loss, vectorize

    @abstractmethod
    def _value(self, x: Point, rows: IntArray | None) -> float: ...

    @abstractmethod
    def _stand(self, x: Point) -> None:
        """Let the module stand at a point."""

    def _passes(
        self, rows: IntArray | None, size: int | None = None, examples: Any = None
    ) -> Iterator[tuple[Batch, float]]:
        """Yield batches and their share of the examples, pass by pass."""
        count = self.num_examples if rows is None else len(rows)
        size, examples = size or self.batch_size_limit, examples or self.examples
        for start in range(0, count, size):
            stop = min(start + size, count)
            part = slice(start, stop) if rows is None else rows[start:stop]
            # the last pass is short: f = Σ (pass's examples / d) · pass's mean
            yield examples.batch(part), (stop - start) / count

    def _outputs(self, batch: Batch, parameters: Any = None) -> Any:
        named = {k: part for k, part in batch.items() if k and k != self._target}
        args = () if named else (batch[""],)
        if parameters is None:
            return self.flat.module(*args, **named)
        return torch.func.functional_call(self.flat.module, parameters, args, named)

    def mean_loss(self, parameters: dict[str, Tensor] | None, batch: Batch) -> Tensor:
        """Return the mean loss of a batch, where the module stands or elsewhere."""
        loss = self.loss(self._outputs(batch, parameters), batch[self._target])
        if loss.ndim != 0:
            shape = tuple(loss.shape)
            raise ValueError(f"loss returned shape {shape}; it must be the mean, ()")
        return loss

    def _mean_value(self, rows: IntArray | None) -> float:
        """Return the mean loss on some examples (None: all), added up in float64."""
        total = 0.0
        with torch.no_grad():
            for batch, share in self._passes(rows):
                total += float(share * self.mean_loss(None, batch))
        return total

    def _penalty(self, layers: Iterable[Array]) -> float:
        # (l2/2)‖x‖², in float64
        if not self.l2:
            return 0.0
        wide = (np.asarray(layer, dtype=np.float64) for layer in layers)
        return 0.5 * self.l2 * sum(float(np.vdot(layer, layer)) for layer in wide)

    def value(self, x: Point) -> float:
        """Return f(x), over passes of at most ``batch_size_limit`` examples."""
        return self._value(x, None)

    def values(
        self,
        points: Point,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at each of m points; see ``Objective.values``.

        Points have shape (m, p), or are a list of ndarrays of (m, *layer shape).
        """
        rows = draw_batch(rng, self.num_examples, batch_size)
        return self._values(self._forms.vectors(points), rows)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        return np.array([self._value(x, rows) for x in points], dtype=np.float64)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` where targets are class labels, else ``{}``.

        Targets are class labels where they are integers of shape (d, ...) and the
        model's outputs have shape (d, classes, ...).
        """
        self._stand(x)
        correct = total = 0
        with torch.no_grad():
            for batch, _ in self._passes(None):
                outputs, targets = self._outputs(batch), batch[self._target]
                classes = targets.dtype == torch.int64 and isinstance(outputs, Tensor)
                if not classes or outputs.ndim < 2:
                    return {}
                best = outputs.argmax(dim=1)
                if best.shape != targets.shape:
                    return {}
                correct += int((best == targets).sum())
                total += int((targets >= 0).sum())  # −100: none is known
        return {"accuracy": correct / max(total, 1)}


class TorchObjective(ModuleLoss):
    """The mean loss of an ``nn.Module`` over a data set.

    f(x) = weight · ((1/d) Σ_k loss(model_x(input_k), target_k) + (l2/2)‖x‖²), x the
    parameters of ``model`` that require a gradient; they have one dtype.

    A point is a list of arrays in the order of ``model.parameters()``, or one flat
    array of them all, each in C order; a model with a single parameter also takes one
    array of its shape. Every method accepts each form, and a gradient has the form of
    the point given, and its dtype: float32 for float32 (or float16), else float64. The
    model computes in its own precision, or in ``dtype``, "float64", "float32",
    "float16" or "bfloat16".

    The module given is never changed: a copy of it on ``device`` ("auto": "cuda" where
    there is a GPU, else "cpu"), in evaluation mode, keeps the buffers and the frozen
    parameters. Dropout therefore does nothing, and batch normalisation goes by its
    running statistics, which stay; a layer that has none, or those of a new one, is
    refused. PyTorch's own random state is not used, and an objective is for one thread
    at a time.

    ``loss(outputs, targets)`` is a scalar tensor, the *mean* over the examples it is
    given, such as ``CrossEntropyLoss()``.

    ``data`` is ``(inputs, targets)``, tensors or arrays with examples on the leading
    axis, or a mapping of such: its entry ``target_key`` is the targets, the others go
    to the model as keyword arguments. Floating-point data takes the model's precision,
    integer targets become int64; all go to ``device``. A ``Dataset`` of pairs or
    mappings, or a ``DataLoader`` of such batches, is read once, here, so that f is one
    function: a transform that draws draws once. With a ``collate_fn`` other than
    PyTorch's own a data set's examples are kept as they are read, and collated anew for
    every pass, as for texts padded to the longest of a batch. Of a loader that goes
    through its whole data set in any order, data set, ``collate_fn`` and batch size are
    taken; the methods draw their mini-batches by the run's seed. One with a sampler of
    its own is gone through once.

    ``batch_size_limit``, the most examples in one pass (in :meth:`values` examples
    times points), bounds the memory; by default it is a loader's batch size, else 4096.
    The result does not depend on it but for rounding, if the loss is a mean over all
    examples: gradients of several passes are added up in float64, and rounded once.
    ``vectorize`` says whether :meth:`values` evaluates many points at once, and
    :meth:`stack` many objectives, with ``torch.func.vmap``; False is for modules that
    vmap cannot handle. ``weight`` is a positive factor on the whole function.

    A ValueError: nothing requires a gradient, a layer's batch normalisation has no
    statistics to go by, inputs and targets disagree or are empty or (but for what a
    ``collate_fn`` makes) not finite, or a parameter is not allowed; from the methods,
    the point does not fit the model or the loss is not a scalar.

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

    # -- points

    def initial_point(self) -> list[Array]:
        """Return the parameters that the module had when it was given.

        In the precision that the model computes in, float32 for float16 and bfloat16.
        """
        return self._forms.split(to_numpy(self.flat.initial))

    def _tensor(self, x: Point) -> Tensor:
        """Return a point as a new vector of its dtype on the device."""
        return torch.from_numpy(self._forms.vector(x)).to(self.device)

    def _stand(self, x: Point) -> None:
        self.flat.point.copy_(torch.from_numpy(self._forms.vector(x)))

    # -- evaluation

    def _value(self, x: Point, rows: IntArray | None) -> float:
        self._stand(x)
        penalty = self._penalty(self._forms.layers(x))
        return self.weight * (self._mean_value(rows) + penalty)

    def _gradient(self, point: Tensor, rows: IntArray | None) -> Tensor:
        """Return the gradient at a vector, one of its dtype, good until the next one.

        One pass has it in the module's dtype; several are added up in float64.
        """
        self.flat.point.copy_(point)
        total: Any = 0.0
        for batch, share in self._passes(rows, examples=self.closed):
            if self.closed is None:
                slope = self.flat.slope(self.mean_loss(None, batch))
            else:
                slope = softmax_slope(self.flat.layers, *batch.values())
            total = slope if share == 1.0 else total + share * slope.double()
        # weight ((1/d) Σ ∇loss + l2 x)
        g: Tensor = total.to(point.dtype)
        if self.weight != 1.0:
            g.mul_(self.weight)
        if self.l2:
            g.add_(point * (self.weight * self.l2))
        return g

    def _gradient_like(self, x: Point, rows: IntArray | None) -> Any:
        """Return the gradient in the form of x."""
        point = self._tensor(x)
        with torch.enable_grad():
            g = self._gradient(point, rows)
        return self._forms.like(x, to_numpy(g))

    def gradient(self, x: Point) -> Any:
        """Return ∇f(x), in the form of x."""
        return self._gradient_like(x, None)

    def stochastic_gradient(
        self, x: Point, rng: np.random.Generator, batch_size: int
    ) -> Any:
        """Return the gradient on a mini-batch that ``rng`` draws, in the form of x."""
        return self._gradient_like(x, draw_batch(rng, self.num_examples, batch_size))

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

        x_k ← x_{k−1} − γ_k (∇f(x_{k−1}) + pull · (x_{k−1} − x_0)), k = 1, 2, …, for the
        γ_k in ``sizes``, in the dtype of x, one array that is not changed; the model
        computes in its own. With a ``batch_size``, ``rng`` draws a mini-batch for every
        step, as for :meth:`stochastic_gradient`. The end is, to the last bit on a CPU,
        what steps on arrays with :meth:`gradient` come to.
        """
        point = self._tensor(x)

        def gradient(k: int) -> Tensor:
            rows = None
            if batch_size:
                assert rng is not None
                rows = draw_batch(rng, self.num_examples, batch_size)
            return self._gradient(point, rows)

        with torch.enable_grad():
            descend(point, sizes, gradient, pull)
        moved: Array = self._forms.like(x, to_numpy(point))
        return moved

    def curvature(self, x: Point, direction: Point) -> float:
        """Return dᵀ∇²f(x)d, by differentiating γ ↦ f(x + γd) twice.

        With kinks in the model (ReLU) it is that of the piece that x lies on. A
        RuntimeError: PyTorch cannot differentiate an operation twice.
        """
        point, along = (self._tensor(v).to(self.flat.dtype) for v in (x, direction))

        def on_line(step: Tensor, batch: Batch) -> Tensor:
            return self.mean_loss(self.flat.named(point + step * along), batch)

        second = torch.func.grad(torch.func.grad(on_line))
        start, passes = point.new_zeros(()), self._passes(None)
        # attention's other kernels cannot be differentiated twice
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            total = sum(float(share * second(start, batch)) for batch, share in passes)
        # weight ((1/d) Σ d²loss/dγ² + l2 ‖d‖²)
        penalty = 2.0 * self._penalty(self._forms.layers(direction))
        return self.weight * (total + penalty)

    def _values(self, points: Array, rows: IntArray | None) -> Array:
        if not self.vectorize:
            return super()._values(points, rows)
        vectors = torch.tensor(points, dtype=self.flat.dtype, device=self.device)
        total = torch.zeros(len(vectors), dtype=torch.float64, device=self.device)
        # Examples times points in a pass stay within the limit, which bounds the
        # activations; few examples for many points would make slow, thin products.
        limit = self.batch_size_limit
        examples = self.num_examples if rows is None else len(rows)
        fit = limit // max(len(vectors), 1)
        size = min(limit, examples, max(_EXAMPLES_PER_POINT, fit))
        step = max(1, limit // size)
        at_points = torch.func.vmap(self.mean_loss, in_dims=(0, None))
        with torch.no_grad():
            for first in range(0, len(vectors), step):
                part = slice(first, first + step)
                named = self.flat.named(vectors[part])
                for batch, share in self._passes(rows, size):
                    total[part] += share * at_points(named, batch)
        penalties = np.array([self._penalty([x]) for x in points], dtype=np.float64)
        return self.weight * (to_numpy(total) + penalties)

    # -- many objectives

    @cached_property
    def _alike(self) -> bytes | None:
        """What objectives that can be stacked have in common; None: it is not known."""
        if not isinstance(self.examples, TensorExamples):
            return None
        tensors = self.examples.tensors.items()
        shapes = {name: (part.shape[1:], str(part.dtype)) for name, part in tensors}
        parts = str(self.device), self._target, shapes, self.flat.module, self.loss
        return _likeness(*parts)

    @cached_property
    def closed(self) -> TensorExamples | None:
        """The examples for :func:`softmax_slope`, with −e_y; None: not its loss.

        It is for ``nn.Linear``, all of whose parameters are learnt, under
        ``nn.CrossEntropyLoss`` or ``cross_entropy`` with their defaults, for one label
        an example; nothing may be hooked to either.
        """
        module, loss, examples = self.flat.module, self.loss, self.examples
        loss = nn.CrossEntropyLoss() if loss is nn.functional.cross_entropy else loss
        if type(module) is not nn.Linear or not isinstance(examples, TensorExamples):
            return None
        classes, features = module.weight.shape
        plain = nn.Linear(features, classes, module.bias is not None)
        plain = plain.to(self.device, self.flat.dtype).eval()
        made, y = examples.tensors.get(""), examples.tensors[self._target]
        if (
            self.flat.dtype.itemsize < 4
            or made is None
            or (made.dtype, made.shape[1:]) != (self.flat.dtype, (features,))
            or (y.dtype, y.ndim) != (torch.int64, 1)
            or not 0 <= int(y.min()) <= int(y.max()) < classes
            or _likeness(module, loss) != _likeness(plain, nn.CrossEntropyLoss())
        ):
            return None
        labels = made.new_zeros((len(y), classes))
        labels.scatter_(1, y[:, None], -1.0)
        return TensorExamples({"": made, self._target: labels})

    def __getstate__(self) -> dict[str, Any]:
        # identities are those of one process
        return {k: part for k, part in vars(self).items() if k != "_alike"}

    @staticmethod
    def stack(objectives: Sequence[TorchObjective]) -> TorchCohort | None:
        """Return what evaluates all of them in one call of ``torch.func.vmap``.

        None where they differ in more than data, weight and l2, where a ``collate_fn``
        makes the batches, with ``vectorize=False``, where one does not fit one pass,
        and on a CPU where it would gain nothing: fewer than 8 for each number of
        examples, or more than 100 000 parameters times examples.
        """
        first = objectives[0]
        sizes = {f.num_examples for f in objectives}
        if first.device.type == "cpu" and (
            len(objectives) < _WORTHWHILE * len(sizes)
            or first.shape[0] * max(sizes) > _LIGHT
        ):
            return None
        alike = first._alike
        fits = alike is not None and all(
            f.vectorize and f.num_examples <= f.batch_size_limit and f._alike == alike
            for f in objectives
        )
        return TorchCohort(objectives) if fits else None


def _likeness(*parts: Any) -> bytes | None:
    """Return what all that computes as these do has in common; None: not known."""
    written = BytesIO()
    try:
        _Likeness(written).dump(parts)
    except Exception:  # what a module holds may raise anything
        return None
    return written.getvalue()


def softmax_slope(layers: list[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    r"""Return the gradient of the mean cross-entropy by W, and by b if there is one.

    PyTorch's graph of a small layer takes about five times as long to make. Of shape
    (\*n, p), from W (\*n, c, q) and b (\*n, c), the a_k (\*n, d, q) and their −e_y
    (\*n, d, c); n is nothing, or the number of models.
    """
    weight, *bias = layers
    scores = inputs @ weight.mT
    if bias:
        scores += bias[0].unsqueeze(-2)
    # s_k = (1/d) (softmax(W a_k + b) − e_y)
    slopes = torch.softmax(scores, -1).add_(labels).div_(inputs.shape[-2])
    # ∇_W = Σ_k s_k a_kᵀ,  ∇_b = Σ_k s_k
    found = [(slopes.mT @ inputs).flatten(-2), slopes.sum(-2)]
    return torch.cat(found[: len(layers)], -1)


class _Likeness(pickle.Pickler):
    """Writes what two modules that compute alike have in common.

    Learnt parameters count by their shapes, other tensors by their entries, and classes
    and functions by their identities.
    """

    def persistent_id(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType | BuiltinFunctionType):
            return id(thing)
        if not isinstance(thing, Tensor):
            return None
        learnt = isinstance(thing, nn.Parameter) and thing.requires_grad
        entries = b"" if learnt else to_numpy(thing.detach()).tobytes()
        return str(thing.dtype), tuple(thing.shape), entries


class TorchCohort:
    """f_1, …, f_n of one model and loss, on data of their own.

    A pass is one forward and one backward pass of ``torch.func.vmap``, for the clients
    with equally many examples. ``entries`` counts the numbers kept of the data.
    """

    def __init__(self, objectives: Sequence[TorchObjective]) -> None:
        self._objectives, self._first = list(objectives), objectives[0]
        # of every client, shape (n, 1)
        columns = [[f.weight, f.weight * f.l2] for f in objectives]
        pairs = torch.tensor(columns, dtype=torch.float64, device=self._first.device)
        self._weights, self._l2 = pairs[:, :1], pairs[:, 1:]
        self._closed = all(f.closed is not None for f in objectives)
        self._at_points = torch.func.vmap(self._first.mean_loss)
        self._whole = list(self._groups([None] * len(objectives)))
        kept = [part for _, batch in self._whole for part in batch.values()]
        self.entries = sum(part.numel() for part in kept)

    def _groups(self, rows: Rows) -> Iterator[tuple[Any, Batch]]:
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
                    examples: Any = f.closed if self._closed else f.examples
                    index = slice(0, size) if chosen is None else chosen
                    batches.append(examples.batch(index))
                names = batches[0]
                batch = {k: torch.stack([each[k] for each in batches]) for k in names}
                yield slice(None) if len(part) == len(rows) else part, batch

    def _gradients(self, points: Tensor, rows: Rows | None) -> Tensor:
        """Return the gradients at points (n, p), in the points' dtype."""
        computed = points.to(self._first.flat.dtype)
        g = torch.empty_like(computed)
        for clients, batch in self._whole if rows is None else self._groups(rows):
            if self._closed:
                layers = self._first.flat.views(computed[clients])
                g[clients] = softmax_slope(layers, *batch.values())
                continue
            some = computed[clients].detach().requires_grad_()
            with torch.enable_grad():
                # each client's loss knows its own parameters alone, so the gradient of
                # the sum is the stack of the gradients
                total = self._at_points(self._first.flat.named(some), batch).sum()
            (g[clients],) = torch.autograd.grad(total, some)
        # weight ((1/d) Σ ∇loss + l2 x)
        g = g.to(points.dtype).mul_(self._weights.to(points.dtype))
        return g.add_(points * self._l2.to(points.dtype))

    def _tensor(self, points: Array) -> Tensor:
        given = as_floats(points)
        vectors = given.reshape(len(self._objectives), -1).copy()
        if vectors.shape[1:] != self._first.shape:
            wanted = (len(vectors), *self._first.shape)
            raise ValueError(f"points has shape {given.shape}; it must be {wanted}")
        return torch.from_numpy(vectors).to(self._first.device)

    def gradients(self, points: Array, rows: Rows | None = None) -> Array:
        """Return ∇f_i(x_i) of each, in the dtype of the points; see ``Stacked``."""
        g = self._gradients(self._tensor(points), rows)
        return to_numpy(g).reshape(np.shape(points))

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
        point = self._tensor(points)

        def gradient(k: int) -> Tensor:
            return self._gradients(point, None if rows is None else rows[k])

        descend(point, sizes, gradient, pull)
        return to_numpy(point).reshape(np.shape(points))
