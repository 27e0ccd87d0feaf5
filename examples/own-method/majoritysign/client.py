"""The client's half: it votes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context

from fedtrellis import Gradient, MethodClient


class MajoritySignClient(MethodClient):
    """Sends the signs of its gradient; see ``MajoritySign``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``.
    """

    def __init__(self, context: Context, objective: Any) -> None:
        self.objective = objective

    def steps(self, x: Any, config: dict[str, Any]) -> Any:
        """The signs, int8, in the shape of the model's one array."""
        gradient = yield Gradient(x)
        return [np.sign(gradient).astype(np.int8)], 0, {}
