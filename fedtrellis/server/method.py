"""What a method is: what its author writes, and what the author's methods can call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedtrellis.privacy import Mechanism
from fedtrellis.random import generator
from fedtrellis.server.aggregation import LEAST, Aggregation, Mean, Points, Sealed
from fedtrellis.server.answers import Answer, mean_metrics
from fedtrellis.server.callbacks import RoundRecord, observers
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.options import AGGREGATIONS, RunOptions
from fedtrellis.server.private import Budget, LocalPrivacy
from fedtrellis.server.progress import RoundLog
from fedtrellis.settings import Declared, SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.protocol import EXAMPLES, is_count, pack_restore

__all__ = ["Method", "Needs"]

Needs = Literal["sum", "each"]

# Flower's parameters, and what is the same here
_INSTEAD = {
    "fraction_train": "participation",
    "min_train_nodes": "min_nodes",
    "min_available_nodes": "min_nodes",
    "min_evaluate_nodes": "min_nodes",
    "fraction_evaluate": "client_evaluate_every, the rounds between evaluations on all "
    "clients",
    "weighted_by_key": "client_weights, where the method has a mean to weigh; else "
    "weight each objective by its share",
    "train_metrics_aggr_fn": "strategy.history, or a callback",
    "evaluate_metrics_aggr_fn": "evaluation_weights, or a callback",
    "arrayrecord_key": "nothing: the messages are the method's own",
    "configrecord_key": "nothing: the messages are the method's own",
}

# a type checker takes the options' fields for keywords of the constructor, as they are
if TYPE_CHECKING:
    _Base = RunOptions
else:
    _Base = Declared


class Method(Strategy, _Base, options=RunOptions):
    """A method without the loop that runs it: :class:`~fedtrellis.LoopStrategy` has it.

    Names that begin with an underscore are for the methods of fedtrellis.
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
    #: What a model may be made of; float64 always.
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)

    # Whether a method on a domain needs a bounded one.
    _bounded: ClassVar[bool] = False
    # Whether a client that is out of step keeps what it has of the entries that
    # client_state does not give back, however old; else it starts without.
    _keep_old_state = True
    # Whether a client that comes after the start takes part from then on. For methods
    # whose server keeps nothing of a single client.
    _newcomers: ClassVar[bool] = False
    # Settings (names of attributes) that decide what state() holds and means: a
    # checkpoint is for runs that have the same.
    _state_settings: tuple[str, ...] = ()
    # Attributes that state() holds: of "_x" the array as entry "x", or an array for
    # each client as an entry of the client's name.
    _kept: tuple[str, ...] = ()
    # Settings that a run may go on from a checkpoint without.
    _free_to_change: ClassVar[tuple[str, ...]] = ()
    # Whether clients ask their f_i for values and for no gradients.
    _values_only: ClassVar[bool] = False
    # Metrics of a round that the method itself measures and a run may stop on.
    _measures: ClassVar[tuple[str, ...]] = ()
    # Answers that a robust average of a round needs; 1 where those who sat out count
    # with what they last sent, or the method looks after itself.
    _least_answers: ClassVar[int] = LEAST
    # What a client releases with privacy="local": "gaussian" noise on a vector, or
    # vertices drawn by the "exponential" mechanism too; None: it adds no noise.
    _private_mechanism: ClassVar[Mechanism | None] = None
    # How often it does so in a round.
    _private_releases = 1

    # an editor completes the declared fields, which this signature would hide
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Point Flower's parameters to ours, before the constructor meets them."""
            for name in options:
                if name in _INSTEAD:
                    raise TypeError(
                        f"{cls.__name__} has no parameter {name!r} of Flower's FedAvg; "
                        f"here it is {_INSTEAD[name]}"
                    )
            return super().__new__(cls)

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
            if options is not None and name in options.__dict__:
                setattr(options, name, value)
            else:
                super().__setattr__(name, value)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options: RunOptions
        self.broadcast: ModelBroadcast
        self.conversation: Conversation
        self.clients: list[str] = []
        self.history: list[RoundRecord] = []
        self.refused: list[tuple[str, str]] = []
        self.num_rounds = 0
        self.sampled: list[str] = []
        self.used: list[str] = []
        self._model_size: tuple[Any, int, float] = None, 0, 0.0
        options = self.options
        if options.dtype is not None and options.dtype not in self.dtypes:
            raise SettingsError(
                f"dtype = {options.dtype!r} does not fit {self._described_name}; "
                f"allowed: {', '.join(self.dtypes)}"
            )
        chosen = options.aggregation
        if isinstance(chosen, str):
            chosen = next(kind for kind in AGGREGATIONS if kind.name == chosen)()
        #: The run's own aggregation.
        self.aggregator: Aggregation = copy(chosen)
        self._check_aggregation()
        #: The noise that clients add, if they do.
        self.local_noise = None if options.privacy == "none" else self._make_noise()
        logged = any(callback.tells_of_rounds for callback in options.callbacks)
        logs = () if logged else (RoundLog(),)
        options.callbacks = [*options.callbacks, *observers.get(), *logs]

    @property
    def _described_name(self) -> str:
        return self.name or type(self).__name__

    # -------------------------------------------------------- what an author may write

    @abstractmethod
    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Prepare the server's state for ``self.num_clients`` clients.

        Parameters
        ----------
        point : ndarray of shape ``layout.point_shape``
            The model to start from.
        layout : Layout
            Shapes and dtype of the model's arrays.

        Raises
        ------
        ValueError
            If the model does not fit the method, for example its domain.
        """

    @abstractmethod
    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round, in as many waves as it takes.

        Notes in ``self.sampled`` whom it asked, and in ``self.used`` whose answers it
        used.

        Parameters
        ----------
        conversation : Conversation
            With the clients.
        server_round : int
            From 1.
        config : ConfigRecord
            The run's own entries for the clients' ``config``.
        timeout : float
            Seconds to wait for the answers of one wave.

        Returns
        -------
        dict or None
            The round's metrics; None if no answer was used.
        """

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Waves before round 1, for a method whose clients have to agree on something.

        Also called when a run goes on from a checkpoint, after :meth:`load_state`.
        """

    def finish(self, conversation: Conversation) -> None:
        """After the last round, and after a failure: what clients have to clean up."""

    def converged(self) -> bool:
        """Whether the method's own stop rule holds; asked after every round."""
        return False

    def state(self) -> dict[str, NDArray[Any]]:
        """The method's own state, for a checkpoint; the model is kept by the loop.

        An entry that is not empty before round 1 keeps its shape.
        """
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

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone.

        Unless the aggregation has them drawn otherwise: by secret coins, or without
        some.
        """
        clients, options = self.clients, self.options
        drawn = list(clients)
        if options.participation < 1.0:
            rng = generator(options.seed, "participation", server_round)
            if options.sampling == "fixed":
                size = self._fixed_count()
                chosen = np.sort(rng.choice(len(clients), size=size, replace=False))
            else:
                coins = rng.random(len(clients)) < options.participation
                chosen = np.flatnonzero(coins)
            drawn = [clients[index] for index in chosen]
        return self.aggregator.cohort(server_round, drawn)

    def _check_model(self, layout: Layout) -> None:
        """Raise ValueError if the model does not fit, before any message is sent."""
        if self.space in ("domain", "manifold"):
            getattr(self, self.space).check_shape(layout.point_shape)

    def _result_point(self) -> FloatArray:
        """The model that is evaluated and returned, where that is not what is sent."""
        return self.broadcast.model

    @property
    def _result_layout(self) -> Layout:
        """Shapes and dtype of the result's point."""
        return self.broadcast.layout

    @property
    def _descends(self) -> bool:
        """Whether a run whose loss ends above where it began has failed.

        With noise a run has to come to something: it has cost its ε.
        """
        return any(isinstance(part, Budget) for part in self._parts)

    def _diverged(self) -> str:
        """Why a run that ends now has failed by the method's own measure; or empty.

        Asked in the end, where there is no loss to go by.
        """
        return ""

    def _warnings(self) -> list[str]:
        """What a reader of a run's record must not overlook."""
        return [text for part in self._parts if (text := part.warning())]

    # ------------------------------------------------------------ what a method calls

    @property
    def num_clients(self) -> int:
        """Number of clients n; fixed for the run, unless there are newcomers."""
        return len(self.clients)

    def take_point(
        self, answer: Answer, reference: FloatArray | None = None
    ) -> FloatArray:
        """The one dense array of an answer, a point in proportion to the model.

        Parameters
        ----------
        answer : Answer
        reference : ndarray, optional
            What of the model the client has; by default all of it.

        Raises
        ------
        ValueError
            Another number of arrays, another shape or dtype, or out of proportion; the
            message is the reason that log and history give.
        """
        reference = self.broadcast.model if reference is None else reference
        aggregator, layout = self.aggregator, self.broadcast.layout
        point: FloatArray = aggregator.take(answer, reference.shape, layout)
        if aggregator.seen_by != "client":
            self._check_proportion(point, reference, answer.norm)
        return point

    def average(self, points: Points, centre: FloatArray) -> FloatArray:
        r"""What some points come to, by the run's aggregation.

        Parameters
        ----------
        points : sequence of n ndarrays of shape S, or ndarray of shape (n, \*S)
            A round's answers, or vectors made of them.
        centre : ndarray of shape S
            Their last average, or what they changed: the model, or zero.

        Returns
        -------
        ndarray of float64, of shape S
        """
        if self.aggregator.seen_by != "method":
            points = [cast(Sealed, point).value for point in points]
        return self.aggregator.combine(points, centre)

    def mean_of(
        self, answers: Mapping[str, FloatArray], centre: FloatArray
    ) -> FloatArray:
        r"""What a round's answers come to, weighted if ``client_weights`` says so.

        Parameters
        ----------
        answers : mapping of str to ndarray of shape S
            By client; at least one, but for noise that a round without any has, too.
        centre : ndarray of shape S
            As :meth:`average` takes it.
        """
        points = list(answers.values())
        if self.options.client_weights == "equal":
            return self.average(points, centre)
        counts = [self._client_properties(client)[EXAMPLES] for client in answers]
        # Σ d_i x_i / Σ d_i
        mean: FloatArray = np.average(
            np.asarray(points, dtype=np.float64), axis=0, weights=counts
        )
        return mean

    def _client_properties(self, client: str) -> dict[str, Any]:
        """What a client answered to the introduction (its ``get_properties``)."""
        return self.conversation.client(client).properties

    @property
    def _expected_participation(self) -> float:
        """How likely a client is to take part in a round, p of the schedules.

        The setting itself, or ⌈p·n⌉/n where a round has a fixed number of clients.
        """
        if self.options.sampling == "fixed":
            return self._fixed_count() / self.num_clients
        return self.options.participation

    def _fixed_count(self) -> int:
        # n·p may lie above a whole number by rounding alone: 0.07·100 is 7.0…01
        return int(np.ceil(self.num_clients * self.options.participation - 1e-9))

    def _check_proportion(
        self, point: FloatArray, reference: FloatArray, norm: float | None = None
    ) -> None:
        """Raise ValueError for a point, of a norm that may be known, far beyond x."""
        size = _norm(point) if norm is None else norm
        broadcast, (known, version, scale) = self.broadcast, self._model_size
        if reference is not broadcast.model:
            scale = _norm(reference)
        elif known is not broadcast or version != broadcast.version:
            scale = _norm(reference)
            self._model_size = broadcast, broadcast.version, scale
        # ‖x_i‖ ≤ b · max(1, ‖x‖)
        if not size <= self.options.answer_bound * max(1.0, scale):
            raise ValueError(
                f"the answer has norm {size:.3g}, the model {scale:.3g}: beyond "
                f"answer-bound = {self.options.answer_bound:g}; local steps that "
                "diverge, or a lie"
            )

    # ------------------------------------------------------------------ its messages

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model as one client is sent it, and the entries on its encoding.

        ``entries`` are the request's; what they hold for the model is taken out.
        """
        return self.broadcast.encode(self.conversation.client(client).version)

    def _state_for(self, client: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """The state for a client that has none, and the entries on it."""
        return pack_restore(self.client_state(client), self.broadcast.model)

    def _replaces_state(self, client: str) -> bool:
        """Whether a client's own state no longer counts, only :meth:`client_state`."""
        return False

    def _evaluate_clients(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> MetricRecord | None:
        """Mean of the clients' metrics of their own data, where an evaluation is due.

        Parameters are those of :meth:`run_round`.
        """
        entries: dict[str, Mapping[str, Any]] = {
            name: dict(config) for name in self.clients
        }
        answers = conversation.ask(server_round, "evaluate", entries, timeout)
        for answer in answers:
            conversation.note_version(answer)
        return self._mean_evaluation(answers)

    def _mean_evaluation(self, answers: Sequence[Answer]) -> MetricRecord | None:
        """The clients' metrics in the mean; with a robust aggregation in the median.

        A client weighs by the examples that it declared before round 1, whatever its
        evaluation has. What one that did not has in its first, it has declared by that.
        """
        metrics, weights = [], []
        for answer in answers:
            count = answer.metrics.get(EXAMPLES)
            if not is_count(count):
                self.conversation.reject(
                    answer.client, f"the evaluation is of {count!r} examples"
                )
                continue
            declared = self._client_properties(answer.client)
            examples = declared.setdefault(EXAMPLES, count)
            metrics.append({**answer.metrics, EXAMPLES: int(examples)})
            equal = self.options.evaluation_weights == "equal"
            weights.append(float(examples > 0) if equal else float(examples))
        return mean_metrics(metrics, weights, median=self.aggregator.robust)

    # ---------------------------------------------------------------- its aggregation

    def _admits(self, kind: type[Aggregation]) -> bool:
        """Whether the method can go on from what an aggregation gives it.

        By what it :attr:`needs`; a method that knows more of itself answers here.
        """
        if issubclass(kind, Mean):
            return True
        if kind.seen_by == "client":  # takes clients that can hide what they send
            return False
        enough = self.needs == "each" and kind.seen_by == "method"
        return self.needs == "sum" or enough

    def _check_aggregation(self) -> None:
        """Raise SettingsError if it does not fit the method or other settings."""
        kind, stated = type(self.aggregator), f"aggregation = {self.aggregator.name!r}"
        if not self._admits(kind):
            allowed = [k.name for k in AGGREGATIONS if self._admits(k)]
            variant: str = getattr(self, "variant", "")
            beside = f" with variant = {variant!r}" if variant else ""
            raise SettingsError(
                f"{stated} does not apply to {self._described_name}{beside}; allowed: "
                f"{', '.join(allowed)}"
            )
        weights, why = self.options.client_weights, ""
        if self.needs != "sum":
            why = (
                f"to {self._described_name}; allowed: equal (scale each client's f_i "
                "by its examples)"
            )
        elif not issubclass(kind, Mean):
            why = f"beside {stated}, with which all clients count alike; allowed: equal"
        if why and weights != "equal":
            raise SettingsError(f"client_weights = {weights!r} does not apply {why}")
        self._refuse_resume(stated, kind.no_resume)

    def _refuse_resume(self, stated: str, why: str) -> None:
        if why and self.options.resume is not None:
            raise SettingsError(f"resume does not apply beside {stated}: {why}")

    def _make_noise(self) -> LocalPrivacy:
        """Noise by the clients; SettingsError where it would leave no guarantee."""
        stated, options = LocalPrivacy.wanted, self.options
        if self._private_mechanism is None:
            raise SettingsError(
                f"{stated} does not apply to {self._described_name}; allowed: none"
            )
        # no average of the middle, and no second noise
        others = [kind for kind in AGGREGATIONS if not issubclass(kind, Budget)]
        means = [kind.name for kind in others if not kind.robust]
        evaluated = options.client_evaluate_every
        for name, value, allowed, why in (
            ("aggregation", self.aggregator.name, means, "the noise is for a mean"),
            *(("client_weights", options.client_weights, ["equal"], _EQUAL),),
            ("client-evaluate-every", evaluated, [0], "evaluations have no noise"),
        ):
            if value not in allowed:
                raise SettingsError(
                    f"{name} = {value!r} does not apply beside {stated}: {why}; "
                    f"allowed: {', '.join(map(str, allowed))}"
                )
        self._refuse_resume(stated, LocalPrivacy.no_resume)
        return LocalPrivacy(
            clip=options.privacy_clip,
            noise_multiplier=options.privacy_noise_multiplier,
            epsilon=options.privacy_epsilon,
            delta=options.privacy_delta,
            mechanism=self._private_mechanism,
            each=self._private_releases,
        )

    @property
    def _parts(self) -> list[Aggregation | LocalPrivacy]:
        noise = [] if self.local_noise is None else [self.local_noise]
        return [self.aggregator, *noise]

    def _settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs; the mean goes without a line."""
        chosen: dict[str, Any] = {}
        if not isinstance(self.aggregator, Mean):
            kind, values = self.aggregator.name, self.aggregator._described()
            chosen |= {"aggregation": kind}
            chosen |= {f"{kind} {name}": value for name, value in values.items()}
        if self.local_noise is not None:
            values = self.local_noise._described()
            chosen |= {"privacy": self.options.privacy}
            chosen |= {f"privacy {name}": value for name, value in values.items()}
        return {**self.options._described(), **self._described(), **chosen}


_EQUAL = "it is for equal ones"


def _norm(point: FloatArray) -> float:
    # a float32's square may be beyond what a float32 can hold
    return float(np.linalg.norm(point.astype(np.float64, copy=False)))
