"""Zeroth-order SGD whose model travels as scalars, up and down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtrellis.domains.atoms import RandomSigns
from fedtrellis.local_steps import StepSchedule, step_sizes
from fedtrellis.server.aggregation import Aggregation, Median
from fedtrellis.server.conversation import Answer, scalars_of
from fedtrellis.settings import entries_of, refused, setting
from fedtrellis.wire.arrays import DTYPES, FloatArray, Layout
from fedtrellis.wire.broadcast import ModelBroadcast, Step
from fedtrellis.zeroth_order import START, from_pool, mark_of, pool_choice

from .fedavg import StepsByBounds, falling

Variant = Literal["decomfl", "fedkseed", "feedsign"]
# whose clients all answer about the same directions
_SHARED = ("decomfl", "feedsign")


class ZerothOrderSGD(StepsByBounds):
    """Local steps along directions that all clients share, and a model of scalars.

    For min over x of f(x) = (1/n) Σ_i f_i(x), of which clients can only compute values.
    The directions u_kj of {−1, 1}^p derive from the run's seed and the round, for all
    clients alike. In a round::

        client   x_i = x;  for k = 1..τ, with one mini-batch ξ for all values of a step:
                     s_kj = [f_i(x_i + μ u_kj; ξ) − f_i(x_i; ξ)] / μ,   j = 1..m
                     x_i ← x_i − (γ_k/m) Σ_j s_kj u_kj
                 sends the τ·m scalars s_kj
        server   s̄_kj = the mean over S of the s_kj
                 x ← x − Σ_k (γ_k/m) Σ_j s̄_kj u_kj

    A step is τ·m scalars for whoever has the model before it. So a client is sent the
    scalars of the rounds that it missed, and replays them to the last bit; a newcomer,
    and one for whom the scalars would be more than the model, is sent the model.

    ``variant="feedsign"`` sends one bit for each scalar, whether it is positive, and
    s̄_kj is 1 or −1 as the majority says, 1 in a tie.

    ``variant="fedkseed"`` has K directions u_1..u_K for the whole run, of which each
    client takes τ·m of its own, j_ik, drawn with replacement. The model is

        x = x_0 + Σ_j a_j u_j,   a_j ← a_j − (1/|S|) Σ_{i, k: j_ik = j} (γ_k/m) s_ik

    and travels as a, or the entries of a that changed: at most K scalars, whatever the
    round. Who does not have x_0 is sent it once; an objective with ``initial_point()``
    has it, if it is the same. Making x takes K passes over its entries.

    Source: Li, Ying, Liu, Dong, Yang, "Achieving Dimension-Free Communication in
    Federated Learning via Zeroth-Order Optimization" (DeComFL), ICLR 2025, arXiv
    2405.15861, algorithm 1; Cai et al., "FeedSign", arXiv 2501.17610 (there τ = m = 1);
    Qin et al., "Federated Full-Parameter Tuning of Billion-Sized Language Models with
    Communication Cost under 18 Kilobytes" (FedKSeed), ICML 2024, arXiv 2312.06353,
    algorithm 1. All with random signs (Spall, 1992) instead of Gaussian directions,
    which every machine draws alike, and with one-sided differences.

    Notes
    -----
    The matching client is ``ZerothOrderSGDClient(context, objective)``. Metrics of a
    round: ``evaluations``, the function values that the clients computed.

    Privacy: the scalars are exact projections of the client's gradient onto directions
    that the server knows. With ``aggregation="secure-sum"`` it learns their sum over
    each block of clients and no client's own (:mod:`fedtrellis.server.secure_sum`).
    ``privacy="local"`` is noise of the clients' with an ε, ``aggregation="private"``
    the server's.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``ZerothOrderSGDClient`` on the nodes:

    >>> from fedtrellis.strategies import ZerothOrderSGD
    >>> ZerothOrderSGD(batch_size=0, step_size=0.3).samples
    10
    """

    name = "zeroth-order-sgd"
    about = "zeroth-order FedAvg, scalars both ways (DeComFL)"
    needs = "sum"
    dtypes = DTYPES
    _private_mechanism = "gaussian"
    _sent_arrays = (0, 0)
    _measured_by = ("batch_size", "samples", "seed")

    local_steps: int = setting(1, "steps of a client in a round", symbol="τ", minimum=1)
    samples: int = setting(10, "directions of a step", symbol="m", minimum=1)
    step_size: float | None = setting(
        None,
        "of the first step; auto: 1/r, r the largest curvature of a client's f_i along "
        "a step, measured at the start",
        note="an estimate is about √(p/m) times as long as the gradient, p the number "
        "of parameters, so steps are that much shorter than those of SGD. Signs "
        "(feedsign) do not know how long they should be: there it has to be set",
        symbol="a",
        above=0.0,
    )
    step_schedule: StepSchedule = falling("constant")
    smoothing: float = setting(
        1e-3,
        "length of a difference, for each entry",
        note="rounding puts errors of ε|f|/μ into the scalars, ε = 1e-7 for a network "
        "in float32",
        symbol="μ",
        above=0.0,
    )
    batch_size: int = setting(32, "examples in a mini-batch; 0: all", minimum=0)
    variant: Variant = setting(
        "decomfl",
        "directions and what is sent of them: new ones in each round, or of a pool for "
        "all rounds (fedkseed), a scalar each; or the scalar's sign (feedsign)",
        choices=Variant,
    )
    pool: int = setting(
        1024,
        "directions of the pool",
        symbol="K",
        minimum=1,
        maximum=10**6,
        only={"variant": ("fedkseed",)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "feedsign" and self.step_size is None:
            why = "does not apply to variant = 'feedsign', which has signs alone"
            raise refused("step_size", "auto", why, ["numbers above 0"])
        # a client of a pool keeps x_0
        self.stateful = self.variant == "fedkseed"

    def _admits(self, kind: type[Aggregation]) -> bool:
        """Sums and medians only of scalars along directions that all share."""
        shared = kind.seen_by == "client" or issubclass(kind, Median)
        return super()._admits(kind) and not (shared and self.variant not in _SHARED)

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """With a pool of directions, what travels are their weights."""
        self._start, self._layout = point, layout
        if self.variant == "fedkseed":
            self._mark = mark_of([point])
            self.broadcast = ModelBroadcast(
                Layout(((self.pool,),)), np.zeros(self.pool)
            )

    def _result_point(self) -> FloatArray:
        """The model itself."""
        if self.variant == "fedkseed":
            return from_pool(self._start, self.broadcast.model, self.seed)
        return self.broadcast.model

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model, or weights of a pool, with what these are of."""
        arrays, config = super()._model_for(client, entries)
        if self.variant == "fedkseed":
            config = config | entries_of(self, "pool", "seed")
            config["start-shapes"] = self._layout.to_list()
            config["start-dtype"] = self._layout.dtype
            config["start-mark"] = self._mark
        return arrays, config

    def client_state(self, client: str) -> dict[str, Any]:
        """What a client of a pool makes the model of: x_0, unless it has it."""
        if self.variant != "fedkseed":
            return {}
        known = self.conversation.clients[client].properties
        return {} if known.get(START) == self._mark else {START: self._start}

    def state(self) -> dict[str, NDArray[Any]]:
        """r, and a pool's x_0, beside the model or the pool's weights."""
        start = {"start": self._start} if self.variant == "fedkseed" else {}
        return {"lipschitz": np.array(self.lipschitz), **start}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        if self.variant == "fedkseed":
            self._start = np.array(state["start"])
            self._mark = mark_of([self._start])

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What a client's steps need."""
        steps = ("local_steps", "samples", "step_schedule", "smoothing")
        entries = entries_of(self, *steps, "batch_size", "variant", "seed")
        return self._with_sizes(entries)

    def check(self, answer: Answer) -> NDArray[Any]:
        """The scalars or signs, of shape (τ·m,).

        With a pool of directions what they come to for each of these, of shape (K,).
        """
        count = self.local_steps * self.samples
        hidden = self.aggregator.seen_by == "client"
        if hidden or self.variant != "feedsign":
            scalars = scalars_of(answer, count)
            if self.variant != "fedkseed":
                return scalars
            client, server_round = answer.client, answer.server_round
            weights, move = self._weights(server_round), np.zeros(self.pool)
            chosen = pool_choice(self.seed, client, server_round, count, self.pool)
            # in units of the first step's, so that a bound on it is one on scalars
            np.add.at(move, chosen, weights / weights[0] * scalars)
            return move
        if len(answer.arrays) != 1 or answer.numbers.size:
            raise ValueError("the answer is not one array of bits")
        (bits,) = answer.arrays
        if bits.dtype != np.uint8 or bits.shape != (-(-count // 8),):
            found = f"shape {bits.shape} and dtype {bits.dtype}"
            raise ValueError(f"the answer has {found}, not {-(-count // 8)} bytes")
        signs: FloatArray = 2.0 * np.unpackbits(bits, count=count).astype(float) - 1.0
        return signs

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step along the round's directions by the mean scalars."""
        weights = self._weights(server_round)
        if self.variant == "fedkseed":
            # a_j ← a_j − (1/|S|) Σ_{i, k: j_ik = j} (γ_k/m) s_ik
            mean = weights[0] * self.mean_of(answers, np.zeros(self.pool))
            self.broadcast.revise(self.broadcast.model - mean)
        else:
            # x ← x − Σ_k (γ_k/m) Σ_j s̄_kj u_kj
            scalars = self.mean_of(answers, np.zeros(weights.size))
            if self.variant == "feedsign":
                # a draw counts as +1, also of means that were rounded
                scalars = np.where(scalars >= -1e-9, 1.0, -1.0)
            shape = self.broadcast.layout.point_shape
            moved = RandomSigns(self.seed, server_round, -weights * scalars, shape)
            self.broadcast.advance(Step(1.0, 1.0, (moved,)))
        a_round = self.local_steps * (self.samples + 1)
        return {"evaluations": float(len(answers) * a_round)}

    def _weights(self, server_round: int) -> FloatArray:
        """γ_k/m of each of a round's scalars, of shape (τ·m,)."""
        schedule, size = self.step_schedule, self._settled("step_size")
        sizes = step_sizes(schedule, size, self.local_steps, server_round)
        return np.repeat(sizes, self.samples) / self.samples
