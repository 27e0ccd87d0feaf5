"""Zeroth-order SGD whose model travels as scalars, up and down."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.domains.atoms import RandomSigns
from fedtrellis.local_steps import STEP_SCHEDULES, step_size_at
from fedtrellis.server.answers import Answer
from fedtrellis.server.robust import RULES
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.layout import DTYPES

__all__ = ["UPLOADS", "ZerothOrderSGD"]

UPLOADS = ("scalars", "signs")


class ZerothOrderSGD(RoundStrategy):
    """Local steps along directions that all clients share, and a model of scalars.

    For min over x of f(x) = (1/n) Σ_i f_i(x), of which clients can only compute values.
    The directions u_kj of {−1, 1}^p derive from the run's seed and the round, for all
    clients alike. In a round::

        client   x_i = x;  for k = 1..τ, with one mini-batch ξ for all values of a step:
                     s_kj = [f_i(x_i + μ u_kj; ξ) − f_i(x_i; ξ)] / μ,   j = 1..m
                     x_i ← x_i − (γ_k/m) Σ_j s_kj u_kj
                 sends the τ·m scalars s_kj (signs: one bit for each)
        server   s̄_kj = the mean over S of the s_kj (signs: the majority's sign)
                 x ← x − Σ_k (γ_k/m) Σ_j s̄_kj u_kj

    A step is τ·m scalars for whoever has the model before it. So a client is sent the
    scalars of the rounds that it missed, and replays them to the last bit; a newcomer,
    and one for whom the scalars would be more than the model, is sent the model.

    Source: Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in
    Federated Learning via Zeroth-Order Optimization" (DeComFL), ICLR 2025, arXiv
    2405.15861, algorithm 1, with random signs (Spall, 1992) instead of Gaussian
    directions, which every machine draws alike; with ``upload="signs"``, τ = m = 1,
    Cai et al., "FeedSign", arXiv 2501.17610.

    Notes
    -----
    The matching client is ``ZerothOrderSGDClient(context, objective)``. Metrics of a
    round: ``evaluations``, the function values that the clients computed.

    Privacy: the scalars are exact projections of the client's gradient onto directions
    that the server knows.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import ZerothOrderSGDClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import ZerothOrderSGD
    >>> loss = LeastSquares(np.eye(3), np.ones(3), scale="half-mean")
    >>> app = client_app(lambda context: ZerothOrderSGDClient(context, loss))
    >>> strategy = ZerothOrderSGD(batch_size=0, step_size=0.3)
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(LocalGrid(app, 2), start, num_rounds=50)
    >>> [x] = result.arrays.to_numpy_ndarrays()
    >>> bool(abs(x - 1.0).max() < 0.1)
    True
    """

    name = "zeroth-order-sgd"
    about = "zeroth-order FedAvg, scalars both ways (DeComFL)"
    space = "whole"
    flat_keys = False
    rules = RULES
    dtypes = DTYPES

    stateful = False

    local_steps: int = setting(1, "steps of a client in a round", symbol="τ", minimum=1)
    samples: int = setting(10, "directions of a step", symbol="m", minimum=1)
    step_size: float = setting(
        1e-3,
        "of the first step",
        note="an estimate is about √(p/m) times as long as the gradient, p the number "
        "of parameters, so steps are that much shorter than those of SGD",
        symbol="a",
        above=0.0,
    )
    step_schedule: str = setting(
        "constant",
        "size of step k, counted over all rounds: a/log2(k + 1); a; or a/√k",
        symbol="γ_k",
        choices=STEP_SCHEDULES,
    )
    smoothing: float = setting(
        1e-3,
        "length of a difference, for each entry",
        note="rounding puts errors of ε|f|/μ into the scalars, ε = 1e-7 for a network "
        "in float32",
        symbol="μ",
        above=0.0,
    )
    batch_size: int = setting(32, "examples in a mini-batch; 0: all", minimum=0)
    clip: float = setting(
        0.0,
        "largest |s| that a client sends; 0: any",
        minimum=0.0,
        only={"upload": ("scalars",)},
    )
    upload: str = setting(
        "scalars",
        "what a client sends for each direction: the difference quotient, or its sign",
        choices=UPLOADS,
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing to prepare: the model is all of the state."""

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What a client's steps need."""
        return {
            "local-steps": self.local_steps,
            "samples": self.samples,
            "step-size": self.step_size,
            "step-schedule": self.step_schedule,
            "smoothing": self.smoothing,
            "batch-size": self.batch_size,
            "clip": self.clip,
            "upload": self.upload,
            "seed": self.seed,
        }

    def check(self, answer: Answer) -> FloatArray:
        """The scalars or signs, of shape (τ·m,)."""
        count = self.local_steps * self.samples
        if self.upload == "scalars":
            scalars = answer.numbers
            if answer.arrays or scalars.shape != (count,):
                raise ValueError(
                    f"the answer has {scalars.size} scalars and {len(answer.arrays)} "
                    f"arrays, expected {count} and none"
                )
            if self.clip and float(np.abs(scalars).max()) > self.clip:
                raise ValueError(f"a scalar is larger than clip = {self.clip}")
            return scalars
        if len(answer.arrays) != 1 or answer.numbers.size:
            raise ValueError("the answer is not one array of bits")
        (bits,) = answer.arrays
        if bits.dtype != np.uint8 or bits.shape != (-(-count // 8),):
            raise ValueError(
                f"the answer has shape {bits.shape} and dtype {bits.dtype}, expected "
                f"{(-(-count // 8),)} and uint8"
            )
        signs: FloatArray = 2.0 * np.unpackbits(bits, count=count).astype(float) - 1.0
        return signs

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step along the round's directions by the mean scalars."""
        count = self.local_steps * self.samples
        scalars = self.average(list(answers.values()), np.zeros(count))
        if self.upload == "signs":
            scalars = np.sign(scalars)
        # x ← x − Σ_k (γ_k/m) Σ_j s̄_kj u_kj
        before = (server_round - 1) * self.local_steps
        sizes = [
            step_size_at(self.step_schedule, self.step_size, before + k)
            for k in range(1, self.local_steps + 1)
        ]
        weights = np.repeat(sizes, self.samples) / self.samples
        shape = self.broadcast.layout.point_shape
        moved = RandomSigns(self.seed, server_round, -weights * scalars, shape)
        self.broadcast.advance(Step(1.0, 1.0, (moved,)))
        a_round = self.local_steps * (self.samples + 1)
        return {"evaluations": float(len(answers) * a_round)}
