"""HyFDCA: hybrid federated dual coordinate ascent under homomorphic encryption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedtrellis.dual.alignment import Alignment, align
from fedtrellis.encryption import Cipher, load_evaluation
from fedtrellis.objectives.losses import LOSSES
from fedtrellis.server.method import Answer
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.flower_internals import log

from ._hyfdca_bundle import BundleSteps
from ._hyfdca_paper import PaperSteps
from ._hyfdca_steps import Steps, as_array, read_blobs, split_blobs
from .hybrid import ROWS, SETUP_ATTEMPTS, Blobs, HybridStrategy, add_shares

__all__ = ["ENCRYPTIONS", "SLOTS", "STEPS", "HyFDCA"]

STEPS = ("bundle", "line-search", "practical", "theoretical")
ENCRYPTIONS = ("tenseal-bfv", "none")
SLOTS = ("all", "chosen")

# How many rounds without a certificate the best certified model outlives.
_CERTIFIED_ROUNDS = 50


@dataclass
class Labels:
    """A group's labels, how many said them, and ‖x_i‖², as sums of ciphertexts."""

    sums: Blobs = field(default_factory=list)
    counts: Blobs = field(default_factory=list)
    norms: Blobs = field(default_factory=list)


class HyFDCA(HybridStrategy):
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

    loss: str = given(
        "of a score", default="hinge", kw_only=False, choices=tuple(LOSSES)
    )
    regularization: float = given(
        "weight of (1/2)‖w‖²", default=1e-3, kw_only=False, symbol="λ", above=0.0
    )
    smoothing: float = given(
        "of the smoothed hinge loss", default=1.0, symbol="g", above=0.0
    )
    step: str = setting(
        "bundle",
        "how proposals become a step",
        note="``bundle``: clients propose u_i(w), −u_i ∈ ∂l_i, and the server mixes "
        "all that it remembers; ``line-search``: they propose each coordinate's own "
        "optimum, and the server takes the best step towards it. With both D never "
        "falls, and no sample moves before all its holders have taken part. "
        "``practical`` and ``theoretical`` are the paper's: three round trips, "
        "encrypted dual updates that the server adds up, and stale values of clients "
        "that are away. With everybody there ``theoretical`` never lowers D if "
        "‖x_i‖ ≤ 1 for all samples; with longer ones it may",
        choices=STEPS,
        formerly="dual-step",
    )
    local_fraction: float = setting(
        1.0,
        "fraction of a client's samples that move in an iteration, drawn anew each "
        "time",
        note="with the first two steps all holders of a sample draw alike, from their "
        "key",
        symbol="H/N_k",
        above=0.0,
        maximum=1.0,
    )
    memory: int = setting(20, "proposals of a group that a bundle remembers", minimum=3)
    slots: str = setting(
        "all",
        "inner products that are encrypted: all samples', which hides how many were "
        "drawn and certifies P, or the drawn ones' only",
        choices=SLOTS,
    )
    local_passes: int = setting(
        0,
        "passes of stochastic dual coordinate ascent over a client's own samples, for "
        "groups that nobody shares (CoCoA+); 0: none",
        minimum=0,
    )
    parts: int = setting(
        1,
        "groups that the samples of one set of holders are cut into",
        note="more converge faster, cost more uploads (parts · p_k numbers a client), "
        "and let the server see the clients' contributions to w in finer pieces",
        minimum=1,
    )
    secure_sum: bool = setting(
        False,
        "whether clients encrypt v_k too, so that the server sees only sums over all "
        "clients, at one more round trip",
        note="all groups then move together, by complete participation",
    )
    cyclic_groups: int = setting(
        0,
        "C ≥ 2: only every C-th client is asked in turn, γ_t = 1/t (the paper's "
        "vertical case, theoretical step only); 0: not",
        minimum=0,
    )
    tolerance: float = setting(
        1e-6,
        "stop when (P − D)/P is at most this; 0: never",
        minimum=0.0,
        formerly="gap-tolerance",
    )
    encryption: str = setting(
        "tenseal-bfv",
        "whose key the clients of a simulation make; none is for debugging",
        choices=ENCRYPTIONS,
    )
    context: str | Path | bytes | None = setting(
        None,
        "file with the evaluation context that belongs to the clients' key file "
        "(fedtrellis-keys); auto: the clients of one machine make a key of their own "
        "for the run, and send its context",
        note="Python takes its bytes, too",
        shown=False,
        formerly="context-file",
    )
    backup_every: int = setting(
        10,
        "iterations after which a client sends enc(α) for safekeeping, to be given "
        "back to those that lose their state",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        step, secure_sum = self.step, self.secure_sum
        if self.cyclic_groups and (self.cyclic_groups < 2 or step != "theoretical"):
            raise SettingsError(
                f"cyclic_groups = {self.cyclic_groups} must be 0, or at least 2 with "
                "step 'theoretical'"
            )
        self.safe = step in ("bundle", "line-search")
        if secure_sum and not self.safe:
            raise SettingsError(
                f"secure_sum = True is for steps bundle and line-search, not {step!r}"
            )
        if secure_sum and self.local_passes:
            raise SettingsError(
                f"local_passes = {self.local_passes} must be 0 with secure_sum: all "
                "groups move together"
            )
        # refused now, before any client has sent anything, if it holds a secret key
        self._given_cipher = None
        if self.context is not None:
            self._given_cipher = load_evaluation(_source(self.context))

    def warnings(self) -> list[str]:
        """Say where nothing is encrypted."""
        if self.encryption == "none":
            return ["NOTHING WAS ENCRYPTED: encryption = 'none' is for debugging"]
        return []

    @property
    def remembered(self) -> int:
        """Proposals of a group that count: a line search is between two."""
        return self.memory if self.step == "bundle" else 2

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
        return BundleSteps(self) if self.safe else PaperSteps(self)

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

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Match samples and features, and share labels and norms under encryption."""
        if self._steps is not None:
            # a run that goes on, if its key is still there
            self._ask_ready(grid, timeout)
            return
        contexts = self._ask_alignment(grid, timeout)
        self.cipher = self._settle_cipher(contexts)
        if self.encryption == "none" or self.cipher.name == "none":
            log(WARNING, "NOTHING IS ENCRYPTED: encryption = 'none' is for debugging")
        self._ask_labels(grid, timeout)
        self._ask_ready(grid, timeout)
        for name in self.clients:
            self._registry[name].ready = True
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

    def _ask_ready(self, grid: Grid, timeout: float) -> None:
        """Let every client check its key and, if it was just given them, its labels."""
        self.ask_everyone(
            grid,
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

    def _ask_alignment(self, grid: Grid, timeout: float) -> dict[str, Any]:
        numbers = {**self.phase_config(), "send-context": self._given_cipher is None}
        return self.align_clients(grid, timeout, numbers, self.parts)

    def check_rest(self, rest: list[NDArray[Any]]) -> None:
        """Check that it is a fingerprint, and where it was asked for a context."""
        expected = 1 if self._given_cipher is not None else 2
        if len(rest) != expected or any(a.dtype != np.uint8 for a in rest):
            raise ValueError("the answer to the alignment is malformed")
        rest[0].tobytes().decode()  # one that is no text raises a ValueError

    def _settle_cipher(self, rest: Mapping[str, list[NDArray[Any]]]) -> Cipher:
        """The evaluation context, the same for all, and never a secret key."""
        prints: dict[str, list[str]] = {}
        cipher = self._given_cipher
        for name in self.clients:
            fingerprint = rest[name][0].tobytes().decode()
            prints.setdefault(fingerprint, []).append(name)
            if cipher is None:
                # raises if a client sent its key
                cipher = load_evaluation(rest[name][1].tobytes())
        assert cipher is not None
        if len(prints) > 1 or cipher.fingerprint not in prints:
            found = "; ".join(
                f"client {', '.join(names)}: {key}" for key, names in prints.items()
            )
            raise SettingsError(
                "the clients and the server do not have one key between them "
                f"(server: {cipher.fingerprint}; {found}); make a pair with "
                "fedtrellis-keys, and give every node the same key-file"
            )
        return cipher

    def _ask_labels(self, grid: Grid, timeout: float) -> None:
        alignment, cipher = self.alignment, self.cipher
        assert cipher is not None
        overlaps = alignment.overlaps()
        shares: dict[int, dict[str, list[Blobs]]] = {}
        tags: dict[str, list[NDArray[np.uint64]]] = {}

        def numbers(name: str) -> dict[str, Any]:
            config = self.phase_config()
            if name in overlaps:
                config["tag-groups"] = overlaps[name]
            return config

        def take(answer: Answer) -> None:
            own = alignment.client_groups(answer.client)
            counts = [cipher.blocks(alignment.groups[g].size) for g in own]
            tagged = len(overlaps.get(answer.client, []))
            lengths = [*(count for count in counts for _ in range(3)), *[1] * tagged]
            parts = split_blobs(read_blobs(answer.arrays), lengths)
            for i, g in enumerate(own):
                shares.setdefault(g, {})[answer.client] = parts[3 * i : 3 * i + 3]
            tags[answer.client] = [
                np.frombuffer(blob, dtype="<u8") for (blob,) in parts[3 * len(own) :]
            ]

        waiting: list[str] = list(self.clients)
        for _ in range(SETUP_ATTEMPTS):
            self.ask_everyone(grid, "train.labels", numbers, take, timeout, waiting)
            self._labels, waiting = self._add_labels(cipher, shares)
            if not waiting:
                break
        else:
            raise TimeoutError(
                f"client {', '.join(waiting)} sent no ciphertexts that can be added "
                "before round 1 (train.labels)"
            )
        self._check_entries(overlaps, tags)

    def _add_labels(
        self, cipher: Cipher, shares: Mapping[int, Mapping[str, list[Blobs]]]
    ) -> tuple[list[Labels], list[str]]:
        """Each group's sums, and the clients whose ciphertexts arrived spoilt."""
        labels, again = [], set()
        for g, group in enumerate(self.alignment.groups):
            sums = []
            for i in range(3):
                own = {name: shares[g][name][i] for name in group.holders}
                added, spoilt = add_shares(cipher, own)
                for name, why in spoilt.items():
                    self._traffic.reject(name, why)
                again |= set(spoilt)
                sums.append(added or [])
            labels.append(Labels(*sums))
        return labels, sorted(again)

    def _check_entries(
        self, overlaps: dict[str, list[int]], tags: dict[str, list[NDArray[Any]]]
    ) -> None:
        """No sample's value of a feature may count twice."""
        seen: dict[int, list[tuple[str, NDArray[Any]]]] = {}
        for name, groups in overlaps.items():
            for g, own in zip(groups, tags[name], strict=True):
                for other, theirs in seen.get(g, []):
                    both = np.intersect1d(own, theirs)
                    if len(both):
                        raise SettingsError(
                            f"clients {other} and {name} both hold {len(both)} of the "
                            "same entries (a sample's value of a feature); each must "
                            "be held by one client only"
                        )
                seen.setdefault(g, []).append((name, own))

    # ---------------------------------------------------------------------- restoring

    def restore(self, client: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Who its samples are in the ciphertexts, with labels and norms encrypted."""
        if self._alignment is None:  # asked for what the alignment is made of
            return {}, {}
        own = self.alignment.rows[client]
        groups = sorted(own)
        arrays: dict[str, NDArray[Any]] = {
            "rows": np.concatenate([own[g] for g in groups]),
            "groups": np.array(groups),
            "sizes": np.array([len(own[g]) for g in groups]),
        }
        entries: dict[str, Any] = {
            "holders": [len(self.alignment.groups[g].holders) for g in groups],
        }
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
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> dict[str, float] | None:
        """One iteration, in as many waves as it takes."""
        self._sampled = self.sample(server_round)
        used, metrics = self.steps.iterate(
            grid, server_round, dict(config), self._sampled, timeout
        )
        self._used = [name for name in self.clients if name in used]
        if not self._traffic.waves:
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

    def finish(self, grid: Grid) -> None:
        """Let the clients of a simulation remove the key that they made.

        A run with a checkpoint can go on, and needs it then.
        """
        made_by_clients = self._given_cipher is None and self.cipher is not None
        if not made_by_clients or self.checkpoint is not None:
            return
        try:
            numbers = {name: {"forget-key": True} for name in self.clients}
            self._ask(grid, 0, "train.finish", numbers, 30.0)
        except Exception as error:
            log(WARNING, "the run's key may not have been removed: %s", error)

    # ---------------------------------------------------------------------- new samples

    def predict(
        self, grid: Grid, server_round: int, timeout: float
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
        cipher = self.cipher
        assert cipher is not None
        hashes: dict[str, NDArray[np.uint8]] = {}
        config = {**self.phase_config(), "prediction": server_round}

        def take_hashes(answer: Answer) -> None:
            (own,) = answer.arrays
            if own.ndim != 2 or own.dtype != np.uint8:
                raise ValueError("the hashes of the new samples are malformed")
            if len(own):
                hashes[answer.client] = own

        self.ask(
            grid,
            server_round,
            "train.new_samples",
            lambda name: config,
            self.clients,
            take_hashes,
            timeout,
        )
        if not hashes:
            return None
        names = self.alignment.feature_names
        features = {
            k: [names[i] for i in self.alignment.columns[k]]
            for k in self.clients
            if k in hashes
        }
        in_order = {name: hashes[name] for name in features}
        try:
            new = align(in_order, features)
        except ValueError as error:
            log(WARNING, "new samples cannot be scored: %s", error)
            return None
        shares: dict[int, dict[str, Blobs]] = {}
        w = self.result_point()

        def request(name: str) -> dict[str, Any]:
            own = new.rows[name]
            entries = {f"rows/{g}": own[g].tolist() for g in sorted(own)}
            holders = [len(new.groups[g].holders) for g in sorted(own)]
            return {**config, "groups": sorted(own), "holders": holders, **entries}

        def take_products(answer: Answer) -> None:
            own = sorted(new.rows[answer.client])
            counts = [cipher.blocks(new.groups[g].size) for g in own]
            parts = split_blobs(read_blobs(answer.arrays), counts)
            for g, part in zip(own, parts, strict=True):
                shares.setdefault(g, {})[answer.client] = part

        self.ask(
            grid,
            server_round,
            "train.new_products",
            lambda name: {**request(name), ROWS: self.own(name, w)},
            list(features),
            take_products,
            timeout,
        )
        scores: dict[int, Blobs] = {}
        for g, group in enumerate(new.groups):
            if set(shares.get(g, {})) == set(group.holders):
                total, _ = add_shares(cipher, shares[g])
                if total is not None:
                    scores[g] = total
        numbers: dict[str, dict[str, Any]] = {}
        for name in features:
            entries = request(name)
            known = [g for g in entries["groups"] if g in scores]
            if known:
                entries |= {f"scores/{g}": scores[g] for g in known}
                numbers[name] = entries
        answers = self._ask(grid, server_round, "evaluate", numbers, timeout)
        return self._mean_metrics([answer.metrics for answer in answers])

    def _evaluate_clients(
        self, grid: Grid, server_round: int, config: ConfigRecord, timeout: float
    ) -> MetricRecord | None:
        every = self.client_evaluate_every
        if not every or server_round % every:
            return None
        return self.predict(grid, server_round, timeout)

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """What the phases say is in :mod:`strategies._hyfdca_bundle`."""
        return {}

    def check(self, answer: Answer) -> Any:
        """Not used: each phase checks its own answers."""
        raise ValueError("HyFDCA has several waves a round: use strategy.start")

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Not used: see :meth:`run_round`."""
        raise NotImplementedError("HyFDCA has several waves a round: use start")

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
            for name in ("sums", "counts", "norms"):
                for i, blob in enumerate(getattr(labels, name)):
                    arrays[f"labels/{g}/{name}/{i}"] = as_array(blob)
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
        self._labels = []
        for g, group in enumerate(self.alignment.groups):
            count = self.cipher.blocks(group.size)
            self._labels.append(
                Labels(
                    *(
                        [
                            state[f"labels/{g}/{name}/{i}"].tobytes()
                            for i in range(count)
                        ]
                        for name in ("sums", "counts", "norms")
                    )
                )
            )
        self._steps = self._make_steps()
        self._steps.load_state(_under(state, "steps/"))


def _source(context: str | Path | bytes) -> str | Path | bytes:
    return Path(context).expanduser() if isinstance(context, str) else context


def _under(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {
        key.removeprefix(prefix): array
        for key, array in state.items()
        if key.startswith(prefix)
    }
