"""SCAFFOLD: local steps whose drift is taken out by control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.local_steps import StepSchedule, step_sizes
from fedtrellis.server.answers import Answer
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray, Layout

from .fedavg_gd import FedAvgGD

__all__ = ["Scaffold"]


class Scaffold(FedAvgGD):
    """:class:`FedAvgGD` with control variates, which make its fixed point exact.

    ::

        client   x_i = x;  k_0 times:  x_i ← x_i − γ_k (∇f_i(x_i) + c − c_i)
                 sends x_i
        both     c_i ← (x − x_i) / Σ γ_k − (c − c_i), the mean of the round's ∇f_i(x_i)
        server   x ← (1/|S|) Σ over S of x_i;  c ← (1/n) Σ over all n clients of c_i

    The server replays c_i, so that it need not be sent: up goes what FedAvg sends, down
    twice as much.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic
    Controlled Averaging for Federated Learning", ICML 2020, arXiv 1910.06378, algorithm
    1 with option II and a global step size of 1.

    Notes
    -----
    The matching client is ``ScaffoldClient(context, objective)``.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import ScaffoldClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import Scaffold
    >>> loss = LeastSquares(np.eye(3), np.ones(3), scale="half-mean")
    >>> app = client_app(lambda context: ScaffoldClient(context, loss))
    >>> strategy = Scaffold(step_size=0.5)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(LocalGrid(app, 2), start, num_rounds=50)
    >>> [x] = result.arrays.to_numpy_ndarrays()
    >>> bool(abs(x - 1.0).max() < 0.1)
    True
    """

    name = "scaffold"
    about = "FedAvg with control variates, without a constraint"
    # each c_i is replayed from its x_i
    needs = "each"
    stateful = True
    newcomers = False

    step_schedule: StepSchedule = setting(
        "constant",
        "size of step k, counted over all rounds: a; a/log2(k + 1); or a/√k",
        symbol="γ_k",
        choices=StepSchedule,
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with c_i = 0."""
        zero = np.zeros_like(self.broadcast.model)
        self._controls = dict.fromkeys(self.clients, zero)
        self._tell_control()

    def _tell_control(self) -> None:
        # c ← (1/n) Σ c_i; rounded to what the clients are told
        zero, layout = np.zeros_like(self.broadcast.model), self.broadcast.layout
        told = layout.to_wire(self.average(list(self._controls.values()), zero))
        self._control, self._told = layout.from_wire(told), told.tobytes()

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and c."""
        return {**super().instruction(server_round, client), "control": self._told}

    def check(self, answer: Answer) -> FloatArray:
        """The local model x_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models, and replay the c_i of those who answered."""
        total = sum(
            step_sizes(
                self.step_schedule, self.step_size, self.local_steps, server_round
            )
        )
        x = self.broadcast.model
        for name, x_i in answers.items():
            # c_i ← (x − x_i) / Σ γ_k − (c − c_i)
            correction = self._control - self._controls[name]
            self._controls[name] = (x - x_i) / total - correction
        metrics = super().aggregate(server_round, answers)
        self._tell_control()
        return metrics

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """c_i."""
        return {"control": self._controls[client]}

    def state(self) -> dict[str, NDArray[Any]]:
        """Every c_i."""
        return dict(self._controls)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self._controls = {name: np.array(state[name]) for name in self.clients}
        self._tell_control()
