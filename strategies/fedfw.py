"""Federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto, corrective FedFW, a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtrellis.corrective import Form, Iterate
from fedtrellis.corrective.consensus import Balance, Consensus, automatic_penalty
from fedtrellis.corrective.schedules import FrankWolfeSchedule, Schedule
from fedtrellis.domains import Domain, Product
from fedtrellis.domains.atoms import Atom, rounding, unpack_atoms
from fedtrellis.domains.base import alike, describe
from fedtrellis.domains.replayed import ReplayedIterate
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError, entries_of, given, refused, setting
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, sparse_or_dense
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.flower_internals import log

Paper = Literal["plain", "augmented", "stochastic"]
Variant = Literal["corrective", Paper]
PAPERS: tuple[Paper, ...] = get_args(Paper)
StepCount = Literal["own", "round"]
_Only = dict[str, Sequence[str | None]]
_CORRECTIVE: _Only = {"variant": ("corrective",)}
_PAPERS: _Only = {"variant": PAPERS}
# whose clients send atoms alone, of gradients of one round
_PRIVATE = ("plain", "augmented")
_STOCHASTIC: _Only = {"variant": ("stochastic",)}
_CONSTANT: _Only = {"schedule": ("constant",)}
# entry of an evaluation's request: it is to bring x̄
_EVALUATED = "evaluated"
# Rounding of x̄ over its largest entry, in eight units of a float32's last place.
_DRIFT = 8.0 * float(np.finfo(np.float32).eps)
# Corrective steps of a round unless the user sets them.
_STEPS = 20
# Random directions in which a larger set is compared with D.
_DIRECTIONS = 10


class FrankWolfeStrategy(RoundStrategy):
    """Base of strategies that take atoms: D, and whose atoms are taken.

    A client sends before round 1 which set it works on, and an atom outside that set is
    refused: whatever one of n clients sends, its share of x̄ stays in its set. In a free
    layer ``answer_bound`` is all that holds it.
    """

    space = "domain"
    _bounded = True
    # the steps shrink: halves would soon no longer hold them
    dtypes = ("float64", "float32")

    domain: Domain = given(
        "D, in the shape of the model: an array's own shape if the model has one "
        "array, else the vector of all entries, layer after layer",
        kw_only=False,
    )
    client_domains: Sequence[Domain] = given(
        "larger sets D_i ⊇ D, of which any client may have one; the intersection of "
        "all clients' sets must be D",
        default=(),
        shown=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.domain.bounded and (why := self._needs_bounds()):
            raise SettingsError(f"domain = {self.domain!r} is not bounded: {why}")

    def _needs_bounds(self) -> str:
        """Why D has to be bounded, in all layers; empty if it need not be."""
        return "FedFW needs a bounded set for every layer"

    def _settle_domains(self, shape: tuple[int, ...]) -> None:
        """Find out which set each client has, of what was declared and what it sent."""
        for domain in self.client_domains:
            domain.check_shape(shape)
            rng = generator(0, "directions")
            for _ in range(_DIRECTIONS):
                g = rng.standard_normal(shape)
                # D ⊆ D_i just if all extreme points of D, argmin ⟨g, s⟩, lie in D_i
                if not domain.contains_atom(self.domain.lmo(g)):
                    what = f"{domain!r}, which does not enclose {self.domain!r}"
                    raise SettingsError(f"client_domains has {what}")
        # D_i, the client's own set, or D
        self._domains = {name: self._domain_of(name) for name in self.clients}
        self._may_leave = any(d is not self.domain for d in self._domains.values())
        self._was_outside = False

    def _domain_of(self, name: str) -> Domain:
        sent = str(self.conversation.clients[name].properties.get("domain", ""))
        allowed = [self.domain, *self.client_domains]
        if not sent:  # a client of somebody else's
            return self.domain
        for domain in allowed:
            if alike(sent, describe(domain)):
                return domain
        raise SettingsError(
            f"client {name} works on {sent[:500]}, and the strategy on "
            f"{' or '.join(map(repr, allowed))}: make them one set, or declare the "
            f"client's, which must enclose the strategy's, by client_domains"
        )

    def _take_atoms(self, answer: Answer, count: int) -> tuple[Atom, ...]:
        """The atoms of an answer; ValueError if one is missing or outside its set."""
        layout = self.broadcast.layout
        shape, dtype = layout.point_shape, layout.point_dtype
        atoms = unpack_atoms(answer.arrays, shape, dtype)
        if len(atoms) != count:
            raise ValueError(f"the answer has {len(atoms)} atoms instead of {count}")
        domain = self._domains[answer.client]
        if not all(domain.contains_atom(atom, rounding(dtype)) for atom in atoms):
            raise ValueError(f"an atom lies outside {domain!r}")
        return tuple(atoms)

    def _whether_outside(self) -> dict[str, float]:
        """The metric ``outside-domain``, 0 or 1; none where all clients have D."""
        if not self._may_leave:
            return {}
        tolerance = rounding(self.broadcast.layout.point_dtype)
        outside = not self.domain.contains(self._result_point(), tolerance)
        if outside and not self._was_outside:
            why = "some clients' sets are larger, and they agree in the long run only"
            log(WARNING, "the model lies outside %r: %s", self.domain, why)
            self._was_outside = True
        return {"outside-domain": float(outside)}


class NaiveFrankWolfe(FrankWolfeStrategy):
    """Average the atoms of the clients' own gradients; a baseline that fails.

    ::

        client   s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩
        server   x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ over S of s_i

    The mean of the clients' oracles is not the oracle of the mean gradient. On
    min over [−1, 1] of ½(x − 3)² + ½(x + 1)² from 0 the two clients answer 1 and −1 for
    ever, and x̄ stays at 0; the solution is 1.

    Source: arXiv 2408.10090, Appendix A.

    Notes
    -----
    The matching client is ``NaiveFrankWolfeClient(context, objective, domain)``.

    Examples
    --------
    Run as :class:`FedFW` is, with ``NaiveFrankWolfeClient`` on the nodes:

    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import NaiveFrankWolfe
    >>> NaiveFrankWolfe(L1Ball(1.0)).schedule
    'convex'
    """

    name = "naive-frank-wolfe"
    about = "averaged oracles, a baseline that does not converge"
    stateful = False

    schedule: Schedule | Literal["auto"] = setting(
        None,
        "of the step size",
        note="see :class:`~fedtrellis.corrective.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=Schedule,
    )
    step_size: float = setting(
        0.01,
        "of the constant schedule",
        symbol="η",
        above=0.0,
        maximum=1.0,
        only=_CONSTANT,
    )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Make the schedule, now that rounds and clients are known."""
        self._settle_domains(layout.point_shape)
        self._schedule = FrankWolfeSchedule(
            self.schedule,
            penalty=0.0,
            participation=self._expected_participation,
            num_rounds=self.planned_rounds,
            step_size=self.step_size,
        )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Nothing: the client only needs x̄."""
        return {}

    def check(self, answer: Answer) -> Atom:
        """The atom s_i."""
        (atom,) = self._take_atoms(answer, 1)
        return atom

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the atoms."""
        eta = self._schedule.step(server_round)
        # x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ s_i
        step = Step(1.0 - eta, eta / len(answers), tuple(answers.values()))
        self.broadcast.advance(step)
        return self._whether_outside()


class FedFW(FrankWolfeStrategy):
    """Federated Frank-Wolfe: clients send points of a set in their smallest form.

    Solves min over x in D of F(x) = (1/n) Σ_i f_i(x). Every client i keeps its own
    x_i, the server keeps x̄ = (1/n) Σ_i x_i. In round t, with S the clients whose
    answers were used::

        client   g_i = (1/n) ∇f_i(x_i) + λ_t (x_i − x̄)                       plain
                 y_i ← y_i + λ_0 (x_i − x̄);  g_i as above, plus y_i          augmented
                 d_i ← (1 − ρ_t) d_i + ρ_t (1/n) ∇f_i(x_i, ω),
                 g_i = d_i + λ_t (x_i − x̄)                                   stochastic
                 s_i = argmin over s in D of ⟨g_i, s⟩
                 x_i ← (1 − η_i) x_i + η_i s_i
                 sends s_i, and ‖g_i‖ once if λ_0 is to find itself
        server   x̄ ← x̄ + (1/n) Σ over S of η_i (s_i − x_i)

    k ``local_steps`` are k of the client's lines against one x̄, and k atoms. With
    ``step_count = "own"`` the convex schedule's t is 1 + k_i for client i, which has
    taken k_i steps that were used, and in λ_t 1 + the mean of all k_i; with "round" it
    is that of the round, one η_t for all.

    With everybody in S and one η the server's step is x̄ ← (1 − η) x̄ + (η / n) Σ s_i: n
    atoms, which is how x̄ travels back to the clients. The server knows every x_i
    without ever seeing one, because it can replay it from the s_i it used; so it can
    take the exact step when clients sit out or answers are lost, and give a client that
    lost its state x_i (and y_i) back. A gradient average d_i that is lost starts again
    with ρ = 1.

    Source: arXiv 2408.10090, algorithm 1 with its variants FedFW+ and FedFW-sto, §4.2
    (participation), §4.3 (clients with a larger D_i of their own). Own steps, several
    steps a round and λ_0 by itself are ours.

    Notes
    -----
    Nothing of this is private: from what it replays the server can compute gradients
    of f_i, see ``docs/fedfw.md``.

    With the corrective variant layers may be free (a ``WholeSpace`` among a
    ``Product``'s sets): their steps are plain gradient steps on L_i.

    The matching client is ``FedFWClient(context, objective, domain)``. No theory covers
    FedFW-sto with p < 1 or on non-convex losses, or clients with steps of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import FedFWClient
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.objectives import LeastSquares
    >>> from fedtrellis.strategies import FedFW
    >>> targets = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.5, 0.0])]
    >>> losses = [LeastSquares(np.eye(3), target) for target in targets]
    >>> def client_fn(context):
    ...     loss = losses[context.node_config["partition-id"]]
    ...     return FedFWClient(context, loss, L1Ball(1.0))
    >>> grid = LocalGrid(client_app(client_fn), 2)
    >>> strategy = FedFW(L1Ball(1.0))
    >>> start = ArrayRecord([np.zeros(3)])
    >>> result = strategy.start(grid, start, num_rounds=30)
    >>> result.arrays.to_numpy_ndarrays()[0].round(2) + 0.0
    array([1., 0., 0.])
    """

    name = "fedfw"
    about = "federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto"
    _state_settings = ("variant",)
    _least_answers = 1
    _private_mechanism = "exponential"
    _free_to_change = ("penalty",)

    penalty: float = setting(
        None,
        "weight of the consensus penalty, λ_0, or ρ of the corrective variant; auto: "
        "by what the clients' first answers say",
        symbol="λ_0",
        minimum=0.0,
    )
    variant: Variant | Literal["auto"] = setting(
        None,
        "corrective steps, FedFW, FedFW+ (augmented) or FedFW-sto",
        auto="corrective",
        choices=Variant,
    )
    schedule: Schedule | Literal["auto"] = setting(
        None,
        "of step size and penalty; the corrective variant has no steps of a schedule, "
        "and asks only whether F is convex or nonconvex",
        note="see :class:`~fedtrellis.corrective.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=Schedule,
    )
    step_count: StepCount | Literal["auto"] = setting(
        None,
        "what t of the convex schedule counts: the steps of each client that were "
        "used (own), or the rounds (round), as the paper does; auto: own with that "
        "schedule",
        choices=StepCount,
        only=_PAPERS,
    )
    local_steps: int = setting(
        None,
        "steps of a client in a round; auto: 20 of the corrective variant, 1 of the "
        "papers'",
        symbol="k",
        minimum=1,
    )
    step_size: float = setting(
        0.01,
        "of the constant schedule",
        symbol="η",
        above=0.0,
        maximum=1.0,
        only=_PAPERS | _CONSTANT,
    )
    averaging: float = setting(
        0.1,
        "weight of a new gradient in FedFW-sto's constant schedule",
        symbol="ρ",
        above=0.0,
        maximum=1.0,
        only=_STOCHASTIC | _CONSTANT,
    )
    batch_size: int = setting(
        64, "examples in a mini-batch of FedFW-sto", minimum=1, only=_STOCHASTIC
    )
    tolerance: float = setting(
        1e-6,
        "relative size of the corrective variant's residuals, and of the certificate "
        "if there is one, that ends the run; 0: never",
        minimum=0.0,
        only=_CORRECTIVE,
    )
    certificate: bool = setting(
        False,
        "bound F* from below, for convex f_i: every client of the corrective variant "
        "also sends f_i(x_i) and a Frank-Wolfe gap",
        only=_CORRECTIVE,
    )
    lmo_noise: float = setting(
        0.0,
        "standard deviation of Gaussian noise on g_i, added by the client before its "
        "oracle; 0: none",
        symbol="σ",
        minimum=0.0,
        only=_PAPERS,
    )
    lmo_noise_decay: bool = setting(
        True,
        "whether that deviation is σ √η_t; without this F stays above F*, by more the "
        "larger σ is",
        only=_PAPERS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant in PAPERS:
            self.tolerance = 0.0  # their residuals stop nobody
        beside = f"does not apply beside privacy = {self.privacy!r}"
        # what is sent may be no more than atoms, and no ‖g_i‖
        if self.privacy != "none" and self.variant not in _PRIVATE:
            raise refused("variant", self.variant, beside, _PRIVATE)
        if self.privacy != "none" and self.penalty is None:
            why = f"{beside}, as clients would send the norm of their gradients"
            raise refused("penalty", "auto", why, ["numbers"])
        unfit = f"does not fit variant = {self.variant!r}"
        if self.variant in PAPERS:
            if self.step_count == "own" and self.schedule != "convex":
                why = f"is for schedule = 'convex', not for {self.schedule!r}"
                raise refused("step_count", "own", why, ["'round'"])
        elif self.schedule not in ("convex", "nonconvex"):
            raise refused("schedule", self.schedule, unfit, ["convex", "nonconvex"])
        elif self.penalty == 0.0:
            why = f"must be above 0, or 'auto': {self.variant!r} divides by it"
            raise refused("penalty", 0.0, why)

    def _needs_bounds(self) -> str:
        """The corrective variant's steps are projected ones, which free layers have."""
        if self.variant in PAPERS:
            return f"variant = {self.variant!r} needs a bounded set for every layer"
        layers = self.domain.domains if isinstance(self.domain, Product) else ()
        if not any(domain.bounded for domain in layers):
            return "FedFW needs a bounded set for at least one layer"
        if self.certificate or self.client_domains:
            name = "certificate" if self.certificate else "client_domains"
            return f"{name} does not apply, as a free layer has no oracle"
        return ""

    def _check_aggregation(self) -> None:
        """The corrective variant averages each client's last; x̄ of others is atoms."""
        self.needs = None if self.variant in PAPERS else "each"
        self._late = "" if self.variant in PAPERS else "vector"
        # an atom for each local step
        self._private_releases = self.local_steps or 1
        super()._check_aggregation()

    @property
    def _basis(self) -> Any:
        """Of the corrective variant, the only one that asks: z and ρ."""
        return self.broadcast.model, self.half.penalty

    @property
    def _counts_own_steps(self) -> bool:
        """Whether the schedule goes by each client's own steps."""
        return self.schedule == "convex" and self.step_count != "round"

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start the variant's half, with every client at the initial model."""
        self._settle_domains(layout.point_shape)
        if not self.domain.contains(point, rounding(layout.point_dtype)):
            log(WARNING, "The initial model lies outside %r", self.domain)
        kind = _PaperSteps if self.variant in PAPERS else _CorrectiveSteps
        self.half: _PaperSteps | _CorrectiveSteps = kind(self)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What the variant's client needs for its answer."""
        return self.half.instruction(server_round, client)

    def check(self, answer: Answer) -> Any:
        """What the variant makes of an answer."""
        return self.half.check(answer)

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Take the variant's server step, and replay every used client's."""
        return self.half.aggregate(server_round, answers)

    def _result_point(self) -> FloatArray:
        """x̄, which the corrective variant does not send."""
        return self.half.model

    def converged(self) -> bool:
        """Whether the corrective variant's residuals are small."""
        half = self.half
        return isinstance(half, Consensus) and half.converged(self.certificate)

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """What the broadcast has, or for an evaluation x̄ where that is not the same."""
        own = entries.pop(_EVALUATED, False)
        return self._evaluated if own else super()._model_for(client, entries)

    def _evaluate_clients(self, server_round: int) -> dict[str, float]:
        """Mean of the clients' metrics at x̄."""
        if self.half.model is self.broadcast.model:
            return super()._evaluate_clients(server_round)
        config, timeout = self._loop.evaluate_config, self._loop.timeout
        layout = self.broadcast.layout
        parts = sparse_or_dense(layout.to_wire(self.half.model))
        self._evaluated = (
            array_record(parts, join=True),
            {
                "model-encoding": "dense" if len(parts) == 1 else "sparse",
                **layout.entries(),
                "model-version": self.broadcast.version,
                # what the client keeps is z
                "keep-model": False,
            },
        )
        own = {**config, _EVALUATED: True}  # one object, so that one request is made
        entries = dict.fromkeys(self.clients, own)
        answers = self.conversation.ask(server_round, "evaluate", entries, timeout)
        return self._mean_evaluation(answers)

    @property
    def _lost(self) -> dict[str, str]:
        lost = {"d": "begins with d_i of its next batch (variant stochastic)"}
        return lost if self.variant == "stochastic" else {}

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        """x_i, and what else of the variant's state the server can replay."""
        return self.half.client_state(client)

    def state(self) -> dict[str, NDArray[Any]]:
        """What the server replays, for a checkpoint."""
        return self.half.state()

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.half.load_state(state)


# Of an answer: s_i of each local step, and ‖(1/n) ∇f_i(x¹)‖ where it was asked for.
_Answer = tuple[tuple[Atom, ...], float]


class _PaperSteps:
    """FedFW, FedFW+ and FedFW-sto; ``penalty`` is λ_0, None until it is settled."""

    def __init__(self, strategy: FedFW) -> None:
        self._strategy = strategy
        self._local_steps = strategy.local_steps or 1
        self._schedule = FrankWolfeSchedule(
            strategy.schedule,
            # 0 until it is known
            strategy.penalty or 0.0,
            # who counts steps needs no p
            1.0 if strategy._counts_own_steps else strategy._expected_participation,
            strategy.planned_rounds * self._local_steps,
            strategy.step_size,
            strategy.averaging,
        )
        self.penalty: float | None = strategy.penalty
        # x_i and y_i are replayed for the whole run, in float64 whatever x̄ is of
        self._start = strategy.broadcast.model.astype(np.float64)
        # what x̄ would be without rounding, where it is rounded
        narrow = strategy.broadcast.layout.dtype != "float64"
        self._mean = self._start.copy() if narrow else None
        self._mirrors = {n: ReplayedIterate(self._start) for n in strategy.clients}
        self._duals: dict[str, FloatArray] = {}
        if strategy.variant == "augmented":
            self._duals = {n: np.zeros(self._start.shape) for n in strategy.clients}
        # k_i, and their sum
        self._steps_taken, self._all_steps = dict.fromkeys(strategy.clients, 0), 0

    def _settle(self, penalty: float | None) -> None:
        self.penalty = penalty
        self._schedule = replace(self._schedule, penalty=penalty or 0.0)

    def _clocks(
        self, server_round: int, client: str
    ) -> tuple[list[float], list[float]]:
        """Return t of η_t and t of λ_t for each local step of a client's answer."""
        # until λ_0 is known there is one step, in which x_i = x̄ and λ does not matter
        count = range(1, 1 + (1 if self.penalty is None else self._local_steps))
        if not self._strategy._counts_own_steps:
            # τ = (t − 1) k + j
            first = (server_round - 1) * self._local_steps
            both = [float(first + j) for j in count]
            return both, both
        # η_i = 2 / (k_i + 2), λ = λ_0 √(mean of all k_i + 2)
        own = self._steps_taken[client]
        mean = self._all_steps / len(self._steps_taken)
        return [float(own + j) for j in count], [mean + j for j in count]

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        strategy, schedule = self._strategy, self._schedule
        own, together = self._clocks(server_round, client)
        step_sizes = [schedule.step(t) for t in own]
        entries: dict[str, Any] = {
            "step-size": _one_or_all(step_sizes),
            "penalty": _one_or_all([schedule.penalty_weight(t) for t in together]),
        }
        if self.penalty is None:
            entries["gradient-norm"] = True
        if strategy.variant != "plain":
            entries |= entries_of(strategy, "variant")
        if strategy.variant == "augmented":
            entries["dual-penalty"] = self.penalty or 0.0
        if strategy.variant == "stochastic":
            weights = [schedule.averaging_weight(t) for t in own]
            entries["averaging"] = _one_or_all(weights)
            entries |= entries_of(strategy, "batch_size")
        if strategy.lmo_noise:
            # σ √η_t, or σ
            decays, sigma = strategy.lmo_noise_decay, strategy.lmo_noise
            noise = [sigma * (eta**0.5 if decays else 1.0) for eta in step_sizes]
            entries["lmo-noise"] = _one_or_all(noise)
        if strategy.lmo_noise or strategy.variant == "stochastic":
            entries["seed"] = strategy.seed
        return entries

    def check(self, answer: Answer) -> _Answer:
        if self.penalty is not None:
            return self._strategy._take_atoms(answer, self._local_steps), 0.0
        if answer.numbers.shape != (1,) or not answer.numbers[0] >= 0.0:
            raise ValueError("the answer has no norm of the client's gradient")
        return self._strategy._take_atoms(answer, 1), float(answer.numbers[0])

    def aggregate(
        self, server_round: int, answers: dict[str, _Answer]
    ) -> dict[str, float]:
        n, broadcast = self._strategy.num_clients, self._strategy.broadcast
        etas = {}
        for name in answers:
            own, _ = self._clocks(server_round, name)
            etas[name] = [self._schedule.step(t) for t in own]
        first = next(iter(etas.values()))
        alike = len(answers) == n and all(one == first for one in etas.values())
        sent = broadcast.model.astype(np.float64, copy=False)
        x_bar = None if alike else np.array(sent if self._mean is None else self._mean)
        for name, (atoms, _) in answers.items():
            mirror = self._mirrors[name]
            if self._duals:
                # y_i ← y_i + λ_0 (x_i − x̄), at the x̄ that the client was sent
                y = self._duals[name]
                penalty = self.penalty or 0.0
                mirror.add_to(y, penalty)
                y -= penalty * sent
            for eta, atom in zip(etas[name], atoms, strict=True):
                if x_bar is not None:
                    # x̄ ← x̄ + (1/n) Σ over S of η_i (s_i − x_i)
                    atom.add_to(x_bar, eta / n)
                    mirror.add_to(x_bar, -eta / n)
                # x_i ← (1 − η_i) x_i + η_i s_i
                mirror.step(1.0 - eta, eta, atom)
            self._steps_taken[name] += len(atoms)
            self._all_steps += len(atoms)
        if x_bar is not None:
            self._replace(x_bar)
        else:
            for j, eta in enumerate(first):
                # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
                each = tuple(atoms[j] for atoms, _ in answers.values())
                self._advance(Step(1.0 - eta, eta / n, each))
        # λ_0 by the first gradients used: one client among several cannot choose it
        # alone, and where the norm is 0 it waits for the next round
        norm = float(np.median([norm for _, norm in answers.values()]))
        if self.penalty is None and norm > 0.0:
            diameter = self._strategy.domain.diameter(self._start.shape)
            augmented = self._strategy.variant == "augmented"
            name = self._schedule.name
            self._settle(automatic_penalty(norm, diameter, name, augmented))
            log(INFO, "penalty λ_0 = %g, by the clients' gradients", self.penalty)
        return self._strategy._whether_outside()

    def _replace(self, x_bar: FloatArray) -> None:
        if self._mean is not None:
            self._mean = x_bar
        self._strategy.broadcast.replace(x_bar)

    def _advance(self, step: Step) -> None:
        broadcast = self._strategy.broadcast
        broadcast.advance(step)
        if self._mean is None:
            return
        step.apply(self._mean)
        # every step rounds x̄: once in a while it is sent whole, rounded only once
        drift = float(np.abs(broadcast.model - self._mean).max())
        if drift > _DRIFT * float(np.abs(self._mean).max()):
            self._replace(self._mean)

    @property
    def model(self) -> FloatArray:
        return self._strategy.broadcast.model

    def _client_iterate(self, client: str) -> FloatArray:
        return self._mirrors[client].dense()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        broadcast = self._strategy.broadcast
        x = self._start
        if self._steps_taken[client]:
            x = self._client_iterate(client)
        elif broadcast.version == 0:
            # x_i¹ = x̄¹: costs nothing to send
            x = broadcast.model
        return {"x": x, "y": self._duals[client]} if self._duals else {"x": x}

    def state(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {
            "start": self._start,
            "penalty": np.array(np.nan if self.penalty is None else self.penalty),
        }
        for name, mirror in self._mirrors.items():
            arrays[f"{name}/x/array"] = mirror.dense()
            arrays[f"{name}/steps"] = np.array(self._steps_taken[name])
        for name, y in self._duals.items():
            arrays[f"{name}/y"] = y
        if self._mean is not None:
            arrays["mean"] = self._mean
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self._strategy.penalty is None:  # else it may be another
            saved = float(state["penalty"])
            self._settle(None if np.isnan(saved) else saved)
        self._start = np.array(state["start"])
        if self._mean is not None:
            self._mean = np.array(state["mean"])
        for name in self._mirrors:
            self._mirrors[name] = ReplayedIterate(state[f"{name}/x/array"])
            self._steps_taken[name] = int(state[f"{name}/steps"])
        self._duals = {name: np.array(state[f"{name}/y"]) for name in self._duals}
        self._all_steps = sum(self._steps_taken.values())


def _one_or_all(numbers: list[float]) -> float | list[float]:
    return numbers[0] if len(numbers) == 1 else numbers


# Of an answer: x_i, then φ_i and γ_i, and the curvature of f_i / n on the client's way,
# in the first round; and of a late one the z and ρ that it was made with.
_Corrected = tuple[Iterate, tuple[float, float] | None, float | None, Any]


class _CorrectiveSteps(Consensus):
    """Corrective FedFW: the requests and answers of a consensus, whose z is sent."""

    def __init__(self, strategy: FedFW) -> None:
        self._strategy = strategy
        self._steps = strategy.local_steps or _STEPS
        # x_i in D from the first round on: steps start there
        point, domain = strategy.broadcast.model, strategy.domain
        layout, robust = strategy.broadcast.layout, strategy.aggregator.robust
        dtype = layout.point_dtype
        self._start_is_model = inside = domain.contains(point, rounding(dtype))
        super().__init__(
            domain,
            {name: Form(strategy._domains[name], dtype) for name in strategy.clients},
            layout.rounded(point if inside else domain.project(point)),
            Balance(strategy.penalty, strategy.schedule != "nonconvex", robust),
            strategy.tolerance,
            strategy.average if robust else None,
        )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        strategy = self._strategy
        entries = entries_of(strategy, "variant") | {"local-steps": self._steps}
        if self.penalty is not None:
            entries["penalty"] = self.penalty
        if strategy.certificate:
            entries["certificate"] = True
        return entries

    def check(self, answer: Answer) -> _Corrected:
        strategy = self._strategy
        iterate = self.iterates[answer.client].changed(
            answer.arrays, strategy._domains[answer.client], self._steps
        )
        if not strategy.domain.bounded:
            strategy._check_proportion(iterate.dense(), strategy.broadcast.model)
        numbers = answer.numbers.tolist()
        penalty = self.penalty if answer.basis is None else answer.basis[1]
        first = penalty is None
        expected = first + 2 * strategy.certificate
        if len(numbers) != expected:
            raise ValueError(f"{len(numbers)} scalars came instead of {expected}")
        if first and numbers[0] < 0.0:
            raise ValueError(f"the curvature is {numbers[0]:g}, below 0")
        certificate = None
        if strategy.certificate:
            # a gap is never below 0, but by rounding or as a lie
            certificate = numbers[-2], max(numbers[-1], 0.0)
        return iterate, certificate, numbers[0] if first else None, answer.basis

    def aggregate(
        self, server_round: int, answers: dict[str, _Corrected]
    ) -> dict[str, float]:
        strategy, rho = self._strategy, self.penalty
        broadcast, members = strategy.broadcast, strategy._members
        z = broadcast.model
        for name, (iterate, certificate, _, late) in answers.items():
            self.take(name, iterate, *(late or (z, rho)))
            if certificate is not None:
                self.certificates[name] = certificate
        broadcast.revise(self.advance(members, z))
        curvatures = {name: known for name, (_, _, known, _) in answers.items()}
        # whoever answers in every round it is asked in holds nobody's ρ up
        paced_by = () if strategy.options.quorum == 1.0 else members
        self.settle(curvatures, broadcast.model, paced_by)
        metrics = {
            "penalty": rho or 0.0,
            "primal-residual": self.primal,
            "dual-residual": self.dual,
        }
        if strategy.certificate:
            metrics |= self.certify(members)
        return metrics | strategy._whether_outside()

    def _client_iterate(self, client: str) -> FloatArray:
        return self.points[client].copy()

    def client_state(self, client: str) -> dict[str, NDArray[Any]]:
        x, broadcast = self.packed(client), self._strategy.broadcast
        if x is None and broadcast.version == 0 and self._start_is_model:
            x = broadcast.model  # costs nothing to send
        return {"x": self.start if x is None else x, "y": self.duals[client]}
