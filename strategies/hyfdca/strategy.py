"""HyFDCA: hybrid federated dual coordinate ascent under homomorphic encryption."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedtrellis.dual.agreement import NONCE_BYTES, Agreement, Party
from fedtrellis.dual.alignment import Alignment
from fedtrellis.dual.columns import ColumnScales
from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.encryption import Cipher, load_evaluation
from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from .certificate import Certificate
from .columns import ask_columns
from .mixtures import MixtureSteps
from .new_samples import score_new_samples
from .preparation import (
    MAC_BYTES,
    Labels,
    align_new_samples,
    ask_agreement,
    ask_labels,
    match_ids,
    settle_cipher,
)
from .settings import HyFDCASettings
from .steps import Steps, as_array, proposal_kinds, read_blobs
from .updates import UpdateSteps

__all__ = ["HyFDCA"]

# How many moves since P was last known the best certified model outlives; with a safe
# step, which improves on the start for sure, less than half of all moves.
_CERTIFIED_MOVES = 50


class HyFDCA(HyFDCASettings):
    """Samples and features split over clients; the dual stays with the clients.

    Solves min over w of P(w) = (λ/2)‖w‖² + (1/N) Σ l_i(wᵀx_i) through its dual
    D(α) = −(λ/2)‖w(α)‖² − (1/N) Σ l_i*(−α_i), w(α) = (1/λN) Σ α_i x_i. Client k holds
    the entries x_{k,i} of some samples and some features, and α of its samples; the
    server holds w. One iteration (a round)::

        1  server    sends each client w at its own features
           client k  sends enc(x_{k,i}ᵀ w_k) for its samples
        2  server    adds: enc(x_iᵀ w), and sends it to those who hold sample i
           client k  decrypts, proposes new α, and sends
                     v_k = (1/λN) Σ_i α_i x_{k,i} of the proposal, in the clear
           server    chooses the best mixture of all proposals so far, and from it w

    Clients that hold the same sample see the same numbers and propose the same α, so
    the proposals themselves need not travel: two round trips an iteration instead of
    the paper's three, and one where no sample is shared.

    Source: Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated
    Learning", AAAI 2024, arXiv 2210.08106, algorithms 1 to 5; the steps ``bundle`` and
    ``line-search`` are ours (:mod:`fedtrellis.dual.bundle`).

    With ``classes`` = C each class stands against the rest: C such problems, w of shape
    (p, C) and α of (N, C). They share the samples, the encryption and the waves, so
    that an iteration has as many messages as with one; each has a mixture of its own.
    P, D and the gap are the sums over the classes.

    Notes
    -----
    The matching client is ``HyFDCAClient(context, features, feature_names,
    sample_ids, labels, loss, key)``. Metrics of a round: ``primal`` P(w) and ``dual``
    D(α) at the point that the round started from, and ``dual-bound`` D(α) after it;
    ``duality-gap``, the lowest P less the highest D so far: the certificate of the
    result, and what ``tolerance`` stops at. Where groups move apart and clients come
    and go, ``primal`` is P of a w that was held until all groups had reported at it.
    The result is the certified w with the lowest P of the run, or the last one where P
    was not to be had for 50 moves, or for half of the run's.

    What the server sees: w, each client's v_k (or only their sum, ``secure_sum``), who
    shares a slot with whom, sums of losses, and ciphertexts; no α, no inner product, no
    label, no id. What a client sees: w at its features, and z_i, α_i and y_i of its
    samples. Clients share one key, and must not collude with the server.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import ArrayRecord
    >>> from fedtrellis import LocalGrid, client_app
    >>> from fedtrellis.clients import HyFDCAClient
    >>> from fedtrellis.strategies import HyFDCA
    >>> X = np.random.default_rng(0).normal(size=(30, 6))
    >>> y, ids = np.sign(X[:, 0]), [str(i) for i in range(30)]
    >>> def client_fn(context):
    ...     first = 2 * context.node_config["partition-id"]
    ...     columns = slice(first, first + 2)
    ...     return HyFDCAClient(context, X[:, columns], list("abcdef")[columns], ids, y)
    >>> grid = LocalGrid(client_app(client_fn), 3)
    >>> strategy = HyFDCA(regularization=0.1, exposed="accept")
    >>> result = strategy.start(grid, ArrayRecord([np.zeros(6)]), num_rounds=100)
    >>> strategy.history[-1].metrics["duality-gap"] < 1e-3
    True
    """

    name = "hyfdca"
    about = "encrypted dual ascent: samples and features split over nodes"

    predicts = True
    _state_settings = ("step", "parts", "secure_sum")
    _measures = ("primal", "dual", "duality-gap")
    # the strategy compares the key itself
    _free_to_change = ("context",)

    def _warnings(self) -> list[str]:
        """Say where nothing is encrypted."""
        if self.encryption == "none":
            return ["NOTHING WAS ENCRYPTED: encryption = 'none' is for debugging"]
        return []

    # ------------------------------------------------------------------ before round 1

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start at α = 0, and where the steps are safe at the initial weights.

        Raises
        ------
        SettingsError
            There are initial weights, and they cannot be used.
        """
        super().setup(point, layout)
        if point.any() and (not self.safe or self.standardize):
            key = "standardize = True" if self.safe else f"step = {self.step!r}"
            raise SettingsError(
                f"{key} starts at weights of 0, and the initial weights are others; "
                "allowed: zeros"
            )
        self.cipher: Cipher | None = None
        self._labels: list[Labels] = []
        self._scales: ColumnScales | None = None  # of raw columns
        self._totals: FloatArray | None = None  # what weights are normalised by
        self._steps: Steps | None = None
        self._best = Certificate(self.classes)
        self._moves = 0
        self._uncertified = 0  # moves since the w that P was last known of
        self._own_keys = self.given_cipher is not None
        self._fingerprint = ""  # of the clients' common key, if they have one
        self._agreement: Agreement | None = None
        self._new: Alignment | None = None  # of the samples that are to be scored
        # what clients sent each other through the server, for those that lost it
        self._confirmations: dict[str, list[bytes]] = {}
        self._sealed: dict[tuple[tuple[str, ...], str], bytes] = {}
        self._reached: Any = None
        #: The nonce that each client is to be asked with next.
        self.nonces: dict[str, bytes] = {}

    @property
    def steps(self) -> Steps:
        """The iteration, once the clients are aligned."""
        assert self._steps is not None
        return self._steps

    def _make_steps(self) -> Steps:
        return MixtureSteps(self) if self.safe else UpdateSteps(self)

    def phase_config(self) -> dict[str, Any]:
        """What clients are sent in every phase."""
        config: dict[str, Any] = {
            "encryption": self.encryption,
            "own-key": self._own_keys,
        }
        if self._agreement is None:  # later on, what was agreed on counts
            config |= self._pinned_settings()
        if self._fingerprint:
            config["key"] = self._fingerprint
        return config

    def _pinned_settings(self) -> dict[str, Any]:
        """The settings that clients agree on before any label travels."""
        settings: dict[str, Any] = {
            "session": self.conversation.session,
            "encryption": self.encryption,
            "loss": self.loss,
            "smoothing": self.smoothing,
            "regularization": self.regularization,
            "local-fraction": self.local_fraction,
            "local-passes": self.local_passes,
            "slots": self.slots,
            "step": self.step,
            "secure-sum": self.secure_sum,
            "standardize": bool(self.standardize),
            "proposals": proposal_kinds(self, shared=True),
            "local-proposals": proposal_kinds(self, shared=self.secure_sum),
            "exposed": self.exposed,
            "least": self.least,
            "noise": self.noise,
            "num-clients": self.num_clients,
            "answers": self._declared_answers(),
        }
        optional = (
            ("classes", self.classes, 1),
            ("l1-ratio", self.l1_ratio, 0.0),
            ("free-feature", self.free_feature, ""),
            ("weighted", self._weighted(), False),
            ("class-weight", self.class_rule, ""),
        )
        # of its default an agreement says nothing
        settings |= {key: own for key, own, default in optional if own != default}
        if self._alignment is not None:
            settings["num-samples-all"] = self.alignment.num_samples
        return settings

    def _weighted(self) -> bool:
        """Whether some client's samples have weights."""
        known = ((name, self._client_properties(name)) for name in self.clients)
        names = [name for name, one in known if one.get("weighted")]
        if names:
            self.check_weights(f"client {', '.join(names)}: samples have weights")
        return bool(names)

    def _declared_answers(self) -> int:
        """How many different questions the run has for a client."""
        rounds = self.num_rounds
        # some in hand: going back after a loss takes another way
        answers = rounds + self._evaluations(rounds) + rounds // 10 + 10
        return self.classes * answers

    def _evaluations(self, rounds: int) -> int:
        """How many evaluations so many rounds have, and one of the last round."""
        every = self.client_evaluate_every
        return rounds // every + 1 if every else 0

    @property
    def agreement(self) -> Agreement:
        """What all clients have agreed on."""
        assert self._agreement is not None
        return self._agreement

    @property
    def new_samples(self) -> Alignment | None:
        """Who holds which of the samples that are to be scored."""
        return self._new

    @property
    def noisy(self) -> bool:
        """Whether clients add noise, so that neither v nor D is exact."""
        noisy = (self._client_properties(name).get("noisy") for name in self.clients)
        return self.noise > 0.0 or any(map(bool, noisy))

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Match samples and features, agree, and share labels and norms encrypted."""
        if self._steps is not None:
            # a run that goes on, if its key is still there
            self._ask_ready(conversation, timeout, self._longer())
            return
        roster = self._key_kind() == "roster"
        points = match_ids(self, conversation, timeout) if roster else {}
        rest = self._ask_alignment(conversation, timeout, points)
        self.cipher = settle_cipher(self, rest)
        if not roster:
            self._fingerprint = next(iter(rest.values()))[0].tobytes().decode()
        if self.encryption == "none":
            log(WARNING, "NOTHING IS ENCRYPTED: encryption = 'none' is for debugging")
        self._new = align_new_samples(self, rest)
        members = [
            Party(name, rest[name][0].tobytes().decode(), rest[name][1].tobytes().hex())
            for name in self.clients
        ]
        new = [] if self._new is None else self._new.groups
        settings = self._pinned_settings()
        self._agreement = Agreement.of(settings, members, self.alignment, new)
        self._confirmations, self._sealed = ask_agreement(self, conversation, timeout)
        weighs = "weighted" in settings or "class-weight" in settings
        if self.standardize and not weighs:
            self._scales, _ = ask_columns(self, conversation, timeout)
        self._labels = ask_labels(self, conversation, self.cipher, timeout)
        if weighs:  # with labels known, as weights of classes are of them
            found = ask_columns(self, conversation, timeout)
            self._scales, self._totals = found
        self._ask_ready(conversation, timeout)
        for name in self.clients:
            conversation.client(name).ready = True
        groups = self.alignment.groups
        log(
            INFO,
            "%d samples in %d groups, %d features; %s data",
            self.alignment.num_samples,
            len(groups),
            len(self.alignment.feature_names),
            self.kind,
        )
        self._steps = self._make_steps()

    def _key_kind(self) -> str:
        """Which kind of keys the clients have: all of them the same."""
        kinds: dict[str, list[str]] = {}
        for name in self.clients:
            kind = str(self._client_properties(name).get("key-kind", "run"))
            kinds.setdefault(kind, []).append(name)
        if len(kinds) > 1:
            words = {
                "roster": "identity and roster",
                "key": "key-file",
                "run": "no key",
            }
            found = "; ".join(
                f"client {', '.join(names)}: {words.get(kind, kind)}"
                for kind, names in kinds.items()
            )
            raise SettingsError(f"the clients do not have one kind of keys ({found})")
        (kind,) = kinds
        self._own_keys = kind != "run" or self.given_cipher is not None
        if kind == "roster" and self.encryption == "tenseal-bfv":
            raise SettingsError(
                "encryption = 'tenseal-bfv' needs one key for all clients, and these "
                "have identities and a roster; allowed: 'stream'"
            )
        return kind

    def _longer(self) -> dict[str, int]:
        """What is to come of a run that goes on with more rounds than were declared."""
        if self._declared_answers() <= self.agreement.settings["answers"]:
            return {}
        done = self.history[-1].round if self.history else 0
        return {
            "rounds": self.num_rounds,
            "answers-to-come": self.classes
            * (
                self.num_rounds
                - done
                + self._evaluations(self.num_rounds)
                - self._evaluations(done)
            ),
        }

    def _ask_ready(
        self,
        conversation: Conversation,
        timeout: float,
        entries: Mapping[str, int] | None = None,
    ) -> None:
        """Let every client check its key and, if it was just given them, its labels."""
        config = {**self.phase_config(), **(entries or {})}

        def take(answer: Answer) -> None:
            (nonce,) = read_blobs(answer.arrays)
            self.nonces[answer.client] = nonce

        self.ask_everyone(
            conversation, "train.ready", lambda name: config, take, timeout
        )

    @property
    def kind(self) -> str:
        """``horizontal``, ``vertical`` or ``hybrid``."""
        if self.alignment.horizontal:
            return "horizontal"
        return "vertical" if self.alignment.vertical else "hybrid"

    def _ask_alignment(
        self,
        conversation: Conversation,
        timeout: float,
        points: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, list[NDArray[Any]]]:
        context = self.encryption == "tenseal-bfv" and self.given_cipher is None
        self._rest_size = 4 if context else 3
        entries = {**self.phase_config(), "send-context": context}
        return self.align_clients(
            conversation,
            timeout,
            lambda name: {**entries, **points.get(name, {})},
            self.parts,
        )

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Check that these are a key's name, a nonce, and new samples' hashes."""
        if len(rest) != self._rest_size or any(a.dtype != np.uint8 for a in rest):
            raise ValueError("the answer to the alignment is malformed")
        if rest[1].size != NONCE_BYTES:
            raise ValueError("the answer to the alignment has no nonce")
        rest[0].tobytes().decode()  # one that is no text raises a ValueError

    # ---------------------------------------------------------------------- restoring

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Who its samples are in the ciphertexts, with labels and norms encrypted."""
        if self._agreement is None:  # asked for what the alignment is made of
            return {}, {}
        arrays: dict[str, NDArray[Any]] = {
            "agreement": as_array(self.agreement.to_bytes())
        }
        for prefix, alignment in (("", self.alignment), ("new-", self._new)):
            own = {} if alignment is None else alignment.rows.get(client, {})
            found = HeldGroup.pack(HeldGroup(g, own[g]) for g in sorted(own))
            arrays |= {f"{prefix}{key}": array for key, array in found.items()}
        entries: dict[str, Any] = {}
        if self._confirmations:
            names = self.agreement.names
            own_index = names.index(client)
            entries["confirmations"] = [
                self._confirmations[name][own_index] for name in names
            ]
            entries["sealed"] = [
                self._sealed[holders, client]
                for holders in self.agreement.holder_sets
                if (holders, client) in self._sealed
            ]
        if self._labels:
            for g in self.alignment.client_groups(client):
                entries |= self._labels[g].entries(g)
        if self._scales is not None:
            columns = self.alignment.columns[client]
            entries["column-means"] = self._scales.means[columns].tolist()
            entries["column-scales"] = self._scales.scales[columns].tolist()
        if self._totals is not None:
            entries["weight-totals"] = self._totals.tolist()
        if self._steps is not None:
            self._steps.restored(client)
        return arrays, entries

    # ---------------------------------------------------------------------- the rounds

    def sample(self, server_round: int) -> list[str]:
        """The clients that are asked; in turn if there are cyclic groups."""
        if self.cyclic_groups:
            turn = server_round % self.cyclic_groups
            return [
                name
                for i, name in enumerate(self.clients)
                if i % self.cyclic_groups == turn
            ]
        return super().sample(server_round)

    def initial_weights(self) -> FloatArray:
        """The weights that the run was given, (p,) or (C, p); later on the newest."""
        w = self.broadcast.model
        return w.copy() if self.classes == 1 else w.reshape(-1, self.classes).T.copy()

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One iteration, in as many waves as it takes."""
        self.sampled = self.sample(server_round)
        used, metrics = self.steps.iterate(
            conversation, server_round, dict(config), self.sampled, timeout
        )
        # answers that bring nothing closer to a move are as good as none
        moved = self._progress()
        self.used = [name for name in self.clients if name in used and moved]
        if not conversation.traffic.waves:
            self.sampled = []  # all who are here wait for somebody who is away
        primal = metrics.get("primal")
        self._best.note(
            self.steps.primals, self.steps.duals, np.atleast_2d(self.steps.certified)
        )
        if primal is not None:
            # what the stop rule compares and the result has: never that of one round
            metrics["duality-gap"] = self._best.gap
        move = int(metrics.get("moved-groups", 1.0) > 0.0)
        self._moves += move
        self._uncertified = (
            self.steps.lag if primal is not None else self._uncertified + move
        )
        self.broadcast.replace(_flat(np.atleast_2d(self.steps.w)))
        return metrics if self.used else None

    def _progress(self) -> bool:
        """Whether anything has come closer to a move: else the round has failed."""
        before, self._reached = self._reached, self.steps.reached()
        return bool(self._reached != before)

    def _result_point(self) -> FloatArray:
        """The model, in the units of the columns that the clients have."""
        w = self.found_point()
        if self._scales is None:
            return w
        p = len(self._scales.scales)
        return self._scales.raw(w.reshape(p, -1)).reshape(w.shape)

    def found_point(self) -> FloatArray:
        """The certified w of lowest P; the last w where P is not known any more.

        Of standardised columns, where they are.
        """
        outlived = _CERTIFIED_MOVES
        if self.safe:
            outlived = min(outlived, (self._moves - 1) // 2)
        if self._best.w is None or self._uncertified > outlived:
            return self.broadcast.model
        return _flat(self._best.w)

    def converged(self) -> bool:
        """Whether the certificate, the best P against the best D, is tight enough."""
        if not self.tolerance or self._best.w is None:
            return False
        return self._best.gap <= self.tolerance * abs(self._best.primal)

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made.

        A run with a checkpoint can go on, and needs it then.
        """
        if self._own_keys or self.cipher is None or self.checkpoint is not None:
            return
        try:
            entries = {name: {"forget-key": True} for name in self.clients}
            conversation.ask(0, "train.finish", entries, 30.0)
        except Exception as error:
            log(WARNING, "the run's key may not have been removed: %s", error)

    # ---------------------------------------------------------------------- new samples

    def predict(
        self, conversation: Conversation, server_round: int, timeout: float
    ) -> MetricRecord | None:
        """Score new samples whose features are split over the clients.

        Two waves: encrypted inner products with the model that the run would return
        now, and the sums to those who hold the sample.
        The server sees neither a score nor how many are positive.

        Returns
        -------
        MetricRecord or None
            Mean ``loss`` and ``accuracy`` of the clients that have labels for their new
            samples; None if nobody has new samples.
        """
        return score_new_samples(self, conversation, server_round, timeout)

    def _evaluate_clients(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> MetricRecord | None:
        """The new samples' mean loss and accuracy, see :meth:`predict`."""
        return self.predict(conversation, server_round, timeout)

    # ---------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """The alignment, the ciphertexts to give back, and the steps' own state."""
        assert self.cipher is not None
        arrays: dict[str, NDArray[Any]] = {
            "context": as_array(self.cipher.evaluation_bytes()),
            "fingerprint": np.array(self._fingerprint),
            "own-keys": np.array(self._own_keys),
            "agreement": as_array(self.agreement.to_bytes()),
            "moves": np.array(self._moves),
            **_scales_state(self._scales),
            **({} if self._totals is None else {"weight-totals": self._totals}),
            "uncertified": np.array(self._uncertified),
        }
        arrays |= self._best.state()
        for key, array in self.alignment.state().items():
            arrays[f"alignment/{key}"] = array
        if self._new is not None:
            for key, array in self._new.state().items():
                arrays[f"new/{key}"] = array
        for i, name in enumerate(self.agreement.names):
            macs = b"".join(self._confirmations[name])
            arrays[f"confirmations/{i}"] = as_array(macs)
        for i, holders in enumerate(self.agreement.holder_sets):
            for j, name in enumerate(holders):
                if (holders, name) in self._sealed:
                    sealed = self._sealed[holders, name]
                    arrays[f"sealed/{i}/{j}"] = as_array(sealed)
        for g, labels in enumerate(self._labels):
            for key, array in labels.state().items():
                arrays[f"labels/{g}/{key}"] = array
        for key, array in self.steps.state().items():
            arrays[f"steps/{key}"] = array
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.cipher = load_evaluation(state["context"].tobytes())
        self._fingerprint = str(state["fingerprint"])
        self._own_keys = bool(state["own-keys"])
        self._agreement = Agreement.from_bytes(state["agreement"].tobytes())
        for i, name in enumerate(self.agreement.names):
            macs = state[f"confirmations/{i}"].tobytes()
            parts = range(0, len(macs), MAC_BYTES)
            self._confirmations[name] = [macs[j : j + MAC_BYTES] for j in parts]
        for key, array in state.items():
            if key.startswith("sealed/"):
                _, number, j = key.split("/")
                holders = self.agreement.holder_sets[int(number)]
                self._sealed[holders, holders[int(j)]] = array.tobytes()
        if "new/sizes" in state:
            self._new = Alignment.from_state(_under(state, "new/"))
        given = self.given_cipher
        if given is not None and given.fingerprint != self._fingerprint:
            raise SettingsError(
                f"the context has fingerprint {given.fingerprint}, but the run to go "
                f"on with had {self._fingerprint}"
            )
        self._best.load_state(state)
        self._uncertified = int(state["uncertified"])
        self._moves = int(state["moves"])
        self._alignment = Alignment.from_state(_under(state, "alignment/"))
        if "columns/means" in state:
            self._scales = ColumnScales(
                state["columns/means"],
                state["columns/scales"],
                int(state["columns/constant"]),
                float(state["columns/value"]),
            )
        self._totals = state.get("weight-totals")
        self._labels = [
            Labels.from_state(state, f"labels/{g}/", self.cipher.blocks(group.size))
            for g, group in enumerate(self.alignment.groups)
        ]
        self._steps = self._make_steps()
        self._steps.load_state(_under(state, "steps/"))


def _flat(w: FloatArray) -> FloatArray:
    """Weights of each class, (C, p), as the model's array (p,) or (p, C) in one row."""
    return w.T.reshape(-1)


def _scales_state(scales: ColumnScales | None) -> dict[str, NDArray[Any]]:
    found = {} if scales is None else vars(scales)
    return {f"columns/{key}": np.asarray(value) for key, value in found.items()}


def _under(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {
        key.removeprefix(prefix): array
        for key, array in state.items()
        if key.startswith(prefix)
    }
