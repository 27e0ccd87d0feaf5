"""A PyTorch module's loss in the memory of inference (needs the extra ``torch``)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtrellis.objectives.base import Array, IntArray, Point, draw_batch
from fedtrellis.objectives.torch_module import check_learnable, prepare
from fedtrellis.objectives.torch_objective import ModuleLoss

#: Adds a direction to a block of a point, in place: it is given which entry of the
#: point the block begins at, and the block, an ndarray of one axis.
Shift = Callable[[int, NDArray[Any]], None]


class _BareModule:
    """A copy of a module without its learnt weights, which stand elsewhere.

    They are no numbers: a layer that gets at one other than by name makes a NaN.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype | None
    ) -> None:
        learnt = check_learnable(model, dtype)
        for name, part in model.named_modules():
            if isinstance(part, nn.RNNBase | torch.jit.ScriptModule):
                layer = f"model's layer {name or type(part).__name__!r}"
                why = "does not ask for its weights by name; use TorchObjective"
                raise ValueError(f"{layer} {why}")
        kind = self.dtype = dtype or next(iter(learnt.values())).dtype
        self._device = device
        self.shapes = [tuple(part.shape) for part in learnt.values()]
        self._starts = [0, *accumulate(map(prod, self.shapes))]
        # a copy of everything but the weights; not on PyTorch's meta device, as a
        # matrix product with what is there may be anything
        nothing = torch.tensor(torch.nan, dtype=kind, device=device)
        bare = {id(p): nn.Parameter(nothing.expand(p.shape)) for p in learnt.values()}
        self._numbers = {id(p): number for number, p in enumerate(bare.values())}

        def move(tensor: Tensor) -> Tensor:
            if id(tensor) in self._numbers:
                return tensor
            return tensor.to(device, kind if tensor.is_floating_point() else None)

        self.module = copy.deepcopy(model, dict(bare)).eval()
        self.module._apply(move)  # type: ignore[no-untyped-call]
        prepare(self.module)
        for part in self.module.modules():
            made = vars(part)["_parameters"] = _MadeWeights(part._parameters)
            made.make = self._made
        self.set(())

    def set(self, layers: Sequence[Array], shift: Shift | None = None) -> None:
        """Let the module have these weights, shifted."""
        self._layers, self._shift = layers, shift

    def layer(self, number: int) -> Array:
        """Return a layer's weights, shifted."""
        array = self._layers[number]
        if self._shift is not None:
            array = np.array(array, order="C")
            self._shift(self._starts[number], array.reshape(-1))
        return array

    def _made(self, parameter: Any) -> Any:
        """Return a parameter, or the weights that it stands for."""
        number = self._numbers.get(id(parameter))
        if number is None:
            return parameter
        with warnings.catch_warnings():
            # nobody writes there
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.from_numpy(np.ascontiguousarray(self.layer(number)))
        return tensor.to(self._device, self.dtype)


class _MadeWeights(dict[str, Any]):
    """A module's parameters, which are made whenever it asks for one."""

    make: Callable[[Any], Any]

    def __getitem__(self, name: str) -> Any:
        return self.make(super().__getitem__(name))


class TorchForward(ModuleLoss):
    """The loss of an ``nn.Module``, evaluated at points whose memory it uses itself.

    It is the function that a :class:`~.torch_objective.TorchObjective` of the same
    arguments is, but keeps no parameters: a layer's weights are made when the forward
    pass asks for them, of the point that is evaluated, and forgotten after. So a value
    takes the memory of inference, and a value at x + v that and one layer more, and x
    stays what it is to the last bit. There are no gradients.

    Errors are those of that class, and a ValueError where the model has a recurrent
    layer of PyTorch's own or a script module, which do not ask for their weights by
    name. ``vectorize`` has no effect: points are evaluated one after the other.
    """

    _holder = _BareModule

    def values_shifted(
        self,
        x: Point,
        shifts: Iterable[Shift | None],
        rng: np.random.Generator | None = None,
        *,
        batch_size: int | None = None,
    ) -> Array:
        """Return f at x plus each of the shifts, without a copy of x.

        x, a list of ndarrays or one of shape (p,), is not changed, not even meanwhile.
        Each shift adds a direction v_j to a block of a point: it is called with the
        entry of the flat point that the block begins at, and with the block, a layer's
        flat copy of float32 or float64, several times and in any order. None is no
        shift. A mini-batch is drawn as in :meth:`values`. The result is f(x + v_j),
        float64 of shape (m,).
        """
        rows = draw_batch(rng, self.num_examples, batch_size)
        return np.array([self._value(x, rows, shift) for shift in shifts])

    def gradient(self, x: Any) -> NoReturn:
        """Refuse: NotImplementedError names the objective that has gradients."""
        raise NotImplementedError("TorchForward has no gradient; use TorchObjective")

    def _stand(self, x: Point, shift: Shift | None = None) -> None:
        self.flat.set(self._forms.layers(x), shift)

    def _value(
        self, x: Point, rows: IntArray | None, shift: Shift | None = None
    ) -> float:
        # weight ((1/d) Σ loss + (l2/2)‖x + v‖²)
        self._stand(x, shift)
        value = self._mean_value(rows)
        value += self._penalty(map(self.flat.layer, range(len(self.shapes))))
        self.flat.set(())  # no model is kept
        return self.weight * value
