"""FedOpt: an optimiser on the server, whose slope is the clients' mean change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrellis.local_steps import StepSchedule
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray, Layout

from .local_sgd import LocalSGD

__all__ = ["OPTIMIZERS", "FedOpt"]

Optimizer = Literal["momentum", "adam", "yogi"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


class FedOpt(LocalSGD):
    """:class:`LocalSGD` with momentum, Adam or Yogi on the server.

    ::

        client     as in FedAvg: x_i after k_0 local steps from x
        server     Δ = (1/|S|) Σ over S of x_i − x
        momentum   m ← β₁ m + Δ;                    x ← x + η m
        adam       m ← β₁ m + (1 − β₁) Δ;  v ← β₂ v + (1 − β₂) Δ²
                                                    x ← x + η m / (√v + τ)
        yogi       v ← v − (1 − β₂) Δ² sign(v − Δ²), else as adam; v begins at τ²

    Source: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv
    2003.00295, algorithm 2 (FedAdam, FedYogi); Hsu, Qi, Brown, "Measuring the Effects
    of Non-Identical Data Distribution", arXiv 1909.06335, for momentum (FedAvgM).

    Notes
    -----
    The matching client is ``FedOptClient(context, objective)``. With
    ``optimizer="momentum"``, β₁ = 0 and η = 1 it is :class:`LocalSGD`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedOptClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedOpt
    >>> loss = LeastSquares(np.eye(3), np.ones(3), scale="half-mean")
    >>> app = client_app(lambda context: FedOptClient(context, loss))
    >>> strategy = FedOpt(step_size=0.5, batch_fraction=1.0, server_momentum=0.5)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(LocalGrid(app, 2), start, num_rounds=50)
    >>> [x] = result.arrays.to_numpy_ndarrays()
    >>> bool(abs(x - 1.0).max() < 0.1)
    True
    """

    name = "fedopt"
    about = "FedAvg with momentum, Adam or Yogi on the server"

    state_settings: tuple[str, ...] = ("optimizer",)

    step_schedule: StepSchedule = setting(
        "constant",
        "size of step k, counted over all rounds: a; a/log2(k + 1); or a/√k",
        symbol="γ_k",
        choices=StepSchedule,
    )
    optimizer: Optimizer = setting("momentum", "of the server", choices=Optimizer)
    server_step_size: float = setting(
        1.0, "of the server's step", symbol="η", above=0.0
    )
    server_momentum: float = setting(
        0.9, "of the server", symbol="β₁", minimum=0.0, below=1.0
    )
    second_moment: float = setting(
        0.99,
        "how slowly the squares' mean follows",
        symbol="β₂",
        minimum=0.0,
        below=1.0,
        only={"optimizer": ("adam", "yogi")},
    )
    adaptivity: float = setting(
        1e-3,
        "added to the root of the squares' mean",
        symbol="τ",
        above=0.0,
        only={"optimizer": ("adam", "yogi")},
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start without momentum."""
        self._m = np.zeros_like(self.broadcast.model)
        self._v = np.zeros_like(self._m)
        if self.optimizer == "yogi":
            self._v += self.adaptivity**2

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step along the mean change of those who answered."""
        x, change = self.broadcast.model, self.mean_change(answers)
        if self.optimizer == "momentum":
            # m ← β₁ m + Δ;  x ← x + η m
            self._m = self.server_momentum * self._m + change
            self.broadcast.replace(x + self.server_step_size * self._m)
            return {}
        rest, square = 1.0 - self.second_moment, change**2
        # m ← β₁ m + (1 − β₁) Δ
        self._m = self.server_momentum * self._m + (1.0 - self.server_momentum) * change
        if self.optimizer == "adam":
            # v ← β₂ v + (1 − β₂) Δ²
            self._v = self.second_moment * self._v + rest * square
        else:
            # v ← v − (1 − β₂) Δ² sign(v − Δ²)
            self._v = self._v - rest * square * np.sign(self._v - square)
        # x ← x + η m / (√v + τ)
        step = self._m / (np.sqrt(self._v) + self.adaptivity)
        self.broadcast.replace(x + self.server_step_size * step)
        return {}

    def mean_change(self, answers: dict[str, Any]) -> FloatArray:
        """Δ, what the server's optimiser takes for its slope, of the model's shape."""
        x = self.broadcast.model
        # Δ = (1/|S|) Σ over S of x_i − x
        return self.mean_of(answers, x) - x

    def state(self) -> dict[str, NDArray[Any]]:
        """M and v."""
        return {"m": self._m, "v": self._v}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._m, self._v = np.array(state["m"]), np.array(state["v"])
