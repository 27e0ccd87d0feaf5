"""HyFDCA: hybrid federated dual coordinate ascent under homomorphic encryption."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from math import inf
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Agreement, Alignment, HeldGroup
from fedtrellis.dual.bundle import Mixture
from fedtrellis.dual.weights import ColumnScales
from fedtrellis.encryption import load_evaluation
from fedtrellis.encryption.block_sum import Introduction
from fedtrellis.server.conversation import Answer, Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from ..hybrid import ROWS, Blobs, freeze, thaw
from .mixtures import MixtureSteps
from .preparation import (
    Labels,
    Sealed,
    align_new_samples,
    ask_agreement,
    ask_labels,
    ask_sums,
    key_kind,
    match_ids,
    settle_cipher,
)
from .settings import HyFDCASettings
from .steps import Backup, UpdateSteps, add_shares, read_blobs

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
                     v_k = (1/λN) Σ_i α_i x_{k,i} of the proposal, hidden in a sum
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

    What the server sees: w, Σ_k v_k (each v_k without ``secure_sum``), who shares a
    slot with whom, sums of losses, and ciphertexts; no α, no inner product, no label,
    no id. What a client sees: w at its features, and z_i, α_i and y_i of its samples.
    Of those who share a common key, nobody may collude with the server.

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
    _state_settings = (
        *("step", "parts", "secure_sum"),
        *("regularization", "l1_ratio", "free_feature"),
    )
    _measures = ("primal", "dual", "duality-gap")
    _beside_f = ("standardize",)
    _kept = (
        *("_alignment", "_new", "_fingerprint", "_own_keys", "_sealed", "_labels"),
        *("_scales", "_totals", "_moves", "_uncertified"),
        *("_primals", "_duals", "_certified"),
    )
    _kinds = (*HyFDCASettings._kinds, Backup, ColumnScales, Mixture)
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

        SettingsError: there are initial weights, and they cannot be used.
        """
        super().setup(point, layout)
        if point.any() and (not self.safe or self.standardize):
            key = "standardize = True" if self.safe else f"step = {self.step!r}"
            raise SettingsError(
                f"{key} starts at weights of 0, and the initial weights are others; "
                "allowed: zeros"
            )
        self._labels: list[Labels] = []
        self._sealed: Sealed = {}  # what clients sent each other through the server
        self._scales: ColumnScales | None = None  # of raw columns
        self._totals: FloatArray | None = None  # what weights are normalised by
        self._new: Alignment | None = None  # of the samples that are to be scored
        # the iteration, once the clients are aligned
        self.steps: MixtureSteps | UpdateSteps
        self._aligned = False
        # lowest P and highest D so far, class by class, and the w of the former
        self._primals, self._duals = np.full((2, self.classes), [[inf], [-inf]])
        self._certified: FloatArray | None = None
        self._moves = 0
        self._uncertified = 0  # moves since the w that P was last known of
        self._reached: Any = None

    def _make_steps(self) -> MixtureSteps | UpdateSteps:
        if not self.safe:
            return UpdateSteps(self)
        # the weights that the run was given, (p,) or (C, p)
        w, C = self.broadcast.model, self.classes
        return MixtureSteps(self, w.reshape(-1, C).T.copy() if C > 1 else w.copy())

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Match samples and features, agree, and share labels and norms encrypted."""
        if self._aligned:
            # a run that goes on, if its key is still there
            self._ask_ready()
            return
        kind = key_kind(self)
        self._own_keys = kind != "run" or self.given_cipher is not None
        roster = kind == "roster"
        points = match_ids(self) if roster else {}
        context = self.encryption == "tenseal-bfv" and self.given_cipher is None
        self._rest_size = 4 if context else 3
        config = {**self.phase_config(), "send-context": context}
        rest = self.align_clients(
            lambda name: {**config, **points.get(name, {})}, self.parts
        )
        self.cipher = settle_cipher(self, kind, rest)
        if not roster:
            self._fingerprint = next(iter(rest.values()))[0].tobytes().decode()
        if self.encryption == "none":
            log(WARNING, "NOTHING IS ENCRYPTED: encryption = 'none' is for debugging")
        self._new = align_new_samples(self.alignment, rest)
        members = [Introduction.of(name, rest[name][:2]) for name in self.clients]
        settings = self.pinned_settings()
        new = [] if self._new is None else self._new.groups
        self._agreement = Agreement.of(settings, members, self.alignment, new)
        self._sealed = ask_agreement(self)
        weighs = "weighted" in settings or "class-weight" in settings
        if self.standardize and not weighs:
            self._scales, _ = ask_sums(self)
        self._labels = ask_labels(self)
        if weighs:  # with labels known, as weights of classes are of them
            self._scales, self._totals = ask_sums(self)
        self._ask_ready()
        for name in self.clients:
            conversation.clients[name].ready = True
        found = self.alignment
        sizes = found.num_samples, len(found.groups), len(found.feature_names)
        log(INFO, "%d samples in %d groups, %d features", *sizes)
        self.steps, self._aligned = self._make_steps(), True

    def _ask_ready(self) -> None:
        """Let every client check its key and, if it was just given them, its labels."""
        self.ask_everyone("train.ready", self.phase_config(), lambda answer: None)

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Check that these are a key's name, a fresh key, and new samples' hashes."""
        if len(rest) != self._rest_size or any(a.dtype != np.uint8 for a in rest):
            raise ValueError("the answer to the alignment is malformed")
        Introduction.of("", rest[:2])

    # ---------------------------------------------------------------------- restoring

    @property
    def _lost(self) -> dict[str, str]:
        then = "another holder gives it, or its group a backup"
        return {"points" if self.safe else "alpha": then}

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Who its samples are in the ciphertexts, with labels and norms encrypted."""
        if self._agreement is None:  # asked for what the alignment is made of
            return {}, {}
        data = self._agreement.to_bytes()
        arrays: dict[str, NDArray[Any]] = {"agreement": np.frombuffer(data, np.uint8)}
        for prefix, alignment in (("", self.alignment), ("new-", self._new)):
            own = {} if alignment is None else alignment.rows.get(client, {})
            found = HeldGroup.pack(own).items()
            arrays |= {f"{prefix}{key}": array for key, array in found}
        sets, boxes = self._agreement.holder_sets, self._sealed
        sealed = [boxes[own, client] for own in sets if (own, client) in boxes]
        entries: dict[str, Any] = {"sealed": sealed} if sealed else {}
        if self._labels:
            for g in self.alignment.client_groups(client):
                own_labels = self._labels[g].items()
                entries |= {f"{what}/{g}": blobs for what, blobs in own_labels}
        if self._scales is not None:
            columns = self.alignment.columns[client]
            entries["column-means"] = self._scales.means[columns].tolist()
            entries["column-scales"] = self._scales.scales[columns].tolist()
        if self._totals is not None:
            entries["weight-totals"] = self._totals.tolist()
        if self._aligned:
            self.steps.restored(client)
        return arrays, entries

    # ---------------------------------------------------------------------- the rounds

    def sample(self, server_round: int) -> list[str]:
        """The clients that are asked; in turn if there are cyclic groups."""
        if self.cyclic_groups:
            turn = server_round % self.cyclic_groups
            return self.clients[turn :: self.cyclic_groups]
        return super().sample(server_round)

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One iteration, in as many waves as it takes."""
        self.sampled, self.at_round = self.sample(server_round), server_round
        steps = self.steps
        steps.extra = {**config, **self.phase_config()}
        steps.primals = steps.duals = None
        used, metrics = steps.iterate(self.sampled)
        # answers that bring nothing closer to a move are as good as none
        before, self._reached = self._reached, steps.reached()
        moved = self._reached != before
        self.used = [name for name in self.clients if name in used and moved]
        if not conversation.traffic.waves:
            self.sampled = []  # all who are here wait for somebody who is away
        # what the iteration certifies: P of each class's w, and D
        if steps.duals is not None:
            self._duals = np.maximum(self._duals, steps.duals)
        if steps.primals is not None:
            w = np.atleast_2d(steps.certified)
            known = w if self._certified is None else self._certified
            better = steps.primals < self._primals
            self._certified = np.where(better[:, None], w, known)
            self._primals = np.minimum(steps.primals, self._primals)
        move = int(metrics.get("moved-groups", 1.0) > 0.0)
        self._moves += move
        self._uncertified += move
        if "primal" in metrics:
            # what the stop rule compares and the result has: never that of one round
            metrics["duality-gap"] = self._gap
            self._uncertified = steps.lag
        self.broadcast.replace(_flat(steps.w))
        return metrics if self.used else None

    @property
    def _gap(self) -> float:
        """Σ over the classes of the lowest P less the highest D."""
        return float((self._primals - self._duals).sum())

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
        stale = self._uncertified > outlived and not self.converged()
        if self._certified is None or stale:
            return self.broadcast.model
        return _flat(self._certified)

    def converged(self) -> bool:
        """Whether the certificate, the best P against the best D, is tight enough."""
        if not self.tolerance or self.noisy or self._certified is None:
            return False  # with noise D is not what it is taken for
        return self._gap <= self.tolerance * abs(float(self._primals.sum()))

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made.

        A run with a checkpoint can go on, and needs it then.
        """
        if self._own_keys or self._agreement is None or self.checkpoint is not None:
            return
        conversation.ask_in_the_end("train.finish", {"forget-key": True})

    # ---------------------------------------------------------------------- new samples

    def _evaluate_clients(self, server_round: int) -> dict[str, float]:
        """Score new samples whose features are split over the clients.

        Two waves: encrypted inner products with the model that the run would return
        now, and the sums. The server sees neither a score nor how many are positive,
        but mean ``loss`` and ``accuracy`` of the clients that have labels.
        """
        new, C = self._new, self.classes
        if new is None:
            return {}
        w = self.found_point().reshape(-1, C).T
        sent = {**self.phase_config(), "prediction": server_round}
        holders = [name for name in self.clients if new.rows.get(name)]
        shares: dict[int, dict[str, Blobs]] = {}

        def take_products(answer: Answer) -> None:
            own = new.client_groups(answer.client)
            counts = [self.cipher.blocks(C * new.groups[g].size) for g in own]
            for g, part in zip(own, read_blobs(answer.arrays, counts), strict=True):
                shares.setdefault(g, {})[answer.client] = part

        def products(name: str) -> dict[str, Any]:
            return {**sent, ROWS: self.own(name, w)}

        self.at_round = server_round
        self.ask("train.new_products", products, take_products, holders)
        scores: dict[int, Blobs] = {}
        for g, group in enumerate(new.groups):
            if set(shares.get(g, {})) == set(group.holders):
                scores[g] = add_shares(self, shares[g])[0] or []
        to_score: dict[str, dict[str, Any]] = {}
        for name in holders:
            own = {g: scores[g] for g in new.client_groups(name) if scores.get(g)}
            if own:
                entries = {f"scores/{g}": blobs for g, blobs in own.items()}
                to_score[name] = {**sent, **entries}
        asked = server_round, "evaluate", to_score, self._loop.timeout
        answers = self.conversation.ask(*asked)
        return self._mean_evaluation(answers)

    # ---------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, NDArray[Any]]:
        """The alignment, the ciphertexts to give back, and the steps' own state."""
        return freeze(
            {
                **{name: getattr(self, name) for name in self._kept},
                "context": self.cipher.evaluation_bytes(),
                "agreement": self.agreement.to_bytes(),
                "steps": self.steps,
            }
        )

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        tree = thaw(state, self._kinds)
        self.cipher = load_evaluation(tree.pop("context"))
        self._agreement = Agreement.from_bytes(tree.pop("agreement"))
        steps, given = tree.pop("steps"), self.given_cipher
        vars(self).update(tree)
        was, now = self.agreement.settings, self.pinned_settings()
        for name in sorted(was.keys() | now.keys()):
            if (old := was.get(name)) != (own := now.get(name)):
                raise SettingsError(f"{name} was {old!r}, this run's is {own!r}")
        if given is not None and given.fingerprint != self._fingerprint:
            raise SettingsError(
                f"the context has fingerprint {given.fingerprint}, but the run to go "
                f"on with had {self._fingerprint}"
            )
        self.steps, self._aligned = self._make_steps(), True
        self.steps.load_state(steps)


def _flat(w: FloatArray) -> FloatArray:
    """Weights of each class, (p,) or (C, p), as the model's array in one row."""
    return np.atleast_2d(w).T.reshape(-1)
