"""The loss of a task's network (needs the extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from fedtrellis.objectives import Objective
from fedtrellis.objectives.torch_forward import TorchForward
from fedtrellis.objectives.torch_objective import TorchObjective

__all__ = ["FORWARD_FROM", "network_loss"]

#: Parameters from which a loss that is only evaluated keeps none: below that
#: evaluating many points at once is quicker, and memory is no matter.
FORWARD_FROM = 10**5


class _Begun(TorchForward):
    """A loss that keeps no parameters, and knows which a run begins with."""

    def __init__(self, make_model: Callable[[], nn.Module], *rest: Any, **more: Any):
        super().__init__(make_model(), *rest, **more)
        self._make_model = make_model

    def initial_point(self) -> list[np.ndarray[Any, Any]]:
        """Return the parameters of a new model."""
        return [p.detach().numpy() for p in self._make_model().parameters()]


def network_loss(
    make_model: Callable[[], nn.Module],
    data: tuple[Any, Any],
    *,
    weight: float = 1.0,
    device: str = "auto",
    values_only: bool = False,
) -> Objective:
    """Return the cross-entropy of a network on some data.

    Parameters
    ----------
    make_model : callable
        Makes the network, with the same weights whenever it is called.
    data : (inputs, targets)
    weight : float
    device : str
    values_only : bool
        Whether nobody asks for gradients. A network of ``FORWARD_FROM`` parameters or
        more then takes the memory of inference.
    """
    model = make_model()
    loss = nn.CrossEntropyLoss()
    more: dict[str, Any] = {"weight": weight, "device": device}
    if values_only and sum(p.numel() for p in model.parameters()) >= FORWARD_FROM:
        del model
        return _Begun(make_model, loss, data, **more)
    return TorchObjective(model, loss, data, **more)
