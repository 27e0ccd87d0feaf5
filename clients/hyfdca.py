"""The client's half of HyFDCA."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.dual.local_passes import local_dual_passes
from fedtrellis.encryption import (
    Cipher,
    EncryptionError,
    decrypt_vector,
    encrypt_vector,
    load_key,
    remove_run_key,
    shared_run_key,
)
from fedtrellis.objectives.losses import Loss, make_loss
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import StatefulClient
from fedtrellis.wire.protocol import RestoreNeededError

from ._split_data import check_split_data

__all__ = ["HyFDCAClient", "LabelError", "NewSamples"]

IntArray = NDArray[np.int64]

# Entries of a request that list groups of this client's samples.
_GROUPS = (
    "groups",
    "products",
    "backup",
    "propose",
    "local",
    "report",
    "dual",
    "moved",
    "renew",
    "tag-groups",
)


class LabelError(ValueError):
    """The clients' labels do not fit together."""


class NewSamples(NamedTuple):
    """Samples to be scored, as one client knows them.

    Attributes
    ----------
    features : ndarray or scipy sparse array of shape (n, p_k)
        The columns are those of the client's training data.
    sample_ids : sequence of str
    labels : ndarray of shape (n,) or None
        To measure loss and accuracy; NaN where there is none.
    """

    features: Any
    sample_ids: Sequence[str]
    labels: NDArray[Any] | None = None


class HyFDCAClient(StatefulClient):
    """One client of HyFDCA; see ``HyFDCA`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given. Node config: ``key-file="PATH"`` names the
        clients' key (``fedtrellis-keys``), if ``key`` is not given.
    features : ndarray or scipy sparse array of shape (n_k, p_k)
        x_{k,i}: what this client knows of its samples. Load or make it behind a
        module-level ``functools.lru_cache``.
    feature_names : sequence of str
        Names of the columns, the same on every client that holds the feature.
    sample_ids : sequence of str
        Ids of the rows, the same on every client that holds the sample. They do not
        leave this client in the clear. The order must not change during a run.
    labels : ndarray of shape (n_k,), optional
        y_i; NaN where this client has none. One holder of a sample is enough.
    loss : str, optional
        The loss that this client agrees to; by default the server's.
    key : Cipher or path, optional
        The clients' shared key. Without one, and without a key file, the clients of
        one machine make a key for the run: for simulations.
    new_samples : NewSamples, optional
        Samples to score with the model (``client_evaluate_every`` of the strategy, or
        its ``predict``), of which this client has these features.
    on_scores : callable, optional
        Given the new samples' ids and their scores xᵀw, NaN where another holder did
        not take part.

    Notes
    -----
    State, samples in the order of the groups: rows, groups, sizes, holders (the
    alignment), labels, norms (‖x_i‖²); for each group g the proposals that it
    remembers, ``points/g`` of shape (c, n_g), the last being α, their ``ids/g`` and
    ``step/g``. With the paper's steps ``alpha``.
    """

    def __init__(
        self,
        context: Context,
        features: Any,
        feature_names: Sequence[str],
        sample_ids: Sequence[str],
        labels: NDArray[Any] | None = None,
        loss: str | None = None,
        key: Cipher | str | Path | None = None,
        new_samples: NewSamples | None = None,
        on_scores: Callable[[Sequence[str], FloatArray], None] | None = None,
    ) -> None:
        super().__init__(context)
        self.features = features
        self.feature_names = feature_names
        self.sample_ids = sample_ids
        self.labels = labels
        self.loss = loss
        self.key = key
        self.new_samples = new_samples
        self.on_scores = on_scores
        self._aligned = False  # whether the state's alignment has been looked at

    # ------------------------------------------------------------------ before round 1

    def fit_align(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Keyed hashes of the samples' ids, features' names, and which key this is."""
        check_split_data(self, config)
        cipher = self._cipher(config)
        hashes = _keyed_hashes(cipher, "sample", self.sample_ids, HASH_BYTES)
        answer = [
            np.frombuffer(hashes, dtype=np.uint8).reshape(-1, HASH_BYTES),
            _text("\n".join(self.feature_names)),
            _text(cipher.fingerprint),
        ]
        if config["send-context"]:
            answer.append(np.frombuffer(cipher.evaluation_bytes(), dtype=np.uint8))
        return answer, 0, {}

    def fit_labels(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Labels, whether there are any, and ‖x_{k,i}‖², encrypted, by group."""
        cipher = self._cipher(config)
        known, labels = self._own_labels()
        norms = _squared_norms(self.features)
        blobs: list[bytes] = []
        terms = dict(zip(self._groups(), config["holders"], strict=True))
        for g, rows in self._rows().items():
            for what, values in (
                ("labels", labels),
                ("counts", known),
                ("norms", norms),
            ):
                label = self._label(config, what, g)
                blobs += encrypt_vector(cipher, values[rows], label, terms[g])
        answer = _arrays(blobs)
        self._check_groups(config)
        for g in config.get("tag-groups", []):
            answer.append(self._entry_tags(cipher, self._rows()[g]))
        return answer, 0, {}

    def _own_labels(self) -> tuple[FloatArray, FloatArray]:
        """1 where this client has a label, and the label (0 where it has none)."""
        n = self.features.shape[0]
        if self.labels is None:
            return np.zeros(n), np.zeros(n)
        known = ~np.isnan(np.asarray(self.labels, dtype=np.float64))
        return known.astype(np.float64), np.where(known, self.labels, 0.0)

    def _entry_tags(self, cipher: Cipher, rows: IntArray) -> NDArray[np.uint8]:
        """A keyed number for each non-zero entry, to find those held twice.

        From 64 bits of the sample's and of the feature's own keyed hash each; without
        the key a tag says nothing but whether two clients have it.
        """
        from scipy import sparse

        own = sparse.csr_array(self.features)[rows].tocoo()
        entries = own.data != 0.0
        ids = [self.sample_ids[i] for i in rows]
        samples = np.frombuffer(_keyed_hashes(cipher, "entry-sample", ids, 8), "<u8")
        features = np.frombuffer(
            _keyed_hashes(cipher, "entry-feature", self.feature_names, 8), "<u8"
        )
        i, m = own.coords[0][entries], own.coords[1][entries]
        with np.errstate(over="ignore"):
            # a keyed odd multiplier for each feature, then two rounds of mixing
            tags = samples[i] * (features[m] | np.uint64(1)) + features[m]
            for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
                tags = (tags ^ (tags >> np.uint64(31))) * np.uint64(factor)
        tags.sort()
        return np.frombuffer(tags.astype("<u8").tobytes(), dtype=np.uint8)

    def fit_ready(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Check the key, and the labels of all holders against each other."""
        self._cipher(config)
        self._learn(config, check=True)
        return [], 0, {}

    def _learn(self, config: dict[str, Any], check: bool = False) -> None:
        """Take labels and norms from the sums over the holders, if they came along."""
        self._check_groups(config)
        if "labels" in self.state:
            return
        if not any(k.startswith("labels/") for k in config):
            raise RestoreNeededError("this client has no labels")
        cipher = self._cipher(config)
        known, own = self._own_labels()
        labels, norms = [], []
        for (g, rows), holders in zip(
            self._rows().items(), config["holders"], strict=True
        ):
            sums, counts, squares = (
                decrypt_vector(
                    cipher,
                    config[f"{what}/{g}"],
                    self._label(config, what, g),
                    len(rows),
                    holders,
                )
                for what in ("labels", "counts", "norms")
            )
            if check and not counts.all():
                raise LabelError(
                    f"{int((counts == 0).sum())} samples are labelled by none of their "
                    f"{holders} holders"
                )
            y = sums / np.maximum(counts, 1.0)
            wrong = (known[rows] > 0) & (np.abs(y - own[rows]) > 1e-9)
            if check and wrong.any():
                raise LabelError(
                    f"{int(wrong.sum())} samples have other labels on another client"
                )
            # a mean of rounded sums is a label to the resolution; a sign exactly
            labels.append(np.rint(y) if _loss(config).labels == "signs" else y)
            norms.append(np.maximum(squares, 0.0))
        self.state["labels"] = np.concatenate(labels)
        self.state["norms"] = np.concatenate(norms)
        self.state["holders"] = np.asarray(config["holders"])

    def fit_finish(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Remove the key that the clients of this machine made for the run."""
        if config.get("forget-key"):
            remove_run_key(config["session"])
        return [], 0, {}

    # ------------------------------------------------------------------ the iteration

    def fit_inner_product(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """enc(x_{k,i}ᵀ w_k) of the samples of some groups, and enc(α) of others."""
        self._learn(config)
        cipher = self._cipher(config)
        (w,) = parameters
        products = self.features @ w.T
        rows = self._rows()
        holders = self._holders()
        blobs: list[bytes] = []
        for g, version, row in zip(
            config["products"], config["versions"], config["rows"], strict=True
        ):
            values = np.asarray(products[rows[g], row])
            drawn = self._drawn(config, g, version)
            label = self._label(config, "product", g, version)
            if drawn is not None and config["slots"] == "chosen":
                # as few ciphertexts as they need; which samples these are is not said
                blobs += encrypt_vector(cipher, values[drawn], label, holders[g])
            else:
                blobs += encrypt_vector(cipher, values, label, holders[g])
        if config["backup"]:
            blobs += self._backups(cipher, config, self._points(config))
        return _arrays(blobs), 0, {}

    def fit_propose(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Proposals for some groups: their v_k, and sums over their samples."""
        self._learn(config)
        cipher = self._cipher(config)
        (w,) = parameters
        loss = _loss(config)
        scale = config["regularization"] * config["num-samples-all"]
        rows, slices = self._rows(), self._slices()
        holders = self._holders()
        points = self._points(config)
        backups = self._backups(cipher, config, points)
        local_row = dict(zip(config["local"], config["rows"], strict=True))
        for kinds in (config["proposals"], config["local-proposals"]):
            if len(set(kinds)) != len(kinds):
                raise ValueError(f"the same is to be proposed twice: {kinds}")
        answer: list[NDArray[Any]] = []
        numbers: list[float] = []
        secure: FloatArray | None = None
        for g, version in zip(config["propose"], config["versions"], strict=True):
            ids, known = points[g]
            alpha = known[-1]
            y = self.state["labels"][slices[g]]
            q = self.state["norms"][slices[g]]
            drawn = self._drawn(config, g, version)
            z = np.zeros(len(alpha))
            whole = np.array_equal(rows[g], np.arange(self.features.shape[0]))
            part = self.features if whole else self.features[rows[g]]
            if g in local_row:
                z = np.asarray(part @ w[local_row[g]])
                kinds = config["local-proposals"]
            else:
                only = config["slots"] == "chosen" and drawn is not None
                where = drawn if only and drawn is not None else np.arange(len(z))
                z[where] = decrypt_vector(
                    cipher,
                    config[f"scores/{g}"],
                    self._label(config, "product", g, version),
                    len(where),
                    holders[g],
                )
                kinds = config["proposals"]
            moves = np.arange(len(z)) if drawn is None else drawn
            new = []
            for kind in kinds:
                point = alpha.copy()
                if kind == "dual-point":
                    point[moves] = loss.dual_point(z[moves], y[moves])
                elif kind == "coordinate":
                    point[moves] += loss.coordinate_step(
                        alpha[moves], z[moves], q[moves], y[moves], scale
                    )
                else:
                    point[moves] = local_dual_passes(
                        loss,
                        self.features,
                        rows[g][moves],
                        alpha[moves],
                        z[moves],
                        y[moves],
                        q[moves],
                        scale,
                        aggregation=config["num-clients"],
                        passes=config["local-passes"],
                        rng=self._rng(config, f"passes/{g}/{version}"),
                    )
                new.append(loss.feasible(point, y))
            proposals = np.stack(new)
            # v_k = (1/λN) Σ_i α_i x_{k,i}
            v = np.ascontiguousarray((part.T @ proposals.T).T) / scale
            if "openers" in config:
                secure = v if secure is None else secure + v
            else:
                answer.append(v)
            if g in config["report"]:
                numbers.append(float(loss.value(z, y).sum()))
                numbers += [
                    float(loss.conjugate(a, y).sum()) for a in [alpha, *proposals]
                ]
            first = int(ids[-1]) + 1
            self.state[f"points/{g}"] = np.vstack([known, proposals])
            self.state[f"ids/{g}"] = np.append(ids, np.arange(first, first + len(new)))
        blobs: list[bytes] = []
        if secure is not None:
            blobs += self._shares_of(cipher, secure, config)
        self.numbers = np.array(numbers)
        return [*answer, *_arrays([*blobs, *backups])], 0, {}

    def _shares_of(
        self, cipher: Cipher, v: FloatArray, config: dict[str, Any]
    ) -> list[bytes]:
        """enc(v_k), cut by who will decrypt the sum of which feature."""
        blobs: list[bytes] = []
        version = config["versions"][0]
        for number, terms in zip(
            config["openers"], config["opener-terms"], strict=True
        ):
            where = np.asarray(config[f"opener/{number}"])
            for j, row in enumerate(v):
                values = np.where(where >= 0, row[where], 0.0)
                label = self._label(config, f"sum-{number}-{j}", 0, version)
                blobs += encrypt_vector(cipher, values, label, terms)
        return blobs

    def fit_open(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Decrypt the sum over all clients of v, at some of this client's features."""
        cipher = self._cipher(config)
        number, size = config["opener"], config["size"]
        sums = [
            decrypt_vector(
                cipher,
                config[f"sum/{j}"],
                self._label(config, f"sum-{number}-{j}", 0, config["version"]),
                size,
                config["terms"],
            )
            for j in range(config["count"])
        ]
        return [np.stack(sums)], 0, {}

    def fit_backup(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """enc(α) of some groups, for clients that lost it."""
        self._learn(config)
        points = self._points(config)
        return _arrays(self._backups(self._cipher(config), config, points)), 0, {}

    def _backups(
        self,
        cipher: Cipher,
        config: dict[str, Any],
        points: dict[int, tuple[IntArray, FloatArray]],
    ) -> list[bytes]:
        steps = dict(zip(config["groups"], config["steps"], strict=True))
        blobs: list[bytes] = []
        for g in config["backup"]:
            label = self._label(config, "alpha", g, steps[g])
            blobs += encrypt_vector(cipher, points[g][1][-1], label, 1)
        return blobs

    def _points(self, config: dict[str, Any]) -> dict[int, tuple[IntArray, FloatArray]]:
        """Ids and points of the groups, brought to where the server says they stand.

        For a group whose step the server has taken since, α ← Σ_j θ_j a_j.

        Raises
        ------
        RestoreNeededError
            This client has not what the server thinks it has.
        """
        points: dict[int, tuple[IntArray, FloatArray]] = {}
        sizes = dict(
            zip(self._groups(), self.state["sizes"].astype(int).tolist(), strict=True)
        )
        proposing = set(config.get("propose", []))
        needed = {*proposing, *config["backup"]}
        mixes = _cut(config["mix-ids"], config["mix-counts"])
        weights = _cut(config["mix-weights"], config["mix-counts"])
        keeps = _cut(config["keep-ids"], config["keep-counts"])
        for g, step, alpha_id, mix, weight, keep in zip(
            config["groups"],
            config["steps"],
            config["alpha-ids"],
            mixes,
            weights,
            keeps,
            strict=True,
        ):
            if f"alpha/{g}" in config:
                alpha = decrypt_vector(
                    self._cipher(config),
                    config[f"alpha/{g}"],
                    self._label(config, "alpha", g, step),
                    sizes[g],
                    1,
                )
                y = self.state["labels"][self._slices()[g]]
                points[g] = (
                    np.array([alpha_id]),
                    _loss(config).feasible(alpha, y)[None],
                )
            elif step == 0:
                points[g] = (np.array([alpha_id]), np.zeros((1, sizes[g])))
            elif f"points/{g}" in self.state:
                ids = self.state[f"ids/{g}"].astype(np.int64)
                known = self.state[f"points/{g}"]
                own_step = int(self.state[f"step/{g}"])
                if own_step == step - 1 and np.isin(mix, ids).all():
                    # α ← Σ_j θ_j a_j
                    alpha = np.asarray(weight) @ known[_positions(ids, mix)]
                    kept = np.asarray(keep)[np.isin(keep, ids)]
                    known = np.vstack([known[_positions(ids, kept)], alpha])
                    ids = np.append(kept.astype(np.int64), alpha_id)
                elif own_step != step:
                    if g in needed:
                        raise RestoreNeededError(
                            f"group {g} is at step {step}, this client at {own_step}"
                        )
                    continue
                # what was proposed for this step before is proposed again
                at = int(np.flatnonzero(ids == alpha_id)[0])
                points[g] = (ids[: at + 1], known[: at + 1])
            elif g in needed:
                raise RestoreNeededError(f"this client has no α of group {g}")
            if g in points:
                same = self.state.get(f"step/{g}", -1) == step
                if same and g not in proposing and f"alpha/{g}" not in config:
                    continue  # what it has proposed for this step may yet be used
                ids, known = points[g]
                self.state[f"ids/{g}"] = ids  # type: ignore[assignment]
                self.state[f"points/{g}"] = known
                self.state[f"step/{g}"] = np.array(step)
        return points

    # -------------------------------------------------------------- the paper's steps

    def fit_dual(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """LocalDualMethod: enc(γ_t/|B_n| Δα) of H samples (algorithms 3 and 5)."""
        self._learn(config)
        cipher = self._cipher(config)
        (w,) = parameters
        loss = _loss(config)
        λ, N = config["regularization"], config["num-samples-all"]
        gamma, c_k = config["gamma"], config["c"]
        rows, slices, holders = self._rows(), self._slices(), self._holders()
        n = self.features.shape[0]
        if config["moved"] and "alpha" not in self.state:
            raise RestoreNeededError("this client has no α")
        alpha_all = self.state.get("alpha", np.zeros(n))
        # H samples, drawn without replacement, of all that this client has
        H = max(1, ceil(config["local-fraction"] * n - 1e-9))
        rng = self._rng(config, f"draw/{self.client_id}/{config['iteration']}")
        drawn = np.zeros(n, dtype=bool)
        drawn[rng.choice(n, size=H, replace=False)] = True
        local = np.asarray(self.features @ w[0])
        blobs: list[bytes] = []
        numbers: list[float] = []
        for g in config["dual"]:
            alpha, y = alpha_all[slices[g]], self.state["labels"][slices[g]]
            if holders[g] == 1:
                z = local[rows[g]]
            elif f"scores/{g}" in config:
                label = self._label(config, "product", g, 0)
                z = decrypt_vector(cipher, config[f"scores/{g}"], label, len(alpha))
            else:
                z = np.zeros(len(alpha))
            if config["step-rule"] == "practical":
                delta = loss.coordinate_step(alpha, z, 1.0, y, λ * N)
            else:
                delta = loss.theoretical_step(alpha, z, y, c_k, gamma, λ)
            delta = np.where(drawn[rows[g]], delta, 0.0)
            label = self._label(config, "dual", g)
            share = gamma / holders[g] * delta
            blobs += encrypt_vector(cipher, share, label, config["terms"])
            if g in config["report"]:
                numbers.append(float(loss.value(z, y).sum()))
                numbers.append(float(loss.conjugate(loss.feasible(alpha, y), y).sum()))
        self.numbers = np.array(numbers)
        return _arrays(blobs), 0, {}

    def fit_primal(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """PrimalAggregation: ŵ_k/(λN) = (1/λN) Σ_i α_i x_{k,i} (algorithm 4)."""
        self._learn(config)
        cipher = self._cipher(config)
        scale = config["regularization"] * config["num-samples-all"]
        slices = self._slices()
        n = self.features.shape[0]
        alpha = np.zeros(n)
        for g in config["moved"]:
            own = slices[g]
            size = own.stop - own.start
            label = self._label(config, "dual", g)
            alpha[own] = decrypt_vector(cipher, config[f"alpha/{g}"], label, size)
        self.state["alpha"] = alpha
        in_rows = np.empty(n)
        in_rows[self.state["rows"].astype(int)] = alpha
        blobs: list[bytes] = []
        for g in config["renew"]:
            label = self._label(config, "dual", g)
            terms = config["terms"]
            blobs += encrypt_vector(cipher, alpha[slices[g]], label, terms)
        v = np.asarray(self.features.T @ in_rows) / scale
        return [v, *_arrays(blobs)], 0, {}

    # ------------------------------------------------------------------- new samples

    def fit_new_samples(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Keyed hashes of the new samples' ids, if there are any."""
        ids = [] if self.new_samples is None else self.new_samples.sample_ids
        hashes = _keyed_hashes(self._cipher(config), "new-sample", ids, HASH_BYTES)
        own = np.frombuffer(hashes, dtype=np.uint8).reshape(-1, HASH_BYTES)
        return [own], 0, {}

    def fit_new_products(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """enc(x_{k,i}ᵀ w_k) of the new samples."""
        cipher = self._cipher(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        (w,) = parameters
        products = np.asarray(self.new_samples.features @ w[0])
        blobs: list[bytes] = []
        for g, terms in zip(config["groups"], config["holders"], strict=True):
            label = self._label(config, "new-product", g, config["prediction"])
            values = products[np.asarray(config[f"rows/{g}"])]
            blobs += encrypt_vector(cipher, values, label, terms)
        return _arrays(blobs), 0, {}

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores xᵀw of the new samples; mean loss and accuracy where there are labels.

        ``on_scores`` is given all scores that could be had.
        """
        cipher = self._cipher(config)
        if self.new_samples is None:
            raise ValueError("this client has no new samples")
        n = len(self.new_samples.sample_ids)
        scores = np.full(n, np.nan)
        for g, terms in zip(config["groups"], config["holders"], strict=True):
            if f"scores/{g}" in config:
                rows = np.asarray(config[f"rows/{g}"])
                label = self._label(config, "new-product", g, config["prediction"])
                blobs = config[f"scores/{g}"]
                scores[rows] = decrypt_vector(cipher, blobs, label, len(rows), terms)
        if self.on_scores is not None:
            self.on_scores(self.new_samples.sample_ids, scores)
        labels = self.new_samples.labels
        y = np.full(n, np.nan) if labels is None else np.asarray(labels, dtype=float)
        known = ~np.isnan(y) & ~np.isnan(scores)
        if not known.any():
            return 0.0, 0, {}
        loss = _loss(config)
        y, z = y[known], scores[known]
        metrics = {}
        if loss.labels == "signs":
            metrics["accuracy"] = float((np.where(z >= 0, 1.0, -1.0) == y).mean())
        return float(loss.value(z, y).mean()), int(known.sum()), metrics

    # ------------------------------------------------------------------------- helpers

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Not one of HyFDCA's phases."""
        raise NotImplementedError("HyFDCA has several waves a round: fit_NAME each")

    def _cipher(self, config: dict[str, Any]) -> Cipher:
        """The client's key, if it is the run's (once the server knows which)."""
        expected = config.get("key")
        cipher = self._own_cipher(config, expected)
        if expected not in (None, cipher.fingerprint):
            raise EncryptionError(
                f"this client's key has fingerprint {cipher.fingerprint}, that of the "
                f"run has {expected}"
            )
        return cipher

    def _own_cipher(self, config: dict[str, Any], expected: str | None) -> Cipher:
        if isinstance(self.key, Cipher):
            return self.key
        path = self.key or self.context.node_config.get("key-file")
        if path:
            return _load_key(str(path))
        if config.get("own-key"):
            raise SettingsError(
                f"client {self.client_id} has no key: start the node with "
                "--node-config 'key-file=\"PATH\"', a key made by fedtrellis-keys"
            )
        return shared_run_key(
            config["session"], config["encryption"], make=expected is None
        )

    def _groups(self) -> list[int]:
        groups: list[int] = self.state["groups"].astype(int).tolist()
        return groups

    def _check_groups(self, config: dict[str, Any]) -> None:
        """Raise ValueError if the server asks for samples that this client has not."""
        if "groups" not in self.state:
            raise RestoreNeededError("this client has no alignment")
        own = set(self._groups())
        for key in _GROUPS:
            strange = [g for g in config.get(key, []) if g not in own]
            if strange:
                raise ValueError(f"{key} names group {strange[0]!r}, not held here")

    def _holders(self) -> dict[int, int]:
        holders = self.state["holders"].astype(int).tolist()
        return dict(zip(self._groups(), holders, strict=True))

    def _slices(self) -> dict[int, slice]:
        """Where each group's samples stand in the state's vectors."""
        self._check_alignment()
        stops = np.cumsum(self.state["sizes"].astype(int)).tolist()
        return {
            g: slice(stop - int(size), stop)
            for g, size, stop in zip(
                self._groups(), self.state["sizes"], stops, strict=True
            )
        }

    def _check_alignment(self) -> None:
        """Raise ValueError unless rows, groups and sizes are those of an alignment.

        They come from the server, and say how long this client's vectors are.
        """
        if self._aligned:
            return
        rows, sizes = self.state["rows"], self.state["sizes"]
        groups, n = self.state["groups"], self.features.shape[0]
        if (
            any(a.dtype.kind not in "iu" or a.ndim != 1 for a in (rows, sizes, groups))
            or len(np.unique(groups)) != len(groups)
            or len(sizes) != len(groups)
            or (sizes < 0).any()
            or sum(sizes.tolist()) != n
            or not np.array_equal(np.sort(rows), np.arange(n))
        ):
            raise ValueError(
                f"rows, groups and sizes do not deal out this client's {n} samples"
            )
        self._aligned = True

    def _rows(self) -> dict[int, IntArray]:
        """Each group's samples as rows of the features, in the group's order."""
        rows = self.state["rows"].astype(np.int64)
        return {g: rows[own] for g, own in self._slices().items()}

    def _label(
        self, config: dict[str, Any], what: str, group: int, version: int = 0
    ) -> str:
        """What a ciphertext is; of another run, group or iteration it is another."""
        return f"{config['session']}/{what}/{group}/{version}"

    def _rng(self, config: dict[str, Any], purpose: str) -> np.random.Generator:
        """Random numbers that all clients of the run can draw, and the server not."""
        data = f"{config['session']}/{purpose}".encode()
        digest = self._cipher(config).mac("draw", data)
        words = np.frombuffer(digest, dtype="<u4").tolist()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

    def _drawn(
        self, config: dict[str, Any], group: int, version: int
    ) -> IntArray | None:
        """The samples of a group that move in this step; None: all."""
        fraction = config["local-fraction"]
        if fraction == 1.0:
            return None
        size = self._slices()[group]
        n = size.stop - size.start
        count = max(1, ceil(fraction * n - 1e-9))
        rng = self._rng(config, f"draw/{group}/{version}")
        return np.sort(rng.choice(n, size=count, replace=False))


@lru_cache(maxsize=4)
def _load_key(path: str) -> Cipher:
    return load_key(path)


@lru_cache(maxsize=8)
def _make_loss(name: str, smoothing: float) -> Loss:
    return make_loss(name, smoothing=smoothing)


def _loss(config: dict[str, Any]) -> Loss:
    return _make_loss(config["loss"], config["smoothing"])


def _keyed_hashes(
    cipher: Cipher, purpose: str, names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under the clients' key, cut to ``length`` bytes."""
    import hmac

    key = cipher.mac("alignment", purpose.encode())
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def _squared_norms(features: Any) -> FloatArray:
    """‖x_{k,i}‖² of every row."""
    squares = (
        features.multiply(features) if hasattr(features, "multiply") else features**2
    )
    return np.asarray(squares.sum(axis=1), dtype=np.float64).reshape(-1)


def _text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _arrays(blobs: Sequence[bytes]) -> list[NDArray[Any]]:
    return [np.frombuffer(blob, dtype=np.uint8) for blob in blobs]


def _positions(ids: IntArray, wanted: Any) -> IntArray:
    """Where the wanted ids stand among the ids."""
    order = np.argsort(ids)
    found: IntArray = order[np.searchsorted(ids, wanted, sorter=order)]
    return found


def _cut(flat: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Cut a list into lists of the given lengths."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(flat[start : start + count]))
        start += count
    return parts
