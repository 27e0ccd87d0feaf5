"""FedAvg and its relatives: local gradient steps, and the mean of where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from math import inf, isfinite, nan
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.compressors import ChangeCompression, compressor
from fedtrellis.domains import Domain
from fedtrellis.local_steps import (
    StepSchedule,
    hidden_bounds,
    largest_bound,
    step_sizes,
    work_of,
)
from fedtrellis.server.aggregation import Aggregation, Private
from fedtrellis.server.conversation import Answer, Conversation
from fedtrellis.server.loop import Late, Needs
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError, entries_of, given, refused, setting
from fedtrellis.wire.arrays import DTYPES, FloatArray, Layout
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.protocol import STEPS

# A mean of signs is a multiple of 1/n.
_DRAW = 1e-9

Optimizer = Literal["momentum", "adam", "yogi"]


def falling(default: StepSchedule) -> Any:
    """The setting of how γ_k falls, FedGiA's paper having "log"."""
    text = "size of step k, counted over all rounds: a/log2(k + 1); a; or a/√k"
    return setting(default, text, symbol="γ_k", choices=StepSchedule)


def unpacked(strategy: RoundStrategy, answer: Answer, by: Any) -> FloatArray:
    """What a compressor packed; dense, as nobody can add it up else, of a sum."""
    if strategy.aggregator.seen_by == "client":
        return strategy._only_array(answer, strategy.broadcast.model.shape)
    change: FloatArray = by.unpack(answer.arrays, strategy.broadcast.layout)
    if not np.isfinite(change).all():
        raise ValueError("the answer is not finite")
    return change


class StepsByBounds(RoundStrategy):
    """Base of strategies whose clients' steps may find their sizes themselves.

    Where the size of local steps is ``"auto"``, one wave before round 1 asks the
    clients for r_i, of ∇f_i on all examples or on a mini-batch of theirs, and the
    steps get a size with which they contract for the largest.

    Attributes
    ----------
    lipschitz : float
        r, the largest r_i; NaN where no step needs it.
    """

    # settings that the clients' r_i may stand for, and what they need to find these
    _sizes: ClassVar[tuple[str, ...]] = ("step_size",)
    _measured_by: ClassVar[tuple[str, ...]] = ("batch_fraction",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lipschitz = nan
        clip = getattr(self.local_noise or self.aggregator, "clip", None)
        if self._automatic and clip is not None:
            why = "does not apply beside a clip of what clients send, who would send "
            why += "a constant of their data unclipped"
            raise refused(self._automatic[0], "auto", why, ["numbers above 0"])

    @property
    def _automatic(self) -> list[str]:
        return [name for name in self._sizes if getattr(self, name) is None]

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Ask for the r_i, unless no step needs them or a checkpoint has them."""
        # a run that goes on has a history; an earlier run's r is of other clients
        if not self._automatic or (self.history and isfinite(self.lipschitz)):
            return
        try:
            r = largest_bound(self, self._bounds(conversation, timeout))
            if r == 0.0:
                raise SettingsError("no client's gradient changes with the model")
        except SettingsError as error:
            raise SettingsError(f"{error}; or set {self._automatic[0]}") from None
        self.lipschitz = r
        for name in self._automatic:
            log(INFO, "%s = %.6g, from r = %.6g", name, self._settled(name), r)

    def _bounds(self, conversation: Conversation, timeout: float) -> dict[str, float]:
        """The r_i, by one wave before round 1, or their blocks' means."""
        phase, entries = "train.lipschitz", entries_of(self, *self._measured_by)
        names, bounds = conversation.names, dict[str, float]()
        if self.aggregator.seen_by == "client":
            answers = hidden_bounds(self, conversation, phase, timeout, entries)
            return {a.client: float([*a.arrays, a.numbers][0].flat[0]) for a in answers}

        def take(answer: Any) -> None:
            r = answer.metrics.get("lipschitz")
            if isinstance(r, float) and 0.0 <= r < inf:
                bounds[answer.client] = r
            else:  # where its steps lead is dropped as well
                log(WARNING, "client %s: Lipschitz constant %r", answer.client, r)

        of = dict.fromkeys(names, entries | self.aggregator.entries(names)).__getitem__
        conversation.ask_everyone(phase, of, take, timeout, names)
        return bounds

    def _settled(self, name: str) -> float:
        """The size of a step, set or from r."""
        size: float | None = getattr(self, name)
        return self._from_bound(name) if size is None else size

    def _from_bound(self, name: str) -> float:
        return 1.0 / self.lipschitz

    def _with_sizes(self, entries: dict[str, Any]) -> dict[str, Any]:
        """The entries of a request, with sizes instead of None."""
        settled = {name.replace("_", "-"): self._settled(name) for name in self._sizes}
        return entries | settled

    def state(self) -> dict[str, NDArray[Any]]:
        """What the method keeps, and r."""
        return super().state() | {"lipschitz": np.array(self.lipschitz)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        self.lipschitz = float(state["lipschitz"])


class LocalModels(StepsByBounds):
    """Base of strategies whose clients send a point, and whose state is the model."""

    needs: Needs | None = "sum"
    dtypes = DTYPES

    stateful = False
    _newcomers = True
    _late: Late = "change"
    keep_model = False

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing to prepare: the model is all of the state."""

    def check(self, answer: Answer) -> FloatArray:
        """The local model x_i; a late one changes the model of now."""
        point = self.take_point(answer)
        late = answer.basis is not None and self._late == "change"
        return self._aged(answer, point) if late else point


class FedAvgGD(LocalModels):
    """Non-stochastic FedAvg: local gradient steps and the mean of the local models.

    For min over x of f(x) = (1/m) Σ_i f_i(x), without a constraint, over m clients. In
    round t::

        client   x_i = x;  for k from (t − 1) k_0 + 1 to t k_0:
                     x_i ← x_i − γ_k ∇f_i(x_i)
        server   x ← (1/|S|) Σ over S of x_i, S those who answered

    With one local step, and everybody answering, this is gradient descent on f. With
    more it ends beside the minimiser, where the clients' steps cancel, unless γ_k falls
    to zero.

    With ``local_deadline`` client i takes τ_i ≤ k_0 of the steps, those that fit, and
    the mean is FedNova's: of x + (s̄/s_i) (x_i − x), where s_i is Σ γ_k over its steps,
    as a part of that over all k_0, and s̄ the mean of the s_i, with a robust
    ``aggregation`` their median.

    Source: the baseline of Zhou and Li, "Efficient and Convergent Federated Learning",
    IEEE Trans. Signal Processing 2023, arXiv 2205.01438, section V.D, after McMahan et
    al., AISTATS 2017, algorithm 1, with all of a client's examples in its batch and
    clients of equal weight. FedNova: Wang, Liu, Liang, Joshi, Poor, "Tackling the
    Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
    2020, arXiv 2007.07481.

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
    _normalises: ClassVar[bool] = True

    local_steps: int = setting(
        5, "gradient steps of a client in a round", symbol="k_0", minimum=1
    )
    step_size: float | None = setting(
        None,
        "size of the first local step; auto: 1/r, r the largest Lipschitz constant of "
        "a client's ∇f_i",
        note="the steps contract while γ_k < 2/r. The paper has 0.01 for its least "
        "squares. Steps that are too long end the run with an error that says so",
        symbol="a",
        above=0.0,
    )
    step_schedule: StepSchedule = falling("log")
    batch_fraction: float = setting(
        1.0,
        "part of a client's examples in a mini-batch",
        note="⌈batch_fraction · d_i⌉ of its d_i examples, drawn without replacement; "
        "1: the full gradient",
        above=0.0,
        maximum=1.0,
    )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps; the round decides which k they are."""
        entries = self._with_sizes(entries_of(self, "local_steps", "step_schedule"))
        if self.batch_fraction < 1.0:
            entries |= entries_of(self, "batch_fraction", "seed")
        if self.options.local_deadline is not None:
            entries |= entries_of(self.options, "local_deadline")
        return entries

    def check(self, answer: Answer) -> FloatArray:
        """The local model x_i; with a deadline only of a possible number of steps."""
        point, most = super().check(answer), self.local_steps
        if self.options.local_deadline is not None:
            taken = answer.metrics.get(STEPS)
            if type(taken) is not int or not 1 <= taken <= most:
                raise ValueError(f"the answer has {STEPS} {taken!r}, not 1 to {most}")
        return point

    def _work(self, answer: Answer) -> float:
        """s_i, the part that a client has done of what it was asked for."""
        size, mu = self._settled("step_size"), getattr(self, "proximal_weight", 0.0)
        asked = self.step_schedule, size, self.local_steps, answer.server_round
        sizes, taken = step_sizes(*asked), answer.metrics[STEPS]
        return work_of(sizes[:taken], mu) / work_of(sizes, mu)

    def _normalised(
        self, checked: dict[str, Any], answers: Sequence[Answer]
    ) -> dict[str, Any]:
        """The x_i, as far from x as by the mean work of those who answered."""
        work = {a.client: self._work(a) for a in answers if a.client in checked}
        if len(set(work.values())) == 1:
            return checked
        shares, weights = list(work.values()), None
        if self.options.client_weights == "examples":
            weights = self._examples_of(work)
        # a few liars choose no median
        mean = np.average(shares, weights=weights)
        mean = np.median(shares) if self.aggregator.robust else mean
        # x + (s̄/s_i) (x_i − x)
        x = self.broadcast.model.astype(np.float64)
        return {n: x + mean / work[n] * (x_i - x) for n, x_i in checked.items()}

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models of those who answered."""
        # x ← (1/|S|) Σ over S of x_i
        x = self.mean_of(answers, self.broadcast.model)
        self.broadcast.replace(x)
        return {}


class LocalSGD(FedAvgGD):
    """:class:`FedAvgGD` with a small mini-batch in every local step.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, with
    the settings of Zhou and Li, arXiv 2205.01438, section V.D, for its least squares.

    Notes
    -----
    The matching client is ``LocalSGDClient(context, objective)``; its objective needs
    ``stochastic_gradient(x, rng, batch_size)`` and ``num_examples``. Batches depend on
    the run's seed, the client and the round alone.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``LocalSGDClient`` on the nodes:

    >>> from fedtrellis.strategies import LocalSGD
    >>> LocalSGD(step_size=0.1).batch_fraction
    0.05
    """

    name = "local-sgd"
    about = "FedAvg with mini-batches, without a constraint"

    batch_fraction: float = setting(
        0.05, "part of a client's examples in a mini-batch", above=0.0, maximum=1.0
    )


class FedAvg(LocalSGD):
    """FedAvg as Flower's users know it: :class:`LocalSGD` with steps of one size.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, algorithm 1, with B as a part of a client's
    examples and E as a number of steps. Its weights, by examples, are
    ``client_weights="examples"``; the tasks of this package weigh their losses so.

    Notes
    -----
    The matching client is ``FedAvgClient(context, objective)``, as for LocalSGD.

    Examples
    --------
    >>> from fedtrellis.strategies import FedAvg
    >>> FedAvg(local_steps=10, client_weights="examples").step_schedule
    'constant'
    """

    name = "fedavg"
    about = "FedAvg with mini-batches and steps of one size"

    step_schedule: StepSchedule = falling("constant")


class FedProx(FedAvgGD):
    """:class:`FedAvgGD` with a proximal term in the local objectives.

    ::

        client   x_i = x;  k_0 times:  x_i ← x_i − γ_k (∇f_i(x_i) + μ (x_i − x))
        server   x ← (1/|S|) Σ over S of x_i, S those who answered

    The client's steps minimise h_i(x_i) = f_i(x_i) + (μ/2)‖x_i − x‖², so that many of
    them do not carry it off to its own minimiser. With ``local_deadline`` a step counts
    in s_i for what later ones leave of it, γ_k Π (1 − γ_j μ) over j > k.

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
    Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, algorithm 2, with k_0
    gradient steps as the inexact minimiser of h_i.

    Notes
    -----
    The matching client is ``FedProxClient(context, objective)``.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``FedProxClient`` on the nodes:

    >>> from fedtrellis.strategies import FedProx
    >>> FedProx(step_size=0.1, proximal_weight=0.5).local_steps
    5
    """

    name = "fedprox"
    about = "FedAvg with a proximal term, without a constraint"

    proximal_weight: float = setting(
        0.01,
        "weight of the proximal term; 0 is FedAvgGD",
        note="the steps contract while γ_k < 2/(r + μ), and 1/(r + μ) is their size "
        "where it is auto",
        symbol="μ",
        minimum=0.0,
    )

    def _from_bound(self, name: str) -> float:
        # h_i curves by r_i + μ
        return 1.0 / (self.lipschitz + self.proximal_weight)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and μ if there is one."""
        entries = super().instruction(server_round, client)
        if self.proximal_weight:
            entries["proximal-weight"] = float(self.proximal_weight)
        return entries


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
    Run as :class:`FedAvgGD` is, with ``FedOptClient`` on the nodes:

    >>> from fedtrellis.strategies import FedOpt
    >>> FedOpt(step_size=0.5, optimizer="adam").server_momentum
    0.9
    """

    name = "fedopt"
    about = "FedAvg with momentum, Adam or Yogi on the server"

    _kept = ("_m", "_v")
    _state_settings: tuple[str, ...] = ("optimizer",)

    step_schedule: StepSchedule = falling("constant")
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
        beta = self.server_momentum
        if self.optimizer == "momentum":
            # m ← β₁ m + Δ;  x ← x + η m
            step = self._m = beta * self._m + change
        else:
            # m ← β₁ m + (1 − β₁) Δ;  x ← x + η m / (√v + τ)
            self._m = beta * self._m + (1.0 - beta) * change
            rest, square = 1.0 - self.second_moment, change**2
            if self.optimizer == "adam":
                # v ← β₂ v + (1 − β₂) Δ²
                self._v = self.second_moment * self._v + rest * square
            else:
                # v ← v − (1 − β₂) Δ² sign(v − Δ²)
                self._v = self._v - rest * square * np.sign(self._v - square)
            step = self._m / (np.sqrt(self._v) + self.adaptivity)
        self.broadcast.replace(x + self.server_step_size * step)
        return {}

    def mean_change(self, answers: dict[str, Any]) -> FloatArray:
        """Δ, what the server's optimiser takes for its slope, of the model's shape."""
        x = self.broadcast.model
        # Δ = (1/|S|) Σ over S of x_i − x
        return self.mean_of(answers, x) - x


class Scaffold(FedAvgGD):
    """:class:`FedAvgGD` with control variates, which make its fixed point exact.

    ::

        client   x_i = x;  k_0 times:  x_i ← x_i − γ_k (∇f_i(x_i) + c − c_i)
                 sends x_i
        both     c_i ← (x − x_i) / Σ γ_k − (c − c_i), the mean of the round's ∇f_i(x_i)
        server   x ← (1/|S|) Σ over S of x_i;  c ← (1/n) Σ over all n clients of c_i

    The server replays c_i, so that it need not be sent: up goes what FedAvg sends, down
    twice as much. A fixed point that is exact is worth more rounds than FedAvg's, and
    columns that nearly depend on others need them: 250 unless the run sets others, of
    20 local steps each.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic
    Controlled Averaging for Federated Learning", ICML 2020, arXiv 1910.06378, algorithm
    1 with option II and a global step size of 1.

    Notes
    -----
    The matching client is ``ScaffoldClient(context, objective)``.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``ScaffoldClient`` on the nodes:

    >>> from fedtrellis.strategies import Scaffold
    >>> Scaffold(step_size=0.5).step_schedule
    'constant'
    """

    name = "scaffold"
    about = "FedAvg with control variates, without a constraint"
    _usual_rounds = 250
    # each c_i is replayed from its x_i
    needs, _linear, _replayed = "each", True, "_controls"
    _late: Late = ""  # a late c_i would be of another c
    _normalises = False  # nor would a c_i of fewer steps be of all
    stateful = True
    _newcomers = False
    _kept = ("_controls",)

    local_steps: int = setting(
        20, "gradient steps of a client in a round", symbol="k_0", minimum=1
    )
    step_schedule: StepSchedule = falling("constant")

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with c_i = 0."""
        zero = np.zeros_like(self.broadcast.model)
        self._controls = dict.fromkeys(self.clients, zero)
        self._publish_control()

    def _publish_control(self) -> None:
        # c ← (1/n) Σ c_i; rounded to what the clients are sent
        zero, layout = np.zeros_like(self.broadcast.model), self.broadcast.layout
        sent = layout.to_wire(self.average(list(self._controls.values()), zero))
        self._control, self._sent = layout.from_wire(sent), sent.tobytes()

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and c."""
        return {**super().instruction(server_round, client), "control": self._sent}

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the local models, and replay the c_i of those who answered."""
        schedule, size = self.step_schedule, self._settled("step_size")
        total = sum(step_sizes(schedule, size, self.local_steps, server_round))
        x = self.broadcast.model
        for name, x_i in answers.items():
            # c_i ← (x − x_i) / Σ γ_k − (c − c_i)
            correction = self._control - self._controls[name]
            self._controls[name] = (x - x_i) / total - correction
        metrics = super().aggregate(server_round, answers)
        self._publish_control()
        return metrics

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """c_i."""
        return {"control": self._controls[client]}

    def _forget(self, clients: Sequence[str]) -> None:
        super()._forget(clients)
        self._publish_control()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        super().load_state(state)
        self._publish_control()


class CompressedSGD(FedOpt):
    """:class:`FedOpt` with a fraction of the bytes up; the model goes down dense.

    ::

        client   x_i after k_0 local steps from x, as in FedAvg; Δ_i = x_i − x
        top-k    sends d_i = C(e_i + Δ_i), keeps e_i ← e_i + Δ_i − d_i
        qsgd     sends d_i = Q(Δ_i), each entry at random to a level, unbiased
        sign     sends d_i = sign(Δ_i), a bit an entry
        server   Δ = (1/|S|) Σ over S of d_i;  for sign its sign, the clients' majority;
                 then momentum, Adam or Yogi on Δ as in FedOpt

    Baselines for methods that save bytes. e_i is the client's alone: one that has lost
    its state begins with zero.

    Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv
    1809.07599, and Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019, arXiv
    1901.09847, for top-k; Alistarh et al., "QSGD", NeurIPS 2017, arXiv 1610.02132;
    Bernstein et al., "signSGD", ICML 2018, arXiv 1802.04434, for the majority. Local
    steps, and momentum on the server, are FedOpt's.

    Notes
    -----
    The matching client is ``CompressedSGDClient(context, objective)``. With ``sign``
    each entry moves by ``server_step_size`` times up to 1/(1 − ``server_momentum``).

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``CompressedSGDClient`` on the nodes:

    >>> from fedtrellis.strategies import CompressedSGD
    >>> CompressedSGD(step_size=0.5, kept_fraction=0.3).compressor
    'top-k'
    """

    name = "compressed-sgd"
    about = "FedAvg whose changes go up as few entries, levels or signs"
    stateful = True
    _late: Late = ""
    _normalises = False
    _sent_arrays = (0, 1)
    _state_settings: tuple[str, ...] = ("optimizer", "compressor")

    compressor: ChangeCompression = setting(
        "top-k",
        "of the changes: the largest entries, with error feedback; random levels; or "
        "signs, of which the majority counts",
        symbol="C",
        choices=ChangeCompression,
    )
    kept_fraction: float = setting(
        0.05,
        "part of the entries that top-k keeps",
        above=0.0,
        maximum=1.0,
        only={"compressor": ("top-k",)},
    )
    levels: int = setting(
        7,
        "of an entry's size with qsgd: 1 takes 2 bits an entry, up to 7 take four, "
        "more take eight",
        symbol="s",
        minimum=1,
        maximum=127,
        only={"compressor": ("qsgd",)},
    )

    @property
    def _lost(self) -> dict[str, str]:
        return {"error": "begins with e_i = 0"} if self.compressor == "top-k" else {}

    def _admits(self, kind: type[Aggregation]) -> bool:
        """No noise for changes that carry what was left of earlier ones."""
        return super()._admits(kind) and not issubclass(kind, Private)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps, and how to compress where they lead."""
        steps = super().instruction(server_round, client)
        return steps | entries_of(self, "seed", "compressor", "kept_fraction", "levels")

    def check(self, answer: Answer) -> FloatArray:
        """The change d_i; in proportion to the model, but for signs."""
        x = self.broadcast.model
        by = compressor(self.compressor, self.kept_fraction, levels=self.levels)
        change = unpacked(self, answer, by)
        if self.compressor != "sign" and self.aggregator.seen_by != "client":
            self._check_proportion(x + change, x)
        return change

    def mean_change(self, answers: dict[str, Any]) -> FloatArray:
        """Δ, the mean of the d_i, or its sign."""
        mean = self.mean_of(answers, np.zeros_like(self.broadcast.model))
        if self.compressor == "sign":
            # the majority; 0 where it is a draw, also of means that were rounded
            return np.sign(np.where(np.abs(mean) < _DRAW, 0.0, mean))
        return mean


class ProjectedFedAvg(LocalModels):
    """Local gradient steps, the mean of the local models, one projection.

    ::

        client   x_i = x̄;  k times:  x_i ← x_i − γ ∇f_i(x_i)
        server   x̄ ← P_D( (1/|S|) Σ over S of x_i )

    The projection commutes neither with the average nor with the local steps, so with
    more than one local step and unequal clients the limit is not the constrained
    minimiser; a baseline.

    Notes
    -----
    The matching client is ``ProjectedFedAvgClient(context, objective)``.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``ProjectedFedAvgClient`` on the nodes:

    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import ProjectedFedAvg
    >>> ProjectedFedAvg(L1Ball(1.0)).local_steps
    5
    """

    name = "projected-fedavg"
    about = "FedAvg with a projection after the average"
    space = "domain"

    domain: Domain = given("D", kw_only=False)
    local_steps: int = setting(
        5, "gradient steps of a client in a round", symbol="k", minimum=1
    )
    local_step_size: float | None = setting(
        None,
        "their size; auto: 1/r, r the largest Lipschitz constant of a client's ∇f_i",
        symbol="γ",
        above=0.0,
    )
    batch_size: int = setting(0, "examples in a local mini-batch; 0: all", minimum=0)

    _sizes: ClassVar[tuple[str, ...]] = ("local_step_size",)
    _measured_by: ClassVar[tuple[str, ...]] = ("batch_size",)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """The local steps."""
        names = "local_steps", "batch_size", "seed"
        return self._with_sizes(entries_of(self, *names))

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average and project."""
        mean = self.mean_of(answers, self.broadcast.model)
        self.broadcast.replace(self.domain.project(mean))
        return {}


class FedDR(ProjectedFedAvg):
    """Randomised Douglas-Rachford splitting for min F(x) over x in D.

    ::

        client   y_i ← y_i + α (x̄ − x_i)
                 x_i ≈ prox_{η f_i}(y_i) = argmin_x f_i(x) + ‖x − y_i‖²/(2η)
                 sends x̂_i = 2 x_i − y_i
        server   x̄ = P_D( (1/n) Σ_i x̂_i ), with the last x̂_i of those who sat out

    The proximal operator is solved by k gradient steps of size γ from the client's x_i.
    A run has 250 rounds unless it sets others, as SCAFFOLD's.

    Source: Tran Dinh, Pham, Phan, Nguyen, "FedDR", NeurIPS 2021, algorithm 1, with g
    the indicator of D, whose proximal operator is the projection.

    Notes
    -----
    The matching client is ``FedDRClient(context, objective)``. The server replays y_i,
    for a client that lost its state: x_i = (x̂_i + y_i)/2 is in the next step of it.

    Examples
    --------
    Run as :class:`FedAvgGD` is, with ``FedDRClient`` on the nodes:

    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import FedDR
    >>> FedDR(L1Ball(1.0), proximal_step=1.0).relaxation
    1.95
    """

    name = "feddr"
    _usual_rounds = 250
    about = "federated Douglas-Rachford splitting"
    # of every client the last is kept
    needs, _linear = "each", True
    _late: Late = "vector"
    _least_answers = 1
    stateful, _newcomers = True, False
    _kept = ("_reflections", "_duals")

    relaxation: float = setting(
        1.95,
        "relaxation; 1.95 in the authors' experiments",
        symbol="α",
        above=0.0,
        below=2.0,
    )
    proximal_step: float | None = setting(
        None,
        "step of the proximal operator; auto: 10/r, r the largest Lipschitz constant "
        "of a client's ∇f_i",
        symbol="η",
        above=0.0,
    )
    local_steps: int = setting(
        20, "gradient steps of a client in a round", symbol="k", minimum=1
    )
    local_step_size: float | None = setting(
        None,
        "their size; auto: 1/(r + 1/η)",
        note="the steps contract when γ < 2/(r + 1/η)",
        symbol="γ",
        above=0.0,
    )

    _sizes: ClassVar[tuple[str, ...]] = ("proximal_step", "local_step_size")

    def _from_bound(self, name: str) -> float:
        if name == "proximal_step":
            return 10.0 / self.lipschitz
        return 1.0 / (self.lipschitz + 1.0 / self._settled("proximal_step"))

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start with every x̂_i and y_i at the initial model."""
        start = self.broadcast.model
        self._reflections = {name: start.copy() for name in self.clients}
        self._duals = {f"{name}/y": start for name in self.clients}

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Relaxation, proximal step and local steps."""
        steps = super().instruction(server_round, client)
        return entries_of(self, "relaxation") | steps

    def check(self, answer: Answer) -> Any:
        """x̂_i, and the x̄ that it is for."""
        x_bar = self.broadcast.model if answer.basis is None else answer.basis
        return super().check(answer), x_bar

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Project the mean of all clients' last x̂_i."""
        for name, (reflection, x_bar) in answers.items():
            before = self.client_state(name)
            # y_i ← y_i + α (x̄ − x_i)
            y_i = before["y"] + self.relaxation * (x_bar - before["x"])
            self._reflections[name], self._duals[f"{name}/y"] = reflection, y_i
        # x̃ = (1/n) Σ x̂_i;  x̄ = P_D(x̃); in the clients' order, whoever answered
        points = [self._reflections[name] for name in self._members]
        mean = self.average(points, self.broadcast.model)
        self.broadcast.replace(self.domain.project(mean))
        return {}

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """x_i and y_i; of a block's member x̄."""
        if self.aggregator.seen_by == "client":
            x_bar = self.broadcast.model
            return {"x": x_bar, "y": x_bar}
        y_i = self._duals[f"{client}/y"]
        return {"x": (self._reflections[client] + y_i) / 2.0, "y": y_i}
