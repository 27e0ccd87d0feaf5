"""A PyTorch module's loss in the memory of inference (needs the extra ``torch``)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtrellis.objectives.base import common_batch
from fedtrellis.objectives.checks import Array, IntArray
from fedtrellis.objectives.points import Point
from fedtrellis.objectives.torch_module import check_learnable, prepare
from fedtrellis.objectives.torch_objective import ModuleLoss

__all__ = ["Shift", "TorchForward"]

#: Adds a direction to a block of a point, in place: it is given which entry of the
#: point the block begins at, and the block, an ndarray of one axis.
Shift = Callable[[int, NDArray[Any]], None]


class _BareModule:
    """A copy of a module without its learnt weights, which stand elsewhere.

    They take no memory and are not numbers, so that a layer that gets at one in another
    way than by its name makes the loss NaN.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        learnt = check_learnable(model, dtype)
        for name, part in model.named_modules():
            if isinstance(part, nn.RNNBase | torch.jit.ScriptModule):
                raise ValueError(
                    f"model's layer {name or type(part).__name__!r} does not ask for "
                    "its weights by name, as TorchForward needs it; use TorchObjective"
                )
        self.dtype, self._device = dtype or next(iter(learnt.values())).dtype, device
        self.shapes = [tuple(part.shape) for part in learnt.values()]
        self._starts = [0, *accumulate(prod(shape) for shape in self.shapes)]
        # a copy of everything but the weights; not on PyTorch's meta device, as a
        # matrix product with what is there may be anything
        nothing = torch.tensor(torch.nan, dtype=self.dtype, device=device)
        bare = {id(p): nn.Parameter(nothing.expand(p.shape)) for p in learnt.values()}
        numbers = {id(p): number for number, p in enumerate(bare.values())}
        self.module = copy.deepcopy(model, dict(bare)).eval()
        self.module._apply(  # type: ignore[no-untyped-call]
            lambda t: (
                t
                if id(t) in numbers
                else t.to(device, self.dtype if t.is_floating_point() else None)
            )
        )
        prepare(self.module)
        for part in self.module.modules():
            own = part._parameters
            made: dict[str, Callable[[], Tensor]] = {
                name: partial(self._layer, numbers[id(p)])
                for name, p in own.items()
                if id(p) in numbers
            }
            if made:
                vars(part)["_parameters"] = _MadeWeights(own, made)
        self.set(())

    def set(self, layers: Sequence[Array], shift: Shift | None = None) -> None:
        """Let the module have these weights, shifted."""
        self._layers, self._shift = layers, shift

    def _shifted(self, number: int) -> Array:
        array = self._layers[number]
        if self._shift is not None:
            array = np.array(array, order="C")
            self._shift(self._starts[number], array.reshape(-1))
        return array

    def _layer(self, number: int) -> Tensor:
        """Make the weights of a layer."""
        with warnings.catch_warnings():
            # nobody writes there
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.from_numpy(np.ascontiguousarray(self._shifted(number)))
        return tensor.to(self._device, self.dtype)

    def squares(self) -> float:
        """Return ‖x + v‖², in float64."""
        total = 0.0
        for number in range(len(self.shapes)):
            layer = self._shifted(number).reshape(-1)
            total += float(np.einsum("i,i->", layer, layer, dtype=np.float64))
        return total


class _MadeWeights(dict[str, Any]):
    """A module's parameters, of which some are made whenever it asks for them."""

    def __init__(
        self, kept: dict[str, Any], made: dict[str, Callable[[], Tensor]]
    ) -> None:
        super().__init__(kept)
        self._made = made

    def __getitem__(self, name: str) -> Any:
        make = self._made.get(name)
        return super().__getitem__(name) if make is None else make()


class TorchForward(ModuleLoss):
    """The loss of an ``nn.Module``, evaluated at points whose memory it uses itself.

    It is the function that a :class:`~.torch_objective.TorchObjective` of the same
    arguments is, but keeps no parameters: a layer's weights are made when the forward
    pass asks for them, of the point that is evaluated, and forgotten after. So a value
    takes the memory of inference, and a value at x + v that of inference and one layer
    more, without a second copy of the model, and x stays what it is to the last bit.
    There are no gradients: it is for methods that go by function values.

    Parameters
    ----------
    model : torch.nn.Module
        What its parameters hold is not looked at, only their shapes and dtype.
    loss, data, weight, l2, device, batch_size_limit, dtype, collate_fn, target_key
        As :class:`~fedtrellis.objectives.torch_objective.TorchObjective` takes them.
    vectorize : bool
        Not used: points are evaluated one after the other.

    Raises
    ------
    ValueError
        As that class; or the model has a recurrent layer of PyTorch's own or a script
        module, which do not ask for their weights by name.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from fedtrellis.objectives.torch_forward import TorchForward
    >>> data = (torch.ones(4, 2), torch.zeros(4, 1))
    >>> objective = TorchForward(torch.nn.Linear(2, 1), torch.nn.MSELoss(), data)
    >>> x = np.array([1.0, 2.0, 0.0])
    >>> def shift(first, block):
    ...     block += 1.0
    >>> objective.values_shifted(x, [None, shift]).tolist()
    [9.0, 36.0]
    """

    _holder = _BareModule

    def value(self, x: Point) -> float:
        """Return f(x), for x a list of the layers' arrays or one flat array."""
        return float(self.values_shifted(x, [None])[0])

    def values(
        self,
        points: Point,
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at m points, one after the other; see ``Objective.values``.

        Points have shape (m, p), or are a list of ndarrays of (m, *layer shape).
        """
        rows = common_batch(rng, self.num_examples, batch_size)
        (count,) = self._forms.count(points)
        stacked = self._forms.layers(points, (count,))
        return np.array(
            [
                self._value([layer[i] for layer in stacked], None, rows)
                for i in range(count)
            ]
        )

    def values_shifted(
        self,
        x: Point,
        shifts: Iterable[Shift | None],
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at x plus each of the shifts, without a copy of x.

        Parameters
        ----------
        x : list of ndarray, or ndarray of shape (p,)
            It is not changed, not even meanwhile.
        shifts : iterable of callable
            Each adds a direction v_j to a block of a point: it is called with the entry
            of the flat point that the block begins at, and with the block, which is a
            layer's copy of dtype float32 or float64, flat. A layer can be asked for
            several times, and in any order. None is no shift.
        rng, batch_size
            As in :meth:`values`.

        Returns
        -------
        ndarray of float64, shape (m,)
            f(x + v_1), …, f(x + v_m).
        """
        rows = common_batch(rng, self.num_examples, batch_size)
        layers = self._forms.layers(x)
        return np.array([self._value(layers, shift, rows) for shift in shifts])

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}`` where targets are class labels, else ``{}``."""
        found = super().metrics(x)
        self.flat.set(())
        return found

    def gradient(self, x: Any) -> NoReturn:
        """Refuse: NotImplementedError names the objective that has gradients."""
        raise NotImplementedError(
            "TorchForward keeps no parameters to differentiate by; use TorchObjective"
        )

    def _value(
        self, layers: Sequence[Array], shift: Shift | None, rows: IntArray | None
    ) -> float:
        self.flat.set(layers, shift)
        # weight ((1/d) Σ loss + (l2/2)‖x + v‖²)
        value = self._mean_value(rows)
        if self.l2:
            value += 0.5 * self.l2 * self.flat.squares()
        self.flat.set(())  # no model is kept
        return self.weight * value
