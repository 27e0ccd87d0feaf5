"""HyFDCA: hybrid federated dual coordinate ascent under homomorphic encryption."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from math import inf
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment
from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.encryption import Cipher, load_evaluation
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from .mixtures import MixtureSteps
from .new_samples import score_new_samples
from .preparation import Labels, ask_labels, settle_cipher
from .settings import HyFDCASettings
from .steps import Steps, as_array
from .updates import UpdateSteps

__all__ = ["HyFDCA"]

# How many rounds without a certificate the best certified model outlives.
_CERTIFIED_ROUNDS = 50


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

    Notes
    -----
    The matching client is ``HyFDCAClient(context, features, feature_names,
    sample_ids, labels, loss, key)``. Metrics of a round: ``primal`` P(w) and ``dual``
    D(α) at the point that the round started from, ``duality-gap``, and ``dual-bound``
    after it. The result is the certified w with the lowest P of the run, or the last
    one where P was not to be had for 50 rounds.

    What the server sees: w, each client's v_k (or only their sum, ``secure_sum``), who
    shares a slot with whom, sums of losses, and ciphertexts; no α, no inner product, no
    label, no id. What a client sees: w at its features, and z_i, α_i and y_i of its
    samples. Clients share one key, and must not collude with the server.
    """

    name = "hyfdca"
    about = "encrypted dual ascent: samples and features split over nodes"

    predicts = True
    state_settings = ("step", "parts", "secure_sum")
    measures = ("primal", "dual", "duality-gap")
    # the strategy compares the key itself
    free_to_change = ("context",)

    def warnings(self) -> list[str]:
        """Say where nothing is encrypted."""
        if self.encryption == "none":
            return ["NOTHING WAS ENCRYPTED: encryption = 'none' is for debugging"]
        return []

    # ------------------------------------------------------------------ before round 1

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Start at α = 0 and w = 0."""
        super().setup(point, layout)
        if point.any():
            log(WARNING, "HyFDCA starts at w = 0; the initial weights are not used")
        self.broadcast.replace(np.zeros_like(point))
        self.cipher: Cipher | None = None
        self._labels: list[Labels] = []
        self._steps: Steps | None = None
        self._best: tuple[float, FloatArray] | None = None
        self._best_dual = -inf
        self._uncertified = 0  # rounds since P was last known

    @property
    def steps(self) -> Steps:
        """The iteration, once the clients are aligned."""
        assert self._steps is not None
        return self._steps

    def _make_steps(self) -> Steps:
        return MixtureSteps(self) if self.safe else UpdateSteps(self)

    def phase_config(self) -> dict[str, Any]:
        """What clients are told in every phase."""
        config = {
            "encryption": self.encryption,
            "own-key": self._given_cipher is not None,
            "loss": self.loss,
            "smoothing": self.smoothing,
            "regularization": self.regularization,
            "local-fraction": self.local_fraction,
            "num-clients": self.num_clients,
        }
        if self.cipher is not None:
            config["key"] = self.cipher.fingerprint
        if self._alignment is not None:
            config["num-samples-all"] = self.alignment.num_samples
        return config

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Match samples and features, and share labels and norms under encryption."""
        if self._steps is not None:
            # a run that goes on, if its key is still there
            self._ask_ready(conversation, timeout)
            return
        rest = self._ask_alignment(conversation, timeout)
        self.cipher = settle_cipher(rest, self._given_cipher)
        if self.encryption == "none" or self.cipher.name == "none":
            log(WARNING, "NOTHING IS ENCRYPTED: encryption = 'none' is for debugging")
        self._labels = ask_labels(self, conversation, self.cipher, timeout)
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

    def _ask_ready(self, conversation: Conversation, timeout: float) -> None:
        """Let every client check its key and, if it was just given them, its labels."""
        self.ask_everyone(
            conversation,
            "train.ready",
            lambda name: self.phase_config(),
            lambda answer: None,
            timeout,
        )

    @property
    def kind(self) -> str:
        """``horizontal``, ``vertical`` or ``hybrid``."""
        if self.alignment.horizontal:
            return "horizontal"
        return "vertical" if self.alignment.vertical else "hybrid"

    def _ask_alignment(
        self, conversation: Conversation, timeout: float
    ) -> dict[str, list[NDArray[Any]]]:
        entries = {**self.phase_config(), "send-context": self._given_cipher is None}
        return self.align_clients(conversation, timeout, entries, self.parts)

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Check that it is a fingerprint, and where it was asked for a context."""
        expected = 1 if self._given_cipher is not None else 2
        if len(rest) != expected or any(a.dtype != np.uint8 for a in rest):
            raise ValueError("the answer to the alignment is malformed")
        rest[0].tobytes().decode()  # one that is no text raises a ValueError

    # ---------------------------------------------------------------------- restoring

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Who its samples are in the ciphertexts, with labels and norms encrypted."""
        if self._alignment is None:  # asked for what the alignment is made of
            return {}, {}
        groups = self.alignment.client_groups(client)
        own = self.alignment.rows[client]
        arrays, entries = HeldGroup.pack(
            HeldGroup(g, own[g], len(self.alignment.groups[g].holders)) for g in groups
        )
        if self._labels:
            for g in groups:
                labels = self._labels[g]
                entries[f"labels/{g}"] = labels.sums
                entries[f"counts/{g}"] = labels.counts
                entries[f"norms/{g}"] = labels.norms
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

    def run_round(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> dict[str, float] | None:
        """One iteration, in as many waves as it takes."""
        self._sampled = self.sample(server_round)
        used, metrics = self.steps.iterate(
            conversation, server_round, dict(config), self._sampled, timeout
        )
        self._used = [name for name in self.clients if name in used]
        if not conversation.traffic.waves:
            self._sampled = []  # all who are here wait for somebody who is away
        primal, dual = metrics.get("primal"), metrics.get("dual")
        if dual is not None:
            self._best_dual = max(self._best_dual, dual)
        if primal is not None and (self._best is None or primal < self._best[0]):
            self._best = (primal, self.steps.certified.copy())
        self._uncertified = 0 if primal is not None else self._uncertified + 1
        self.broadcast.replace(self.steps.w)
        return metrics if self._used else None

    def result_point(self) -> FloatArray:
        """The certified w of lowest P; the last w where P is not known any more."""
        if self._best is None or self._uncertified > _CERTIFIED_ROUNDS:
            return self.broadcast.model
        return self._best[1]

    def converged(self) -> bool:
        """Whether the certificate, the best P against the best D, is tight enough."""
        if not self.tolerance or self._best is None:
            return False
        primal = self._best[0]
        return primal - self._best_dual <= self.tolerance * abs(primal)

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made.

        A run with a checkpoint can go on, and needs it then.
        """
        made_by_clients = self._given_cipher is None and self.cipher is not None
        if not made_by_clients or self.checkpoint is not None:
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

        Three waves: hashes of the new samples' ids, encrypted inner products with the
        model that the run would return now, and the sums to those who hold the sample.
        The server sees neither a score nor how many are positive.

        Returns
        -------
        MetricRecord or None
            Mean ``loss`` and ``accuracy`` of the clients that have labels for their new
            samples; None if nobody has new samples.
        """
        return score_new_samples(self, conversation, server_round, timeout)

    def evaluate_clients(
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
            "best-dual": np.array(self._best_dual),
            "uncertified": np.array(self._uncertified),
        }
        if self._best is not None:
            arrays["best-primal"] = np.array(self._best[0])
            arrays["best-w"] = self._best[1]
        for key, array in self.alignment.state().items():
            arrays[f"alignment/{key}"] = array
        for g, labels in enumerate(self._labels):
            for key, array in labels.state().items():
                arrays[f"labels/{g}/{key}"] = array
        for key, array in self.steps.state().items():
            arrays[f"steps/{key}"] = array
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.cipher = load_evaluation(state["context"].tobytes())
        given = self._given_cipher
        if given is not None and given.fingerprint != self.cipher.fingerprint:
            raise SettingsError(
                f"the context has fingerprint {given.fingerprint}, but the run to go "
                f"on with had {self.cipher.fingerprint}"
            )
        self._best_dual = float(state["best-dual"])
        if "best-w" in state:
            self._best = (float(state["best-primal"]), state["best-w"])
        self._uncertified = int(state["uncertified"])
        self._alignment = Alignment.from_state(_under(state, "alignment/"))
        self._labels = [
            Labels.from_state(state, f"labels/{g}/", self.cipher.blocks(group.size))
            for g, group in enumerate(self.alignment.groups)
        ]
        self._steps = self._make_steps()
        self._steps.load_state(_under(state, "steps/"))


def _under(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {
        key.removeprefix(prefix): array
        for key, array in state.items()
        if key.startswith(prefix)
    }
