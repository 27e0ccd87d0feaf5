"""Projection-based federated learning on a manifold, from gradients or from values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.manifolds import Manifold
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer, scalars_of
from fedtrellis.settings import entries_of, given, refused, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.zeroth_order import combine

from .fedavg import StepsByBounds

Upload = Literal["auto", "scalars", "dense"]


class FirstOrderRFL(StepsByBounds):
    """Riemannian federated learning with projections and correction terms.

    Solves min over x in M of f(x) = (1/n) Σ_i f_i(x), M a smooth submanifold with a
    projection P_M. The server's x^k lies off M; in round k, with S the clients whose
    answers were used::

        client   ẑ = z = P_M(x^k)
                 τ times:  G = grad f_i(z);  ẑ ← ẑ − η (G + c_i);  z ← P_M(ẑ)
                 sends ẑ
        server   x^{k+1} = P_M(x^k) + η_g ( (1/|S|) Σ over S of ẑ_i − P_M(x^k) )
        client   c_i ← (P_M(x^k) − x^{k+1}) / (η_g η τ) − mean of the round's G,
                 once it is sent x^{k+1}
        end      the answer is P_M of the last x

    The corrections c_i make critical points of f fixed points, whatever the clients'
    distributions; without them, and with η_g = 1, it is FedAvg with projections.

    Source: Zhang, Hu, So, Johansson, "Nonconvex federated learning on compact smooth
    submanifolds with heterogeneous data", 2024; in the notation of arXiv 2507.22855,
    algorithm 1, whose estimate it replaces by the Riemannian gradient.

    Notes
    -----
    The matching client is ``FirstOrderRFLClient(context, objective, manifold)``.
    Metrics of a round: ``step-norm``, the left side of the stop rule.

    Partial participation is our extension: who sat out keeps its c_i. Over all clients
    the c_i still sum to zero, over those of a round they need not. The server can
    replay every c_i from what it sent and got, so a client that comes back, or lost its
    state, is sent its own.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``FirstOrderRFLClient`` on the nodes:

    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.strategies import FirstOrderRFL
    >>> FirstOrderRFL(Sphere((3,)), step_size=0.05).local_steps
    5
    """

    name = "first-order-rfl"
    about = "Riemannian federated learning with projections"
    space = "manifold"
    # each c_i is replayed from its ẑ_i
    needs, _linear, _replayed = "each", True, "_corrections"

    keep_model = False
    # a half's digits are no point of a manifold
    dtypes = ("float64", "float32")
    _state_settings = ("correction", "step_size", "server_step_size", "local_steps")
    _measured_by: ClassVar[tuple[str, ...]] = ("batch_size",)

    manifold: Manifold = given(
        "M, in the shape of the model: an array's own shape if the model has one "
        "array, else the vector of all entries, layer after layer (``Product``)",
        kw_only=False,
    )
    step_size: float | None = setting(
        None,
        "of a local step; auto: 1/(r η_g τ), r the largest Lipschitz constant of a "
        "client's ∇f_i, or curvature of f_i along M at the start",
        symbol="η",
        above=0.0,
    )
    server_step_size: float | None = setting(
        None,
        "of the server's step; auto: √n, n the clients averaged in the round",
        symbol="η_g",
        above=0.0,
    )
    local_steps: int = setting(
        5, "local steps of a client in a round", symbol="τ", minimum=1
    )
    batch_size: int = setting(0, "examples in a local mini-batch; 0: all", minimum=0)
    correction: bool = setting(
        True, "whether the clients have correction terms", symbol="c_i"
    )
    tolerance: float | None = setting(
        None,
        "stop when ‖P_M(x^{k+1}) − P_M(x^k)‖ / η̃, with η̃ = η_g η τ, is at most this "
        "share of its largest so far; 0: never; auto: 1e-8, and never where the steps "
        "are random or biased",
        note="it is the paper's measure ‖G_η̃(P_M(x^k))‖ with the round's mean estimate "
        "instead of the gradient",
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # several local steps without c_i come to rest where f has no critical point
        biased = not self.correction and self.local_steps > 1
        if self.tolerance is None:
            exact = type(self) is FirstOrderRFL and not (biased or self.batch_size)
            self.tolerance = 1e-8 if exact else 0.0
        if self.tolerance and biased:
            beside = f"correction = False and local_steps = {self.local_steps}"
            raise refused("tolerance", self.tolerance, f"does not fit {beside}", ["0"])

    def _from_bound(self, name: str) -> float:
        # η̃ = η_g η τ = 1/r, with all clients
        server = self.server_step_size or sqrt(self.num_clients)
        return 1.0 / (self.lipschitz * server * self.local_steps)

    @property
    def settled_server_step_size(self) -> float:
        """η_g of the step that made x: as set, or √n of the n clients averaged."""
        return self.server_step_size or sqrt(self._averaged)

    def measuring_step(self, num_clients: int) -> float:
        """η̃ with all clients, by which ‖G_η̃(x)‖ is measured; 0 before it is known."""
        server = self.server_step_size or sqrt(num_clients)
        return server * (self.step_size or 0.0) * self.local_steps

    @property
    def total_step(self) -> float:
        """η̃ = η_g η τ of the step that made x."""
        eta = self._settled("step_size")
        return self.settled_server_step_size * eta * self.local_steps

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with P_M(x) and c_i = 0."""
        self._z = self.manifold.project(point)
        self._corrections = {name: np.zeros(point.shape) for name in self.clients}
        # the round that made the x which is broadcast; 0: the start
        self._x_round = 0
        # how many clients were averaged in it
        self._averaged = self.num_clients
        self._step_norm, self._largest = inf, 0.0
        # what rounding a narrow x took; z, ẑ and c_i are float64
        self._carried = np.zeros(point.shape)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """η, η_g of the step that made x, τ, and what mini-batches need.

        A client needs η_g for its c_i, which comes from the step before.
        """
        entries: dict[str, Any] = {
            "step-size": self._settled("step_size"),
            "server-step-size": self.settled_server_step_size,
            "local-steps": self.local_steps,
        }
        if not self.correction:
            entries["correction"] = False
        if self.batch_size:
            entries |= entries_of(self, "batch_size", "seed")
        return entries

    def check(self, answer: Answer) -> Any:
        """ẑ_i."""
        return self.take_point(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step from P_M(x^k) towards the mean of the ẑ_i, and replay every c_i."""
        z, scale = self._z, self._settled("step_size") * self.local_steps
        self._averaged = len(answers)
        # x^{k+1} = P_M(x^k) + η_g (mean of ẑ_i − P_M(x^k))
        mean = self.average(list(answers.values()), z)
        x = z + self.settled_server_step_size * (mean - z)
        # rounding x by e takes |S| e/η̃ from Σ c_i: the next x gives it back
        share = len(answers) / self.total_step
        exact = x - self._carried / share
        self.broadcast.replace(exact)
        x = self.broadcast.model
        self._carried = share * (x - exact)
        if self.correction:
            direction = (z - x) / self.total_step
            for name, point in answers.items():
                # ẑ_i = z − η τ (mean of G + c_i)
                estimate = (z - point) / scale - self._corrections[name]
                # c_i ← (P_M(x^k) − x^{k+1}) / (η_g η τ) − mean of G
                self._corrections[name] = direction - estimate
        self._x_round = server_round
        self._z = self.manifold.project(x)
        self._step_norm = float(np.linalg.norm(self._z - z)) / self.total_step
        self._largest = max(self._largest, self._step_norm)
        return {"step-norm": self._step_norm}

    def _result_point(self) -> FloatArray:
        """P_M(x): the model that is evaluated, and the run's result."""
        return self._z

    def converged(self) -> bool:
        """Whether the projected step is small enough beside the largest."""
        share = self.tolerance or 0.0
        return share > 0.0 and self._step_norm <= share * self._largest

    def _replaces_state(self, client: str) -> bool:
        """Whether x has changed since the client's last round, which its c_i needs."""
        used_round = self.conversation.clients[client].used_round
        moved = self.correction and 0 < used_round != self._x_round
        return moved or super()._replaces_state(client)

    def _forget(self, clients: Sequence[str]) -> None:
        """Begin anew with c_i = 0 for everybody, as Σ c_i has to stay zero."""
        super()._forget(self.clients)

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """c_i, but for a client that has none yet."""
        if not self.correction or not self.conversation.clients[client].used_round:
            return {}
        return {"c": self._corrections[client]}

    def state(self) -> dict[str, NDArray[Any]]:
        """Every c_i, which round x is of, and how many clients it averaged."""
        return {
            **super().state(),
            "largest": np.array(self._largest),
            "x-round": np.array(self._x_round),
            "averaged": np.array(self._averaged),
            "carried": self._carried,
            **{f"{name}/c": c_i for name, c_i in self._corrections.items()},
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        self._largest = float(state["largest"])
        self._x_round, self._averaged = int(state["x-round"]), int(state["averaged"])
        self._z = self.manifold.project(self.broadcast.model)
        self._carried = np.array(state["carried"])
        self._corrections = {
            name: np.array(state[f"{name}/c"]) for name in self.clients
        }


class ZerothOrderRFL(FirstOrderRFL):
    """Zeroth-order projection-based Riemannian federated learning.

    :class:`FirstOrderRFL` with an estimate of the Riemannian gradient from m + 1 values
    of f_i, at points on the manifold, in each of the τ local steps::

        G(z) = (p·r/m) Σ_{j=1..m} [F_i(P_M(z + μ u_j), ξ) − F_i(z, ξ)] / μ · u_j    (7)

    with u_j uniform on the unit sphere of R^{p×r}, one mini-batch ξ for all of a step's
    values. A value that is not finite is dropped, and counted.

    **What travels up.** The u_j derive from the run's seed, the client and the round,
    so the server can draw them as well. G is a combination of them, and
    ẑ_i = z − η Σ_t (G_t + c_i), so τ·m scalars are all that a client has to send.

    Source: Wang, Pan, He, Li, Jiang, "Federated Learning on Riemannian Manifolds: A
    Gradient-Free Projection-Based Approach", arXiv 2507.22855, algorithm 1. That
    scalars suffice is ours.

    Notes
    -----
    The matching client is ``ZerothOrderRFLClient(context, objective, manifold)``.
    Metrics of a round, beside ``step-norm``: ``evaluations``, the values that the
    clients computed, and ``dropped-values`` if there were any.

    Theory asks for a step size η that shrinks like 1/(p·r), as the automatic one does:
    :func:`fedtrellis.zeroth_order.step_curvature`.

    Examples
    --------
    Run as :class:`FirstOrderRFL` is, with ``ZerothOrderRFLClient`` on the nodes:

    >>> from fedtrellis.manifolds import Sphere
    >>> from fedtrellis.strategies import ZerothOrderRFL
    >>> ZerothOrderRFL(Sphere((3,)), step_size=0.05).samples
    50
    """

    name = "zeroth-order-rfl"
    # a client's scalars are along directions of its own
    _linear = False
    about = "Riemannian federated learning from function values"

    _measured_by = ("batch_size", "samples", "seed")

    step_size: float | None = setting(
        None,
        "of a local step; auto: 1/(r η_g τ), r the largest curvature of a client's f_i "
        "along a step, measured at the start",
        symbol="η",
        above=0.0,
    )
    samples: int = setting(50, "directions of a step", symbol="m", minimum=1)
    smoothing: float = setting(1e-4, "length of a difference", symbol="μ", above=0.0)
    shared_samples: bool = setting(
        True,
        "one mini-batch for all values of a step (m + 1 values), instead of one for "
        "each direction (2m), as in the paper",
        note="makes no difference without mini-batches",
    )
    upload: Upload = setting(
        "auto",
        "what the clients send; auto: scalars where they are fewer than ẑ's entries",
        choices=Upload,
    )

    @property
    def sends_scalars(self) -> bool:
        """Whether clients send scalars instead of ẑ."""
        if self.upload == "auto":
            size = prod(self.broadcast.layout.point_shape)
            return self.local_steps * self.samples < size
        return self.upload == "scalars"

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What :class:`FirstOrderRFL` sends; m, μ and the seed of the directions."""
        entries = super().instruction(server_round, client)
        entries |= entries_of(self, "samples", "smoothing", "seed")
        if not self.shared_samples:
            entries["shared-samples"] = False
        if self.sends_scalars:
            entries["scalars"] = True
        return entries

    def check(self, answer: Answer) -> tuple[FloatArray, int]:
        """ẑ_i, replayed if scalars were sent; and how many values were dropped."""
        dropped = answer.metrics.get("dropped", 0)
        if not isinstance(dropped, int) or dropped < 0:
            raise ValueError(f"the answer has dropped {dropped!r}")
        if not self.sends_scalars:
            return self.take_point(answer), dropped
        scalars = scalars_of(answer, self.local_steps * self.samples)
        rng = generator(self.seed, "directions", answer.client, answer.server_round)
        total = np.zeros(self._z.shape)
        for of_step in scalars.reshape(self.local_steps, self.samples):
            # G_t = (p·r/m) Σ_j s_tj u_tj, with the client's own directions
            total += combine(of_step, rng, self._z.shape)
        # ẑ = z − η Σ_t (G_t + c_i)
        total += self.local_steps * self._corrections[answer.client]
        point = self._z - self._settled("step_size") * total
        self._check_proportion(point, self.broadcast.model)
        return point, dropped

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """As :class:`FirstOrderRFL` does; and count."""
        points = {name: point for name, (point, _) in answers.items()}
        metrics = super().aggregate(server_round, points)
        a_step = self.samples + 1 if self.shared_samples else 2 * self.samples
        metrics["evaluations"] = len(answers) * self.local_steps * a_step
        dropped = sum(count for _, count in answers.values())
        if dropped:
            metrics["dropped-values"] = dropped
        return metrics
