"""What the methods for data split by samples and features have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES, Alignment, Group, align
from fedtrellis.objectives.losses import LOSSES
from fedtrellis.server.conversation import Answer
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import (
    FloatArray,
    Layout,
    array_record,
    encode,
    sparse_or_dense,
)
from fedtrellis.wire.flower_internals import filled

#: Under this name a request's entries carry the weights to send: an array of shape
#: (r, p_k), r versions of the client's own features' weights.
ROWS = "_rows"

Blobs = list[bytes]
#: What clients are sent: each the same, or made by its name, anew for each attempt.
Entries = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]


class HybridStrategy(LoopStrategy):
    """Base class: clients that hold some of the samples and some of the features.

    Before round 1 the clients say which features they have, by name, and send keyed
    hashes of their samples' ids if the method matches samples; ``self.alignment`` is
    what the server makes of it. A client is sent the weights of its own features only.
    What a round is, a method says beside it: it is a
    :class:`~fedtrellis.RoundStrategy` too, or implements :meth:`run_round` itself.
    """

    space = "split"

    keep_model = False
    _kept: tuple[str, ...] = ("_alignment",)
    # what is among these attributes, beside what :func:`freeze` knows by itself
    _kinds: ClassVar[tuple[type, ...]] = (Alignment, Group)
    #: Whether clients can score samples together, in waves of their own.
    predicts = False
    #: C, where each of several classes is separated from the rest; else 1.
    classes: int = 1

    #: Whether clients send hashes of their samples' ids; a method that only needs to
    #: know who has which feature is sent none.
    match_samples = True

    loss: str = given(
        "of a score", default="hinge", kw_only=False, choices=tuple(LOSSES)
    )
    regularization: float = given(
        "weight of (1/2)‖w‖²", default=1e-3, kw_only=False, symbol="λ", above=0.0
    )
    smoothing: float = given(
        "of the smoothed hinge loss", default=1.0, symbol="g", above=0.0
    )
    feature_names: Sequence[str] | None = given(
        "the model's features, in the order of its one array; by default all that the "
        "clients name, in the order of the clients and of each client's own",
        default=None,
        shown=False,
    )
    allow_unheld: bool = given(
        "whether feature_names may have some that no client holds, whose weights then "
        "stay 0; otherwise that ends the run before round 1",
        default=False,
        shown=False,
    )
    retries: int = setting(
        2,
        "how often a phase is asked again of clients that did not answer",
        note="the others of their group wait for them",
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_evaluate_every and not self.predicts:
            raise SettingsError(
                f"client_evaluate_every = {self.client_evaluate_every} must be 0: a "
                "client that holds some of the features cannot evaluate the model"
            )
        if self.feature_names is not None:
            self.feature_names = list(self.feature_names)

    # ------------------------------------------------------------------- the wire

    @property
    def alignment(self) -> Alignment:
        """Who holds what, once the clients have sent it."""
        assert self._alignment is not None, "the clients have not been aligned yet"
        return self._alignment

    def own(self, client: str, *vectors: FloatArray) -> FloatArray:
        """Rows of a client's own features' entries, of vectors of shape (p,) or (C, p).

        Of shape (r, p_k) or (r C, p_k), the classes of a vector together.
        """
        columns = self.alignment.columns[client]
        return np.concatenate([np.atleast_2d(one)[:, columns] for one in vectors])

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What a client without state is given: arrays, and entries for its config."""
        return {}, {}

    def _model_for(
        self, client: str, entries: dict[str, Any]
    ) -> tuple[ArrayRecord, dict[str, Any]]:
        """The weights of the client's own features and no others, if any are sent."""
        # a model has at least one array; this one takes the least room
        rows = np.ascontiguousarray(entries.pop(ROWS, np.zeros((1, 0))))
        parts = sparse_or_dense(rows)
        return array_record(parts, join=True), {
            "model-encoding": "dense" if len(parts) == 1 else "sparse",
            **Layout.of([rows]).entries(),
            "model-version": 0,
        }

    def _replaces_state(self, client: str) -> bool:
        """Before a client's first round: what earlier waves left is not complete."""
        known = self.conversation.clients[client]
        return not known.ready and not known.used_round

    def _state_for(self, client: str) -> tuple[ArrayRecord, dict[str, Any]]:
        """What :meth:`restore` gives, as it travels."""
        arrays, entries = self.restore(client)
        record = filled(ArrayRecord(), {key: encode(a) for key, a in arrays.items()})
        return record, {"restore": True, **entries}

    def ask(
        self,
        kind: str,
        entries: Entries,
        take: Callable[[Answer], None],
        clients: Sequence[str],
        attempts: int | None = None,
    ) -> set[str]:
        """As the conversation's, by default once more than ``retries``."""
        waves = 1 + self.retries if attempts is None else attempts
        asked = kind, _by_name(entries), take, self._loop.timeout, clients, waves
        return set(self.conversation.ask_again(self.at_round, *asked))

    def ask_everyone(
        self,
        kind: str,
        entries: Entries,
        take: Callable[[Answer], None],
        clients: Sequence[str] | None = None,
    ) -> None:
        """As the conversation's, all by default."""
        of = _by_name(entries), take, self._loop.timeout
        asked = self.clients if clients is None else clients
        self.conversation.ask_everyone(kind, *of, asked)

    # ------------------------------------------------------------------- alignment

    def _check_model(self, layout: Layout) -> None:
        """The model is one vector of weights, (p,), or of several classes (p, C)."""
        C = self.classes
        if len(layout.shapes) != 1 or layout.shapes[0][1:] != ((C,) if C > 1 else ()):
            of = f" for each of {C} classes: one array of shape (p, {C})" * (C > 1)
            raise SettingsError(
                f"the model has shapes {list(layout.shapes)}; this method learns one "
                f"vector of weights{of}"
            )
        p = layout.size // C
        if self.feature_names is not None and len(self.feature_names) != p:
            raise SettingsError(
                f"the model has {p} weights, but feature_names has "
                f"{len(self.feature_names)} names"
            )

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing yet: what there is to know comes from the clients."""
        self._alignment: Alignment | None = None
        self.at_round = 0  # that waves are of; 0: before the first

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Raise ValueError if the rest of an answer to the alignment is malformed."""

    def align_clients(
        self, entries: Entries, parts: int = 1
    ) -> dict[str, list[NDArray[Any]]]:
        """Learn who holds what; returns the rest of each client's answer.

        The clients' ``fit_align`` answers their samples' hashes (shape (n_k, 16), and
        only if samples are matched), their features' names, a line each, and the rest.
        Without hashes the alignment has one sample a client, which nobody shares.
        """
        hashes: dict[str, NDArray[np.uint8]] = {}
        features: dict[str, list[str]] = {}
        rest: dict[str, list[NDArray[Any]]] = {}

        def take(answer: Answer) -> None:
            arrays = list(answer.arrays)
            if not self.match_samples:
                # a sample of its own, as it is not known which it has
                number = self.clients.index(answer.client)
                data = number.to_bytes(HASH_BYTES, "big")
                arrays.insert(0, np.frombuffer(data, dtype=np.uint8)[None])
            if len(arrays) < 2 or arrays[0].ndim != 2:
                raise ValueError("the answer to the alignment is malformed")
            own, names, *others = arrays
            self.check_rest(others)
            hashes[answer.client] = own
            text = names.tobytes().decode()
            features[answer.client] = text.split("\n") if text else []
            rest[answer.client] = others

        self.ask_everyone("train.align", entries, take)
        in_order = {name: hashes[name] for name in self.clients}
        try:
            self._alignment = align(
                in_order, features, self.feature_names, parts, self.allow_unheld
            )
        except ValueError as error:
            raise SettingsError(str(error)) from None
        p, own = len(self.alignment.feature_names), self.broadcast.model.size
        if p * self.classes != own:
            raise SettingsError(
                f"the model has {own // self.classes} weights, but the clients hold "
                f"{p} features"
            )
        return rest

    # ----------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """What the next round needs, as arrays, for a checkpoint."""
        return freeze({name: getattr(self, name) for name in self._kept})

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        vars(self).update(thaw(state, self._kinds))


def freeze(tree: Any) -> dict[str, NDArray[Any]]:
    """Return lists, tuples, sets and mappings of arrays, bytes and numbers as arrays.

    A named tuple or an object goes by the name of its class and its fields, or as a
    mapping of those that its ``KEPT`` names. One entry, ``tree``, is JSON, and says
    what the others are.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def plain(value: Any) -> Any:
        kind = type(value).__name__
        if isinstance(value, np.ndarray | bytes):
            number = str(len(arrays))
            array = value if kind != "bytes" else np.frombuffer(value, np.uint8)
            arrays[number] = np.asarray(array)
            return [kind, number]
        if isinstance(value, dict):
            return [kind, [[plain(key), plain(one)] for key, one in value.items()]]
        if kind in ("list", "tuple", "set"):
            every = sorted(value) if kind == "set" else value
            return [kind, [plain(one) for one in every]]
        if value is None or isinstance(value, str | int | float):
            return value
        if names := getattr(value, "KEPT", ()):
            return plain({name: getattr(value, name) for name in names})
        fields = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return [kind, {name: plain(one) for name, one in fields.items()}]

    return {"tree": np.array(json.dumps(plain(tree))), **arrays}


def thaw(arrays: Mapping[str, NDArray[Any]], kinds: Sequence[type] = ()) -> Any:
    """Inverse of :func:`freeze`; ``kinds`` are the classes that it has met."""
    known: dict[str, Callable[..., Any]] = {
        kind.__name__: kind for kind in (list, tuple, set, *kinds)
    }

    def value(found: Any) -> Any:
        if not isinstance(found, list):
            return found
        kind, inside = found
        if kind == "ndarray":
            return arrays[inside]
        if kind == "bytes":
            return arrays[inside].tobytes()
        if kind == "dict":
            return {value(key): value(one) for key, one in inside}
        if isinstance(inside, dict):
            return known[kind](**{name: value(one) for name, one in inside.items()})
        return known[kind](map(value, inside))

    return value(json.loads(str(arrays["tree"])))


def _by_name(entries: Entries) -> Callable[[str], Mapping[str, Any]]:
    return entries if callable(entries) else lambda name: entries
