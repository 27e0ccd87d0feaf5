"""The round loop: what runs a method, and the base class that has it.

It waits for the nodes, goes through the rounds, evaluates, calls callbacks, keeps
checkpoints, and gives up when nobody answers any more. What a round is, is the
method's: one wave (:class:`~fedtrellis.RoundStrategy`) or several.
"""

from __future__ import annotations

import filecmp
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from logging import INFO, WARNING, getLogger
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedtrellis.domains.base import check_domain
from fedtrellis.privacy import Budget, LocalPrivacy, Mechanism
from fedtrellis.random import generator
from fedtrellis.server.aggregation import (
    LEAST,
    Aggregation,
    Cohorts,
    Mean,
    Points,
    Private,
    Sealed,
)
from fedtrellis.server.callbacks import (
    Callback,
    DivergedError,
    JsonLines,
    Progress,
    RoundRecord,
    observers,
)
from fedtrellis.server.conversation import Answer, Conversation, mean_metrics
from fedtrellis.server.options import AGGREGATIONS, SYNONYMS, RunOptions
from fedtrellis.server.records import Checkpoint, beside, write_checkpoint
from fedtrellis.settings import Declared, SettingsError, refused
from fedtrellis.signals import check_signals, deferred
from fedtrellis.wire.arrays import FloatArray, Layout, encode, record_arrays
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.exchange import RunError, Traffic, listed
from fedtrellis.wire.flower_internals import LOGGER_NAME, is_simulation, log
from fedtrellis.wire.protocol import EXAMPLES, identity_order, is_count, pack_restore

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Needs = Literal["sum", "each"]
Late = Literal["", "vector", "change"]

# Rounds of silence, with a quorum, after which a client is no part of F.
_MAX_DELAY = 100
# No method's loss rises by this factor and is on its way: not one of them is so random.
_BEYOND = 1e6

# a type checker takes the options' fields for keywords of the constructor, as they are
if TYPE_CHECKING:
    _Base = RunOptions
else:
    _Base = Declared


class LoopStrategy(Strategy, _Base, options=RunOptions):
    """Base class: the loop, callbacks, checkpoints and evaluations of a run.

    A method of one wave a round is a :class:`~fedtrellis.RoundStrategy`. One of several
    implements :meth:`setup` and :meth:`run_round`, which asks the clients whatever it
    likes through the conversation. Names that begin with an underscore are for the
    methods of fedtrellis.

    Attributes
    ----------
    options : RunOptions
        What every strategy takes; each is an attribute of the strategy as well.
    history : list of RoundRecord
    refused : list of (str, str)
        Nodes that could not introduce themselves before round 1, and why.
    clients, conversation : list of str, Conversation
        Identities of the run's clients, in order, and what is said to them.
    ending, caution : str
        Once the run has ended: ``"converged"``, ``"stopped"`` by a callback, or
        ``"round limit"``; and what is odd about its result, empty if nothing.
    num_rounds, planned_rounds : int
        Rounds planned now, and when the run began: T of a schedule that needs one.
    broadcast : ModelBroadcast
        The model, and how it gets to the clients; from :meth:`setup` on.
    sampled, used : list of str
        Clients that the last round asked, and whose answers it used.
    away : set of str
        Clients that are no part of F at present, see ``max_delay``.
    aggregator : Aggregation
        The run's own.

    Examples
    --------
    Steepest descent with a search along the line takes two waves a round:

    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, LoopStrategy, MethodClient, client_app
    >>> class LineSearch(LoopStrategy):
    ...     stateful = keep_model = False
    ...     def setup(self, point, layout):
    ...         pass
    ...     def run_round(self, conversation, server_round, config, timeout):
    ...         self.sampled = self.used = list(self.clients)
    ...         def mean(phase, **entries):
    ...             asked = dict.fromkeys(self.clients, entries)
    ...             answers = conversation.ask(server_round, phase, asked, timeout)
    ...             return np.mean([answer.arrays[0] for answer in answers], axis=0)
    ...         x, steps = self.broadcast.model, np.array([0.01, 0.1, 1.0])
    ...         g = mean("train.slope")
    ...         values = mean("train.values", g=g.tolist(), s=steps.tolist())
    ...         self.broadcast.replace(x - steps[values.argmin()] * g)
    ...         return {"value": float(values.min())}
    >>> class LineClient(MethodClient):    # of f_i(x) = (x − c_i)²/2
    ...     def __init__(self, c):
    ...         self.c = c
    ...     def fit_slope(self, parameters, config):
    ...         return [parameters[0] - self.c], 1, {}
    ...     def fit_values(self, parameters, config):
    ...         g, steps = np.array(config["g"]), np.array(config["s"])
    ...         return [(parameters[0] - steps * g - self.c) ** 2 / 2], 1, {}
    >>> def client_fn(context):
    ...     return LineClient(float(context.node_config["partition-id"]))
    >>> grid = LocalGrid(client_app(client_fn), num_nodes=5)
    >>> result = LineSearch().start(grid, ArrayRecord([np.zeros(1)]), num_rounds=2)
    >>> result.arrays.to_numpy_ndarrays()[0].round(6)
    array([2.])
    """

    #: What run configs call the method; its settings' keys begin with it.
    name: ClassVar[str] = ""
    #: A line for listings.
    about: ClassVar[str] = ""
    #: Where the model lives: "domain", a convex set; "whole", all of space;
    #: "manifold"; or "split", one vector of weights whose features lie with clients.
    space: ClassVar[str] = "whole"
    #: What the server uses of a round's answers: "sum", nothing but the vector that
    #: :meth:`average` or :meth:`mean_of` makes of them; "each", single answers, too;
    #: None: it makes something else of them, so that no aggregation but the mean fits.
    needs: Needs | None = None
    #: Whether the method's clients keep state (and so take part in the protocol).
    stateful = True
    #: Whether clients keep the model, to be sent the steps that they lack.
    keep_model = True
    #: Rounds of a run that sets none, of a method without a tolerance.
    _usual_rounds: ClassVar[int] = 50
    #: What a model may be made of; float64 always.
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)

    # what strategies and the app alone go by:
    _linear: ClassVar[bool] = False  # a block's mean can stand for each of its answers
    _one_wave = False  # a round is one wave, and changes nothing before its answers
    _bounded: ClassVar[bool] = False  # a method on a domain needs a bounded one
    _newcomers: ClassVar[bool] = False  # later clients take part: none is kept
    _measures: ClassVar[tuple[str, ...]] = ()  # its own that a run may stop on
    _state_settings: tuple[str, ...] = ()  # decide what state() holds
    _beside_f: ClassVar[tuple[str, ...]] = ()  # true: the minimum is not the task's
    _free_to_change: ClassVar[tuple[str, ...]] = ()  # where a run goes on
    _kept: tuple[str, ...] = ()  # in state(): "_x" as entry "x", a dict as its entries
    _least_answers: ClassVar[int] = LEAST  # for a robust average; 1: older ones count
    _sent_arrays: tuple[int, int] = (1, 1)  # an answer's models, and all its arrays
    # what becomes of an answer of an earlier round: "vector", the client's last, as
    # good as any; "change", which counts less with age; "": it is of no use
    _late: Late = ""
    _normalises: ClassVar[bool] = False  # answers of fewer local steps than asked for
    _replayed: ClassVar[str] = ""  # the attribute with what is replayed of clients
    _private_mechanism: ClassVar[Mechanism | None] = None  # of privacy="local"
    _private_releases = 1  # of a client in a round

    # a type checker would take every name for one
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """An option of the run."""
            options = self.__dict__.get("options")
            if options is None or name not in options.__dict__:
                kind = type(self).__name__
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            return getattr(options, name)

        def __setattr__(self, name: str, value: Any) -> None:
            """An option of the run is set where it is read."""
            options = self.__dict__.get("options")
            there = options is not None and name in options.__dict__
            object.__setattr__(options if there else self, name, value)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options: RunOptions
        self.broadcast: ModelBroadcast
        self.conversation: Conversation
        self.clients: list[str] = []
        self.history: list[RoundRecord] = []
        self.refused: list[tuple[str, str]] = []
        self.num_rounds = self.planned_rounds = 0
        self.ending = self.caution = self.agreed = ""
        self.sampled: list[str] = []
        self.used: list[str] = []
        # clients that have been silent for max_delay rounds, and are no part of F
        self.away: set[str] = set()
        # clients whose state is no longer known, and begins at zero
        self._zeroed: set[str] = set()
        # clients with which a secure sum's block begins anew after the round
        self._anew: set[str] = set()
        options = self.options
        chosen, kinds = options.aggregation, {kind.name: kind for kind in AGGREGATIONS}
        #: The run's own aggregation.
        self.aggregator: Aggregation = (
            kinds[chosen]() if isinstance(chosen, str) else copy(chosen)
        )
        domain = getattr(self, "domain", None)
        if domain is not None:
            check_domain(domain)
        self._check_aggregation()
        self._parts: list[Aggregation | LocalPrivacy] = [self.aggregator]
        #: The noise that clients add, if they do.
        self.local_noise: LocalPrivacy | None = None
        if self._private_mechanism is not None and options.privacy == "local":
            self.local_noise = LocalPrivacy(
                mechanism=self._private_mechanism,
                each=self._private_releases,
                clip=options.privacy_clip,
                noise_multiplier=options.privacy_noise_multiplier,
                epsilon=options.privacy_epsilon,
                delta=options.privacy_delta,
            )
            self._parts.append(self.local_noise)
        for part in self._parts:
            if part.no_resume and options.resume is not None:
                why = f"beside {part.wanted}: {part.no_resume}"
                raise SettingsError(f"resume does not apply {why}")
        options.callbacks = [*options.callbacks, *observers.get()]

    @property
    def _described_name(self) -> str:
        return self.name or type(self).__name__

    # -------------------------------------------------------- what an author may write

    @abstractmethod
    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Prepare the server's state for ``self.num_clients`` clients.

        ``point``, of shape ``layout.point_shape``, is the model to start from; the
        ``layout`` has shapes and dtype of the model's arrays. ValueError if the model
        does not fit the method, for example its domain.
        """

    @abstractmethod
    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round, in as many waves as it takes; its metrics.

        Notes in ``self.sampled`` whom it asked, and in ``self.used`` whose answers it
        used; None if no answer was used. Rounds count from 1. ``config`` has the run's
        own entries for the clients' ``config``; ``timeout`` is in seconds, for the
        answers of one wave.
        """

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Waves before round 1, for a method whose clients have to agree on something.

        Also called when a run goes on from a checkpoint, after :meth:`load_state`.
        """

    def finish(self, conversation: Conversation) -> None:
        """After the last round, and after a failure: what clients have to clean up."""

    def converged(self) -> bool:
        """Whether the method's own stop rule holds; asked after a round of a mean."""
        return False

    def state(self) -> dict[str, NDArray[Any]]:
        """The method's own state, for a checkpoint; the model is kept by the loop."""
        arrays: dict[str, NDArray[Any]] = {}
        for name in self._kept:
            value = getattr(self, name)
            arrays |= value if isinstance(value, dict) else {name[1:]: value}
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`; called after :meth:`setup`."""
        for name in self._kept:
            value = getattr(self, name)
            if isinstance(value, dict):
                setattr(self, name, {key: np.array(state[key]) for key in value})
            else:
                setattr(self, name, np.array(state[name[1:]]))

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """The state to give a client that has lost its own (or never had one).

        An entry that is the model itself (the same object) costs nothing to send.
        """
        return {}

    @property
    def _lost(self) -> dict[str, str]:
        """What of a client's state is not given back; how it goes on without it."""
        return {}

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone.

        An aggregation may draw others, by secret coins or as whole blocks.
        """
        options, n = self.options, self.num_clients
        if options.participation == 1.0:
            return list(self.clients)
        rng = generator(options.seed, "participation", server_round)
        if options.sampling == "fixed":
            chosen = np.sort(rng.choice(n, size=self._fixed_count(), replace=False))
        else:
            chosen = np.flatnonzero(rng.random(n) < options.participation)
        return [self.clients[index] for index in chosen]

    def _check_model(self, layout: Layout) -> None:
        """Raise ValueError if the model does not fit, before any message is sent."""
        if self.space in ("domain", "manifold"):
            getattr(self, self.space).check_shape(layout.point_shape)

    def _result_point(self) -> FloatArray:
        """The model that is evaluated and returned, where that is not what is sent."""
        return self.broadcast.model

    def _diverged(self, risen: str) -> str:
        """Why a run failed: its loss has ``risen``, or, without one, its measure."""
        # with noise it has cost its ε
        return risen if any(isinstance(part, Budget) for part in self._parts) else ""

    def _warnings(self) -> list[str]:
        """What a reader of a run's record must not overlook."""
        return [text for part in self._parts if (text := part.warning())]

    @property
    def num_clients(self) -> int:
        """Number of clients n; fixed for the run, unless there are newcomers."""
        return len(self.clients)

    def take_point(
        self, answer: Answer, reference: FloatArray | None = None
    ) -> FloatArray:
        """The one dense array of an answer, a point in proportion to the model.

        ``reference`` is what of the model the client has, by default all of it.
        ValueError for another number of arrays, another shape or dtype, or a point out
        of proportion; the message is the reason that log and history give.
        """
        reference = self.broadcast.model if reference is None else reference
        point = self._only_array(answer, reference.shape)
        if answer.norm is None or answer.norm > self.options.answer_bound:
            self._check_proportion(point, reference)
        return point

    def _only_array(self, answer: Answer, shape: tuple[int, ...]) -> FloatArray:
        """The one dense array of an answer; ValueError if it is of another kind."""
        if len(answer.arrays) != 1:
            raise ValueError(f"the answer has {len(answer.arrays)} arrays instead of 1")
        array, dtype = answer.arrays[0], self.broadcast.layout.point_dtype
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"the answer has shape {array.shape} and dtype {array.dtype}, "
                f"expected {shape} and {dtype}"
            )
        return array

    def average(self, points: Points, centre: FloatArray) -> FloatArray:
        r"""What some points come to, by the run's aggregation; float64, of shape S.

        ``points`` are a round's answers or vectors made of them, n ndarrays of shape S
        or one of shape (n, \*S); ``centre``, of shape S, is their last average, or what
        they changed: the model, or zero.
        """
        if self.aggregator.seen_by == "server":
            points = [cast(Sealed, point).value for point in points]
        return self.aggregator.combine(points, centre)

    def mean_of(
        self, answers: Mapping[str, FloatArray], centre: FloatArray
    ) -> FloatArray:
        """As :meth:`average`, of answers by client, weighted as client_weights says.

        At least one, but for noise that a round without any has, too.
        """
        points = list(answers.values())
        if self.options.client_weights == "equal":
            return self.average(points, centre)
        # Σ d_i x_i / Σ d_i
        stacked, counts = np.asarray(points, np.float64), self._examples_of(answers)
        return cast(FloatArray, np.average(stacked, axis=0, weights=counts))

    @property
    def _expected_participation(self) -> float:
        """How likely a client is to take part in a round: p, or ⌈p·n⌉/n if fixed."""
        if self.options.sampling == "fixed":
            return self._fixed_count() / self.num_clients
        return self.options.participation

    def _fixed_count(self) -> int:
        # n·p may lie above a whole number by rounding alone: 0.07·100 is 7.0…01
        return int(np.ceil(self.num_clients * self.options.participation - 1e-9))

    @property
    def _members(self) -> list[str]:
        """The clients whose f_i make up F: all but those that are away."""
        return [name for name in self.clients if name not in self.away]

    @property
    def _basis(self) -> Any:
        """What a client is sent that its answer depends on; nobody changes it."""
        return self.broadcast.model

    def _aged(self, answer: Answer, point: FloatArray) -> FloatArray:
        """The model, changed as a late answer's point changes that of its round.

        x + (x_i − x_t)/√(1 + a), for x_i from x_t, a rounds ago.

        Source: Nguyen et al., "Federated Learning with Buffered Asynchronous
        Aggregation" (FedBuff), AISTATS 2022, arXiv 2106.06639, for the weights.
        """
        change = np.subtract(point, answer.basis, dtype=np.float64)
        aged = self.broadcast.model + self._weight_of(answer) * change
        return self.broadcast.layout.rounded(aged)

    def _weight_of(self, answer: Answer) -> float:
        """1/√(1 + a), for an answer of a rounds ago."""
        age = self._loop.round - answer.server_round
        return float(1.0 / np.sqrt(1.0 + age))

    def _count_silence(self) -> None:
        """Note who owes an answer, and who has done so for too many rounds."""
        conversation, options = self.conversation, self.options
        silent, most = conversation.silent, options.max_delay or _MAX_DELAY
        for name in {*self.sampled, *conversation.busy} - {*self.used}:
            silent[name] = silent.get(name, 0) + 1
            if silent[name] >= most and name not in self.away:
                self.away.add(name)
                text = "client %s has been silent for %d rounds: F is of %d of %d now"
                log(WARNING, text, name, most, len(self._members), self.num_clients)

    def _welcome(self, names: Iterable[str]) -> None:
        """Whoever answers is part of F."""
        for name in names:
            self.conversation.silent.pop(name, None)
            if name in self.away:
                self.away.discard(name)
                text = "client %s answers again: F is of %d of %d clients"
                log(INFO, text, name, len(self._members), self.num_clients)

    def _check_proportion(self, point: FloatArray, reference: FloatArray) -> None:
        """Raise ValueError for a point far beyond x: ‖x_i‖ > b · max(1, ‖x‖)."""
        size, bound = _norm(point), self.options.answer_bound
        if size <= bound:  # whatever x is
            return
        if not size <= bound * (scale := _norm(reference)):
            raise ValueError(
                f"the answer has norm {size:.3g}, the model {scale:.3g}: beyond "
                f"answer-bound = {bound:g}; local steps that diverge, or a lie"
            )

    # -------------------------------------------------------- messages and evaluations

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model for one client, and entries on it; takes its own out of these."""
        return self.broadcast.encode(self.conversation.clients[client].version)

    def _state_for(self, client: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """The state for a client that has none, and the entries on it."""
        return pack_restore(self.client_state(client), self.broadcast.model)

    def _replaces_state(self, client: str) -> bool:
        """Whether a client's own state no longer counts, only :meth:`client_state`."""
        return client in self._zeroed

    def _forget(self, clients: Sequence[str]) -> None:
        """Begin anew with zero for what the server replays of these clients."""
        replayed: dict[str, FloatArray] = getattr(self, self._replayed)
        for name in clients:
            replayed[name] = np.zeros_like(replayed[name])
        self._zeroed.update(clients)

    def _without_state(self, clients: Sequence[str]) -> list[str]:
        """Those who came to a round without the state that they had before."""
        known = self.conversation.clients
        lost = [n for n in clients if known[n].used_round > 0 and not known[n].ready]
        return [name for name in lost if name not in self._zeroed]

    def _weights_in_sums(self) -> dict[str, float]:
        """What each client multiplies its terms with: d_i / max d_i, or 1."""
        if self.options.client_weights != "examples":
            return dict.fromkeys(self.clients, 1.0)
        counts = self._examples_of(self.clients)
        return dict(zip(self.clients, (counts / counts.max()).tolist(), strict=True))

    def _examples_of(self, clients: Iterable[str]) -> FloatArray:
        known = self.conversation.clients
        return np.array([float(known[n].properties[EXAMPLES]) for n in clients])

    def _refuse_newcomer(self, properties: Mapping[str, Any]) -> str:
        """Why a client that comes after the start cannot take part; empty if it can."""
        if self.local_noise is not None or self.aggregator.seen_by != "method":
            planned = "aggregation" if self.local_noise is None else "privacy"
            return f"{planned} is planned for the clients of the start"
        if self.options.client_weights == "examples" and not properties.get(EXAMPLES):
            return "client_weights = 'examples', and it declares none"
        return "" if self._newcomers else "the method's clients are those of the start"

    def _evaluate_clients(self, server_round: int) -> dict[str, float]:
        """Mean of the clients' metrics."""
        loop, conversation = self._loop, self.conversation
        own = dict(loop.evaluate_config)
        entries = dict.fromkeys(self.clients, own)
        answers = conversation.ask(server_round, "evaluate", entries, loop.timeout)
        conversation.note_version(*answers)
        return self._mean_evaluation(answers)

    def _mean_evaluation(self, answers: Sequence[Answer]) -> dict[str, float]:
        """The clients' metrics in the mean; with a robust aggregation in the median."""
        metrics, equal = [], self.options.evaluation_weights == "equal"
        for answer in answers:
            count = answer.metrics.get(EXAMPLES)
            if not is_count(count):
                why = f"the evaluation is of {count!r} examples"
                self.conversation.reject(answer.client, why)
                continue
            # a client weighs what it declared, or what its first evaluation said
            declared = self.conversation.clients[answer.client].properties
            examples = int(declared.setdefault(EXAMPLES, count))
            metrics.append({**answer.metrics, EXAMPLES: examples})
        return mean_metrics(metrics, equal=equal, median=self.aggregator.robust)

    def _admits(self, kind: type[Aggregation]) -> bool:
        """Whether the method can go on from what an aggregation gives it."""
        if kind.seen_by == "client":
            return self.needs == "sum" or self._linear
        enough = self.needs == "each" and kind.seen_by == "method"
        return issubclass(kind, Mean) or self.needs == "sum" or enough

    def _check_aggregation(self) -> None:
        """Raise SettingsError for options that do not fit the method or one another."""
        kind, method = type(self.aggregator), f"apply to {self._described_name}"
        options, kinds = self.options, (*AGGREGATIONS, kind)

        def need(name: str, allowed: Sequence[Any], why: str) -> None:
            value = getattr(options, name.replace("-", "_"))
            value = self.aggregator.name if name == "aggregation" else value
            if value not in allowed:
                rest = ["auto" if one is None else str(one) for one in allowed]
                raise refused(name, value, f"does not {why}", rest)

        need("dtype", [None, *self.dtypes], f"fit {self._described_name}")
        variant = getattr(self, "variant", "")
        beside = f" with variant = {variant!r}" if variant else ""
        need("aggregation", [k.name for k in kinds if self._admits(k)], method + beside)
        stated = f"apply beside {self.aggregator.wanted}"
        if options.quorum != 1.0:
            if options.quorum > 1.0 and options.quorum % 1.0:
                allowed = ["parts up to 1", "whole numbers"]
                raise refused("quorum", options.quorum, "does not fit", allowed)
            if not self._late:
                need("quorum", [1], f"{method}{beside}, which uses each answer at once")
        elif options.max_delay is not None:
            raise refused("max-delay", options.max_delay, "needs a quorum below all")
        if not self._normalises:
            need("local-deadline", [None], method + beside)
        if self.aggregator.seen_by != "method" or options.privacy != "none":
            why = "apply beside secure sums or noise"
            need("quorum", [1], why)
            need("local-deadline", [None], why)
        clip = getattr(self.aggregator, "clip", None)
        if kind.seen_by == "client" and clip is not None and not self._admits(Private):
            why = f"does not {method}{beside}, whose clients go on from more than is"
            raise refused("secure-sum.clip", clip, f"{why} sent", ["auto"])
        if self.needs != "sum":
            need("client_weights", ["equal"], method)
        elif not issubclass(kind, Mean):
            alike = f"{stated}, with which all clients count alike"
            need("client_weights", ["equal"], alike)
        if self.aggregator.exposed != "accept":
            either = [0, "or secure-sum.exposed = 'accept'"]
            why = f"{stated}: evaluations travel in the clear"
            need("client-evaluate-every", either, why)
        if options.privacy == "local":
            # no average of the middle, and no second noise
            means = [k.name for k in AGGREGATIONS if issubclass(k, Mean)]
            why = f"apply beside {LocalPrivacy.wanted}"
            need("privacy", ["local"] if self._private_mechanism else ["none"], method)
            need("aggregation", means, why)
            need("client_weights", ["equal"], why)
            need("client-evaluate-every", [0], why)
        if not self._one_wave:
            # what it does there with answers is not known
            why = f"{method}, which overrides run_round"
            seen = [k.name for k in kinds if k.seen_by == "method"]
            need("aggregation", seen, why)
            need("privacy", ["none"], why)

    def _driven(self, *arguments: Any, **more: Any) -> Any:
        """Refuse Flower's own loop; RuntimeError."""
        raise RuntimeError(
            f"{type(self).__name__} has a loop and messages of its own: call start; "
            "no wrapper, such as Flower's DifferentialPrivacy..., can drive it"
        )

    configure_train = aggregate_train = _driven
    configure_evaluate = aggregate_evaluate = _driven

    def summary(self) -> None:
        """Log the strategy's settings; the mean goes without a line."""
        shown = [*self.options._described().items(), *self._described().items()]
        for part in self._parts:
            if type(part) is not Mean:
                shown += [("with", part.wanted), *part._described().items()]
        for name, value in shown:
            log(INFO, "\t├── %s: %s", name, value)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the strategy; parameters and result are those of Flower's own.

        ``grid`` is Flower's, or a :class:`~fedtrellis.LocalGrid`; ``initial_arrays`` is
        the model to start from. The method's own stop rule, or a callback, may end the
        run before ``num_rounds``; ``timeout`` is how many seconds to wait for the
        replies of one wave. The two configs are more entries for the clients'
        ``config``. ``evaluate_fn`` is called with the round and the model before round
        1 and after every ``evaluate_every`` rounds, and returns a ``MetricRecord`` or
        None. The result has the model and the metrics by round, ``self.history`` all of
        a round.

        Raises
        ------
        SettingsError, ValueError
            Before round 1: the model or a setting does not fit, or a simulation would
            run other code than the app's.
        TimeoutError
            If too few nodes connect.
        RuntimeError
            If no client could be used for ``max_failed_rounds`` rounds in a row, or in
            the whole run; or the run diverged.
        """
        if num_rounds < 1:
            raise SettingsError(f"num_rounds = {num_rounds} must be at least 1")
        if not isinstance(initial_arrays, ArrayRecord) or not initial_arrays:
            wanted = "a flwr.app.ArrayRecord with arrays in it, like ArrayRecord([x0])"
            kind = type(initial_arrays).__name__
            raise SettingsError(f"initial_arrays must be {wanted}; it is a {kind}")
        check_same_code(grid)
        for key in sorted(SYNONYMS.keys() & (train_config or {}).keys()):
            text = "train_config has %s, which no client of fedtrellis reads: %s"
            log(WARNING, text, key, SYNONYMS[key].replace("-", "_"))
        self.num_rounds, self.history = num_rounds, []
        self.away, self._zeroed, self._anew = set(), set(), set()
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        self._loop = Loop(self, grid, timeout, *configs, evaluate_fn)
        return self._loop.go(initial_arrays)


@dataclass
class Loop:
    """One run of a strategy: its clients, rounds, evaluations, checkpoints and end."""

    strategy: LoopStrategy
    grid: Grid
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    # of which finished round the state is, None while it is changed
    whole: int | None = None
    round: int = 0  # the one that is under way
    _solved_since: int = 0  # the first round in a row in which the method has converged

    def __post_init__(self) -> None:
        strategy, self.options = self.strategy, self.strategy.options
        self.conversation = strategy.conversation = Conversation(self.grid, strategy)
        # what evaluate_fn returned, by round
        self.evaluations: dict[int, MetricRecord] = {}
        self.callbacks = list(self.options.callbacks)
        if self.options.checkpoint is not None:
            self.checkpoint = Path(self.options.checkpoint)
            self.beside = beside(self.checkpoint, self.callbacks)
            self.callbacks += [self.beside] * (self.beside not in self.callbacks)
        tells = any(isinstance(one, Progress | JsonLines) for one in self.callbacks)
        if getLogger(LOGGER_NAME).isEnabledFor(INFO) and not tells:
            self.callbacks.append(Progress())

    def go(self, initial: ArrayRecord) -> Result:
        """From the first message to the last; parameters are those of ``start``."""
        strategy, options = self.strategy, self.options
        arrays, num_rounds = record_arrays(initial), strategy.num_rounds
        layout = Layout.of(arrays)
        found = layout.dtype if layout.dtype in strategy.dtypes else "float64"
        layout = self.layout = Layout(layout.shapes, options.dtype or found)
        point = layout.point(arrays)
        if not np.isfinite(point).all():
            raise ValueError("initial_arrays are not finite")
        point = layout.rounded(point)
        strategy._check_model(layout)
        # of the arrays that the run begins with
        self.dtypes = {name: np.dtype(array.dtype) for name, array in initial.items()}
        log(INFO, "Starting %s: %d rounds", type(strategy).__name__, num_rounds)
        strategy.summary()
        resumed = self._resumed()
        self._meet()
        strategy.broadcast = ModelBroadcast(layout, point)
        planned = num_rounds if resumed is None else resumed.planned_rounds
        strategy.planned_rounds = planned
        strategy.setup(point, layout)
        before = self.whole = 0
        if resumed is not None:
            strategy.history += resumed.load(strategy, self.grid)
            before = self.whole = strategy.history[-1].round
            if num_rounds < before:
                raise refused("rounds", num_rounds, f"is below {before}, which it had")
            text = "Resumed: going on with round %d; schedules with T = %d, as planned"
            log(INFO, text, before + 1, planned)
        del arrays, point, resumed  # one model is enough for the rounds
        begun: list[Callback] = []
        try:
            for callback in self.callbacks:
                callback.on_start(strategy, before + 1, num_rounds)
                begun.append(callback)
        except BaseException as error:
            for callback in begun:
                callback.on_failure(strategy, error)
            raise
        # a signal has to wait until the state is whole: that of a finished round, with
        # nothing of the next but messages
        with deferred():
            return self._to_the_end(before)

    def _to_the_end(self, before: int) -> Result:
        """Agree before the rounds; clean up after them, also when they end badly."""
        strategy, conversation = self.strategy, self.conversation
        try:
            strategy.aggregator.prepare(conversation, self.timeout)
            strategy.prepare(conversation, self.timeout)
            strategy.ending = self._rounds(before)
            strategy.caution = "; ".join(_cautions(strategy))
            result = self._result()
            for callback in self.callbacks:
                callback.on_end(strategy, result)
            return result
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                try:
                    self._save()
                except OSError as why:
                    log(WARNING, "the last checkpoint was not saved: %s", why)
            for callback in self.callbacks:
                callback.on_failure(strategy, error)
            raise
        finally:
            with deferred():  # the signal is known, it need not end this wave too
                strategy.finish(conversation)
                strategy.aggregator.finish(conversation)

    def _resumed(self) -> Checkpoint | None:
        """The checkpoint to go on from; its clients keep their nodes' keys."""
        strategy, path = self.strategy, self.options.resume
        if path is None:
            return None
        says = type(strategy).state is not LoopStrategy.state or strategy._kept
        if strategy.stateful and not says:
            raise SettingsError(
                f"resume = {str(path)!r} does not apply to {strategy._described_name}, "
                "whose clients keep state: it needs state() and load_state()"
            )
        resumed = Checkpoint(Path(path))
        self.conversation.keys = resumed.keys
        return resumed

    def _meet(self) -> None:
        """Wait for the clients, and look at what they declare."""
        strategy, options, conversation = self.strategy, self.options, self.conversation
        conversation.gather(options.min_nodes, options.start_timeout)
        strategy.clients = conversation.names
        if options.quorum > (n := strategy.num_clients):
            raise refused("quorum", options.quorum, f"is more than the {n} clients")
        cohorts = Cohorts(
            strategy.clients,
            options.participation,
            strategy._fixed_count() if options.sampling == "fixed" else None,
            strategy._expected_participation,
            strategy.num_rounds,
        )
        for part in strategy._parts:
            part.begin(cohorts)
        if options.client_weights == "examples":
            for client in strategy.clients:
                if not conversation.clients[client].properties.get(EXAMPLES):
                    raise SettingsError(
                        f"client_weights = 'examples': client {client} declared none; "
                        "its objective needs num_examples"
                    )
        strategy.refused = list(conversation.traffic.rejected)

    # ---------------------------------------------------------------------- the rounds

    def _rounds(self, before: int) -> str:
        """The rounds after so many, until the last one or a stop; why they end."""
        strategy, options, evaluate_fn = self.strategy, self.options, self.evaluate_fn
        num_rounds, failed = strategy.num_rounds, 0
        if not before and evaluate_fn is not None:
            self._finished(RoundRecord(round=0, evaluation=self._evaluate(0)))
        elif not before and options.client_evaluate_every:  # its bytes are round 1's
            found = strategy._evaluate_clients(0)
            self._finished(RoundRecord(round=0, client_evaluation=found))
        for server_round in range(before + 1, num_rounds + 1):
            check_signals()
            if failed and len(strategy.sampled) == len(strategy.clients):
                self.conversation.await_return(self.timeout)
            record = self._round(server_round)
            failed = 0 if strategy.used or not strategy.sampled else failed + 1
            if failed == options.max_failed_rounds:
                self._finished(record)
                raise _unanswered(f"{failed} rounds in a row", record)
            ending = "round limit" if server_round == num_rounds else ""
            if self._solved(server_round):
                log(INFO, "Converged in round %d", server_round)
                ending = "converged"
            if evaluate_fn and (ending or server_round % options.evaluate_every == 0):
                record.evaluation = self._evaluate(server_round)
            if self._finished(record) and ending != "converged":
                log(INFO, "Stopped after round %d", server_round)
                ending = "stopped"
            self.whole = server_round
            if ending or server_round % options.checkpoint_every == 0:
                self._save()
            if ending:
                return ending
        return "round limit"

    def _solved(self, server_round: int) -> bool:
        """Whether the method has converged, for all members of F."""
        strategy = self.strategy
        if not self._at_rest():
            self._solved_since = 0
            return False
        self._solved_since = since = self._solved_since or server_round
        # an answer that is still to come may move the model: with a quorum, and where
        # corrections sum to zero over all, the rule holds until everybody has answered
        if self.options.quorum == 1.0 and not strategy._replayed:
            return True
        known = self.conversation.clients
        return all(known[name].used_round >= since for name in strategy._members)

    def _at_rest(self) -> bool:
        """Whether the stop rule holds; where a median rests need not be a minimum."""
        return not self.strategy.aggregator.robust and self.strategy.converged()

    def _round(self, server_round: int) -> RoundRecord:
        began = time.perf_counter()
        self.round = server_round
        strategy, conversation = self.strategy, self.conversation
        # with a quorum nobody waits for a node that may never answer
        enough = None if self.options.quorum == 1.0 else 0
        conversation.introduce(self.timeout, True, enough)
        strategy.clients = conversation.names
        asked = conversation, server_round, self.train_config, self.timeout
        if strategy._one_wave:
            metrics = strategy.run_round(*asked)
        else:
            self.whole = None  # between a round's waves the state is that of none
            with deferred():
                metrics = strategy.run_round(*asked)
        traffic, evaluated = conversation.traffic, dict[str, float]()
        waves = traffic.waves
        every = self.options.client_evaluate_every
        due = every and server_round % every == 0
        # whether it has converged takes some methods a pass over all clients
        if every and not due:
            due = server_round == strategy.num_rounds or self._at_rest()
        if due:
            with deferred():  # the round is not finished yet, but the state is the next
                evaluated = strategy._evaluate_clients(server_round)
        conversation.traffic = Traffic(logged=traffic.logged)  # once a run
        return RoundRecord(
            round=server_round,
            sampled=len(strategy.sampled),
            used=len(strategy.used),
            rejected=list(traffic.rejected),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            seconds=time.perf_counter() - began,
            round_trips=waves,
            train=metrics or {},
            client_evaluation=evaluated,
        )

    def _evaluate(self, server_round: int) -> dict[str, float]:
        assert self.evaluate_fn is not None
        metrics = self.evaluate_fn(server_round, self.model_record())
        if metrics is None:
            return {}
        self.evaluations[server_round] = metrics
        numbers = {n: v for n, v in metrics.items() if isinstance(v, int | float)}
        return {name: float(value) for name, value in numbers.items()}

    def _finished(self, record: RoundRecord) -> bool:
        """Note a round, and give it to the callbacks; whether one stops the run."""
        self.strategy.history.append(record)
        stops = False
        for callback in self.callbacks:  # each gets it, also after a stop
            if callback.on_round(self.strategy, record):
                stops = True  # and who comes after it has the last round evaluated
                if self.evaluate_fn is not None and not record.evaluation:
                    record.evaluation = self._evaluate(record.round)
                every = self.options.client_evaluate_every
                if every and record.round and not record.client_evaluation:
                    with deferred():
                        found = self.strategy._evaluate_clients(record.round)
                    record.client_evaluation, more = found, self.conversation.traffic
                    self.conversation.traffic = Traffic(logged=more.logged)
                    record.bytes_up += more.up
                    record.bytes_down += more.down
                    record.rejected += more.rejected
        return stops

    def _result(self) -> Result:
        """Flower's: the model, and the metrics by round."""
        result = Result()
        result.arrays = self.model_record()
        kinds = {
            "train": result.train_metrics_clientapp,
            "client_evaluation": result.evaluate_metrics_clientapp,
            "evaluation": result.evaluate_metrics_serverapp,
        }
        for record in self.strategy.history:
            for kind, by_round in kinds.items():
                if metrics := getattr(record, kind):
                    by_round[record.round] = MetricRecord({**metrics})
        # with what is no single number
        result.evaluate_metrics_serverapp.update(self.evaluations)
        return result

    def model_record(self) -> ArrayRecord:
        """The model under the names, and in the dtypes, of the arrays it began with."""
        layers = self.layout.layers(self.strategy._result_point())
        record = ArrayRecord()
        for (name, dtype), layer in zip(self.dtypes.items(), layers, strict=True):
            kept = layer.astype(dtype, copy=False) if dtype.kind == "f" else layer
            record[name] = encode(kept)
        return record

    def _save(self) -> None:
        """Write the state after the last finished round, if wanted and still there."""
        if self.options.checkpoint is None or not self.whole:
            return
        rounds = self.beside.history
        write_checkpoint(self.checkpoint, self.strategy, self.grid, rounds)


def check_same_code(grid: Any) -> None:
    """Raise SettingsError for a simulation whose clients would be of another app.

    Ray's workers look for packages first where the SuperLink was started.
    """
    here = Path.cwd()
    # where Flower unpacks what ``flwr run`` sends, each app in a folder of its own
    apps = [Path(entry) for entry in sys.path if Path(entry).parent.name == "apps"]
    for app in apps if is_simulation(grid) else ():
        packages = [file.parent.name for file in here.glob("*/__init__.py")]
        files = [file for name in packages for file in app.glob(f"{name}/**/*.py")]
        names = [str(file.relative_to(app)) for file in files]
        _, other, missing = filecmp.cmpfiles(app, here, names, shallow=False)
        for name in other + missing:
            raise SettingsError(
                f"the nodes would run {here / Path(name).parts[0]} instead of this "
                f"app's own, and {name} differs: the SuperLink was started in {here}. "
                "End it (pgrep -af flower-superlink, kill PID) and run again"
            )


def _unanswered(rounds: str, record: RoundRecord) -> RunError:
    """The error of rounds in which nobody had a usable answer, the last of them."""
    who, why = (record.rejected or [("?", "nobody was asked")])[-1]
    # steps that led nowhere are named so by the clients themselves
    kind = DivergedError if FloatingPointError.__name__ in why else RunError
    return kind(f"no usable answer in {rounds}; the last: client {who}: {why}")


def _cautions(strategy: LoopStrategy) -> Iterator[str]:
    """What is odd about a result; raises for a run that used no answer, or diverged."""
    history, first = strategy.history, strategy.history[0]
    if not any(record.used for record in history):
        # however few the rounds were: the model is the one they began with
        raise _unanswered(f"all of the {history[-1].round} rounds", history[-1])
    # the loss decides, where it was measured before round 1; else the method's measure
    losses = [r.metrics["loss"] for r in history if "loss" in r.metrics]
    start = inf if first.round else first.metrics.get("loss", inf)
    risen = why = ""
    if losses and not isfinite(losses[-1]):
        why = f"its loss ended at {losses[-1]}"
    elif not isfinite(start):
        why = strategy._diverged("")
    else:
        size, rise = abs(start), losses[-1] - start
        rounding = float(np.finfo(strategy.broadcast.layout.dtype).eps)
        if rise > np.sqrt(rounding) * size:
            risen = (
                f"its loss ended at {losses[-1]:.3g} and was {start:.3g} before round 1"
            )
            far = rise > _BEYOND * max(1.0, size)
            why = strategy._diverged(risen) or risen * far
    steps = ""
    for name in ("local_step_size", "step_size"):
        if value := getattr(strategy, name, None):
            steps = f"; {name} = {value:g} may be too long"
    if why:
        causes = [part.why_failed() for part in strategy._parts]
        raise DivergedError(f"the run diverged: {why}{''.join(causes) or steps}")
    if risen:
        log(WARNING, "%s%s", risen, steps)
        yield risen + steps
    if strategy.away:
        names = listed(sorted(strategy.away, key=identity_order), 20)
        count = f"{len(strategy._members)} of {strategy.num_clients}"
        yield f"F is of {count} clients at the end: client {names} did not answer"


def _norm(point: FloatArray) -> float:
    # a float32's square may be beyond what a float32 can hold
    return float(np.linalg.norm(point.astype(np.float64, copy=False)))
