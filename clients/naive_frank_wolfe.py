"""The client's half of the naive federated Frank-Wolfe."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import PackedAtoms
from fedtrellis.domains.description import describe
from fedtrellis.objectives import DifferentiableLoss
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import MethodClient
from fedtrellis.wire.local_work import Gradient, Steps

__all__ = ["NaiveFrankWolfeClient"]


class NaiveFrankWolfeClient(MethodClient):
    """Answers with the oracle of its own gradient at x̄; see ``NaiveFrankWolfe``.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given.
    objective : object
        f_i, with ``gradient(x)``.
    domain : Domain
        D.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import client_app
    >>> from fedtrellis.clients import NaiveFrankWolfeClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> def client_fn(context):
    ...     loss = LeastSquares(np.eye(3), np.ones(3))
    ...     return NaiveFrankWolfeClient(context, loss, L1Ball(1.0))
    >>> app = client_app(client_fn)
    """

    def __init__(
        self, context: Context, objective: DifferentiableLoss, domain: Domain
    ) -> None:
        self.context = context
        self.objective = objective
        self.domain = domain

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        """What the server is told before round 1: the set that the client works on."""
        return {"domain": describe(self.domain)}

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The atom s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩, with x̄ in ``x``."""
        gradient = yield Gradient(x)
        atom = self.domain.lmo(gradient).of_dtype(self.layout.point_dtype)
        return PackedAtoms([atom]), 0, {}
