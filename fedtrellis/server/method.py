"""What every method of fedtrellis is, however many waves of messages its rounds take.

A method is what its server sends, what it checks in an answer, and what it makes of the
answers. This base class has what all of them can say of themselves, draws a round's
clients by their stable identities, and tells the conversation with the clients how the
model and a client's state travel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedtrellis.declared import Declared
from fedtrellis.random import generator
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.flower_ways import FLOWER_HOOKS, advise
from fedtrellis.settings import SettingsError, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import ModelBroadcast
from fedtrellis.wire.layout import DType
from fedtrellis.wire.protocol import pack_restore

__all__ = ["SAMPLINGS", "Method"]

Sampling = Literal["bernoulli", "fixed"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)


class Method(Strategy, Declared):
    """A method as its hooks, beside what it does in a round.

    Use :class:`~fedtrellis.RoundStrategy`, or for rounds of several waves
    :class:`~fedtrellis.server.loop.LoopStrategy`, which add the loop. It is the
    :class:`~fedtrellis.server.conversation.Policy` of its own conversation.

    Attributes
    ----------
    broadcast : ModelBroadcast
        The model, and how it gets to the clients; from :meth:`setup` on.
    conversation : Conversation
        With the clients; from the beginning of ``start`` on.
    num_rounds : int
        Rounds planned; from the beginning of ``start`` on.
    """

    #: Whether the method's clients keep state (and so take part in the protocol).
    stateful = True
    #: Whether clients keep the model, to be sent the steps that they lack.
    keep_model = True
    #: Whether a client that is out of step keeps what it has of the entries that
    #: :meth:`client_state` does not give back, however old; else it starts without.
    keep_old_state = True
    #: Whether a client that comes after the start takes part from then on. For methods
    #: whose server keeps nothing of a single client.
    newcomers: ClassVar[bool] = False
    #: Settings (names of attributes) that decide what :meth:`state` holds and means: a
    #: checkpoint is for runs that have the same.
    state_settings: tuple[str, ...] = ()

    #: What run configs call the method; its settings' keys begin with it.
    name: ClassVar[str] = ""
    #: A line for listings.
    about: ClassVar[str] = ""
    #: Where the model lives: "domain", a convex set; "whole", all of space;
    #: "manifold"; or "split", one vector of weights whose features lie with clients.
    space: ClassVar[str] = "whole"
    #: Whether a method on a domain needs a bounded one.
    bounded: ClassVar[bool] = False
    #: Whether clients ask their f_i for values and for no gradients.
    values_only: ClassVar[bool] = False
    #: Metrics of a round that the method itself measures and a run may stop on.
    measures: ClassVar[tuple[str, ...]] = ()
    #: Settings that a run may go on from a checkpoint without.
    free_to_change: ClassVar[tuple[str, ...]] = ()

    #: What a model may be made of; float64 always.
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)

    participation: float = setting(
        1.0,
        "probability, or fraction, of the clients that take part in a round",
        symbol="p",
        above=0.0,
        maximum=1.0,
    )
    sampling: Sampling = setting(
        "bernoulli",
        "a coin flip for each client, or a fixed number of them, ⌈p·n⌉",
        choices=Sampling,
    )
    seed: int = setting(0, "of everything random", minimum=0, shown=False)
    dtype: DType | Literal["auto"] = setting(
        None,
        "what the model is made of: computed, kept and sent in; auto: what "
        "initial_arrays are of, where the method takes that, and in a run config "
        "float64",
        note="see :mod:`fedtrellis.wire.layout`",
        choices=DType,
        shown=False,
    )

    # an editor completes the declared fields, which this signature would hide
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Point Flower's parameters to ours, before the constructor meets them."""
            advise(cls, options)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.broadcast: ModelBroadcast
        self.conversation: Conversation
        self.num_rounds = 0
        self._sampled: list[str] = []
        if self.dtype is not None and self.dtype not in self.dtypes:
            raise SettingsError(
                f"dtype = {self.dtype!r} does not fit "
                f"{self.name or type(self).__name__}; allowed: {', '.join(self.dtypes)}"
            )

    # ------------------------------------------------------------------ the method

    def layout_of(self, arrays: Sequence[NDArray[Any]]) -> Layout:
        """Shapes and dtype of the model that begins as these arrays."""
        layout = Layout.of(arrays)
        found = layout.dtype if layout.dtype in self.dtypes else "float64"
        return Layout(layout.shapes, self.dtype or found)

    def check_model(self, layout: Layout) -> None:
        """Raise ValueError if the model does not fit the method, say its domain.

        Called before any message is sent.
        """

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

    def result_point(self) -> FloatArray:
        """The model that is evaluated and returned, where that is not what is sent."""
        return self.broadcast.model

    @property
    def result_layout(self) -> Layout:
        """Shapes and dtype of :meth:`result_point`."""
        return self.broadcast.layout

    def converged(self) -> bool:
        """Whether the method's own stop rule holds; asked after every round."""
        return False

    @property
    def descends(self) -> bool:
        """Whether a run whose loss ends above where it began has failed."""
        return False

    def blame(self) -> str:
        """What a run that ended above its start is put down to, where it is known."""
        return ""

    def diverged(self) -> str:
        """Why a run that ends now has failed by the method's own measure; or empty.

        Asked in the end, where there is no loss to go by.
        """
        return ""

    def state(self) -> dict[str, NDArray[Any]]:
        """The method's own state, for a checkpoint; the model is kept by the loop.

        An entry that is not empty before round 1 keeps its shape.
        """
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`; called after :meth:`setup`."""

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs, by name and symbol."""
        return self.described()

    def warnings(self) -> list[str]:
        """What a reader of a run's record must not overlook."""
        return []

    # ------------------------------------------------------------------ its messages

    @abstractmethod
    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One round, in as many waves as it takes.

        Notes down in ``self._sampled`` whom it asked, and in ``self._used`` whose
        answers it used.

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

    # ------------------------------------------------------------------- sampling

    @property
    def clients(self) -> list[str]:
        """Identities of the run's clients, in order."""
        return self.conversation.names

    @property
    def num_clients(self) -> int:
        """Number of clients n; fixed for the run, unless there are newcomers."""
        return len(self.conversation.names)

    def client_properties(self, client: str) -> dict[str, Any]:
        """What a client answered to the introduction (its ``get_properties``)."""
        return self.conversation.client(client).properties

    @property
    def expected_participation(self) -> float:
        """How likely a client is to take part in a round, p of the schedules.

        The setting itself, or ⌈p·n⌉/n where a round has a fixed number of clients.
        """
        if self.sampling == "fixed":
            return self._fixed_count() / self.num_clients
        return self.participation

    def _fixed_count(self) -> int:
        # n·p may lie above a whole number by rounding alone: 0.07·100 is 7.0…01
        return int(np.ceil(self.num_clients * self.participation - 1e-9))

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone."""
        clients = self.clients
        if self.participation == 1.0:
            return list(clients)
        rng = generator(self.seed, "participation", server_round)
        if self.sampling == "fixed":
            chosen = rng.choice(len(clients), size=self._fixed_count(), replace=False)
            return [clients[index] for index in sorted(chosen)]
        coins = rng.random(len(clients)) < self.participation
        return [c for c, heads in zip(clients, coins, strict=True) if heads]

    # ------------------------------------------ what the conversation asks the method

    @property
    def model_version(self) -> int:
        """The version of the model that requests bring, which answers have to name."""
        return self.broadcast.version

    def refuse_newcomer(self, properties: Mapping[str, Any]) -> str:
        """Why a client that comes after the start cannot take part; empty if it can.

        Parameters
        ----------
        properties : mapping
            What it answered to the introduction.
        """
        return "" if self.newcomers else "the method's clients are those of the start"

    def model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The model as one client is sent it, and what to say of its encoding.

        ``entries`` are the request's; what they hold for the model is taken out.
        """
        return self.broadcast.encode(self.conversation.client(client).version)

    def state_for(self, client: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """The state for a client that has none, and what to say of it."""
        return pack_restore(self.client_state(client), self.broadcast.model)

    def client_state(self, client: str) -> dict[str, FloatArray]:
        """The state to give a client that has lost its own (or never had one).

        An entry that is the model itself (the same object) costs nothing to send.
        """
        return {}

    def replaces_state(self, client: str) -> bool:
        """Whether a client's own state no longer counts, only :meth:`client_state`."""
        return False

    # -------------------------------------------------------------- Flower's own loop

    @classmethod
    def own_hooks(cls, base: Any) -> list[str]:
        """The parts of Flower's loop that a subclass of ``base`` says anew."""
        return [h for h in FLOWER_HOOKS if getattr(cls, h) is not getattr(base, h)]

    def check_hooks(self) -> None:
        """Raise TypeError if a part of Flower's loop is overridden that nobody calls.

        Called before any message is sent.
        """
        self.refuse_hooks(self.own_hooks(Method))

    def refuse_hooks(self, hooks: Sequence[str]) -> None:
        """Raise TypeError if there are any of these overridden parts."""
        if hooks:
            raise TypeError(
                f"{type(self).__name__} overrides {hooks[0]}, but its rounds take "
                "several waves of messages, which Flower's loop does not have: "
                "override run_round, or use a callback"
            )

    def _not_one_wave(self, *arguments: Any, **more: Any) -> Any:
        """Refuse: a round is not one wave; RuntimeError."""
        raise RuntimeError(
            f"{type(self).__name__} takes several waves of messages a round, which "
            "Flower's own loop cannot send: use strategy.start"
        )

    configure_train = aggregate_train = _not_one_wave
    configure_evaluate = aggregate_evaluate = _not_one_wave
