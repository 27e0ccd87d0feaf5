"""FedAvg with full local gradients and step sizes that fall."""

from __future__ import annotations

from typing import Any

from fedtrellis.local_steps import StepSchedule
from fedtrellis.server.answers import Answer
from fedtrellis.server.guarded import Needs
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.layout import DTYPES

__all__ = ["FedAvgGD"]


class FedAvgGD(RoundStrategy):
    """Non-stochastic FedAvg: local gradient steps and the mean of the local models.

    For min over x of f(x) = (1/m) Σ_i f_i(x), without a constraint, over m clients. In
    round t::

        client   x_i = x;  for k from (t − 1) k_0 + 1 to t k_0:
                     x_i ← x_i − γ_k ∇f_i(x_i)
        server   x ← (1/|S|) Σ over S of x_i, S those who answered

    With one local step, and everybody answering, this is gradient descent on f. With
    more it ends beside the minimiser, where the clients' steps cancel, unless γ_k falls
    to zero.

    Source: the baseline of Zhou and Li, "Efficient and Convergent Federated Learning",
    IEEE Trans. Signal Processing 2023, arXiv 2205.01438, section V.D, after McMahan et
    al., AISTATS 2017, algorithm 1, with all of a client's examples in its batch and
    clients of equal weight.

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed.

    Notes
    -----
    The matching client is ``FedAvgGDClient(context, objective)``.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedAvgGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedAvgGD
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return FedAvgGDClient(context, loss)
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = FedAvgGD(step_size=0.1)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=60)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1.5 , 0.25, 0.  ])
    """

    name = "fedavg-gd"
    about = "FedAvg with full local gradients, without a constraint"
    space = "whole"
    needs: Needs | None = "sum"
    dtypes = DTYPES

    stateful = False
    newcomers = True
    keep_model = False

    local_steps: int = setting(
        5, "gradient steps of a client in a round", symbol="k_0", minimum=1
    )
    step_size: float = setting(
        0.01,
        "size of the first local step",
        note="the paper has 0.01 for its least squares, with unscaled features; the "
        "steps contract while γ_k < 2/r_i, r_i the Lipschitz constant of ∇f_i. Steps "
        "that are too long end the run with an error that says so",
        symbol="a",
        above=0.0,
    )
    step_schedule: StepSchedule = setting(
        "log",
        "size of step k, counted over all rounds: a/log2(k + 1), the paper's; a; or "
        "a/√k",
        symbol="γ_k",
        choices=StepSchedule,
    )
    batch_fraction: float = setting(
        1.0,
        "part of a client's examples in a mini-batch",
        note="⌈batch_fraction · d_i⌉ of its d_i examples, drawn without replacement; "
        "1: the full gradient",
        above=0.0,
        maximum=1.0,
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing to prepare: the model is all of the state."""

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps; the round says which k they are."""
        entries: dict[str, Any] = {
            "local-steps": self.local_steps,
            "step-size": self.step_size,
            "step-schedule": self.step_schedule,
        }
        if self.batch_fraction < 1.0:
            entries |= {"batch-fraction": self.batch_fraction, "seed": self.seed}
        return entries

    def audience(self, server_round: int, client: str) -> None:
        """All of them are told the same."""

    def check(self, answer: Answer) -> FloatArray:
        """The local model x_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models of those who answered."""
        # x ← (1/|S|) Σ over S of x_i
        x = self.mean_of(answers, self.broadcast.model)
        self.broadcast.replace(x)
        return {}
