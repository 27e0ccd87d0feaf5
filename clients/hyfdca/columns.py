"""Raw columns: their sums, hidden in those of all holders, and what is made of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.agreement import Agreement
from fedtrellis.dual.columns import Shifted, scales_mark
from fedtrellis.encryption.masks import common_secret
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import RestoreNeededError

from .base import Config, IntArray
from .weights import Weighing, weighs

__all__ = ["Standardizing", "column_sums", "squared_norms"]

# Of data that is alive: by the data's id and the scales, so that a client that is made
# anew for each message does not standardise its columns for each.
_MADE: dict[tuple[int, str], tuple[weakref.ref[Any], Any]] = {}


class Standardizing(Weighing):
    """What sums before round 1 say, and the columns as the run has them."""

    def _peers(
        self,
        own: int,
        rows: int,
        size: int,
        known: Sequence[tuple[bytes | str | int, ...]],
    ) -> list[tuple[int, bytes, NDArray[np.int64]]]:
        """The other members, their pair's secret, and which words they have too.

        The words are ``rows`` times one for each feature, then others that all have.
        """
        p_k = len(self.feature_names)
        starts = p_k * np.arange(rows)[:, None]
        ends = np.arange(rows * p_k, size)
        peers = []
        names = self.secrets.agreement.names
        for other, shared in enumerate(self._shared_columns()):
            if other == own:
                continue
            where = np.concatenate([(starts + shared).reshape(-1), ends])
            secret = common_secret(self.secrets.pair(names[other]), *known[other])
            peers.append((other, secret, where))
        return peers

    # ------------------------------------------------------------ standardised columns

    def _take_sums(self, config: Config) -> None:
        """Take what the sums before round 1 say: once in a run, and nothing else.

        Means and scales of the columns, and what weights are normalised by.

        Raises
        ------
        SettingsError
            They are others than before: each would be a question of its own.
        """
        found: dict[str, FloatArray] = {}
        if config["standardize"]:
            if "column-scales" not in config:
                raise RestoreNeededError("this client has no scales of its columns")
            means = np.array(config["column-means"], dtype=np.float64)
            scales = np.array(config["column-scales"], dtype=np.float64)
            p_k = len(self.feature_names)
            if means.shape != (p_k,) or scales.shape != (p_k,):
                raise ValueError(f"the columns' scales are not {p_k} numbers")
            if not (np.isfinite(means).all() and (scales > 0.0).all()):
                raise ValueError("the columns' scales are not numbers above 0")
            found = {"means": means, "scales": scales}
        if weighs(config):
            if "weight-totals" not in config:
                raise RestoreNeededError("this client has no totals of the weights")
            found["totals"] = self._check_totals(config)
        ledger, mark = self._open_ledger(config), scales_mark(*found.values())
        if ledger.scales not in ("", mark):
            raise SettingsError(
                f"client {self.client_id} was given other scales of its columns, or "
                "totals of the weights, than before"
            )
        if not ledger.scales:
            ledger.scales = mark
            ledger.save()
        self.state |= found

    @property
    def columns(self) -> Any:
        """The samples' features as the run has them: standardised, if it does that."""
        if "scales" not in self.state:
            return self.features
        groups = {g: held.rows for g, held in self._held().items()}
        return self._standardized(self.features, groups, new=False)

    def _new_columns(self) -> Any:
        """The new samples' features, by the same means and scales."""
        assert self.new_samples is not None
        features = self.new_samples.features
        if "scales" not in self.state:
            return features
        return self._standardized(features, self._new_rows(), new=True)

    def _standardized(
        self, features: Any, groups: Mapping[int, IntArray], new: bool
    ) -> Any:
        """(x − m)/s; m only where this client is the first of a sample's holders.

        Two clients may have the same feature of one sample, where each has other
        entries: only one of them must subtract the mean.
        """
        means, scales = self.state["means"], self.state["scales"]
        agreement = self.secrets.agreement
        firsts = np.stack([self._first_columns(agreement, g, new) for g in groups])
        shifts = np.where(firsts, means, 0.0)
        kinds = np.zeros(features.shape[0], dtype=np.int64)
        for kind, rows in enumerate(groups.values()):
            kinds[rows] = kind
        mark = scales_mark(shifts.ravel(), np.resize(scales, shifts.size))
        key = id(features), mark
        known = _MADE.get(key)
        if known is not None and known[0]() is features:
            return known[1]
        made: Any
        if isinstance(features, np.ndarray):
            made = features - shifts[kinds]
            made /= scales
        else:
            from scipy import sparse

            divided = sparse.csr_array(features.multiply(1.0 / scales[None, :]))
            moved = bool(shifts.any())
            made = Shifted(divided, shifts / scales, kinds) if moved else divided
        try:
            # of the key alone: a reference to the data would keep it alive
            reference = weakref.ref(features, lambda _: _MADE.pop(key, None))
        except TypeError:
            return made
        _MADE[key] = reference, made
        return made

    def _first_columns(
        self, agreement: Agreement, g: int, new: bool
    ) -> NDArray[np.bool_]:
        """Which of this client's columns no holder before it in a group has."""
        holders = agreement.holders(g, new)
        before = holders[: holders.index(self.client_id)]
        first = np.ones(len(self.feature_names), dtype=np.bool_)
        for name, shared in zip(agreement.names, self._shared_columns(), strict=True):
            if name in before:
                first[shared] = False
        return first


def column_sums(features: Any, weights: FloatArray | None = None) -> FloatArray:
    """Σ x and Σ x² of each column, or Σ s x and Σ s x², shape (2, p_k)."""
    squares = (
        features.multiply(features) if hasattr(features, "multiply") else features**2
    )
    if weights is not None:
        return np.stack([np.asarray(f.T @ weights) for f in (features, squares)])
    sums = [np.asarray(f.sum(axis=0), np.float64).ravel() for f in (features, squares)]
    return np.stack(sums)


def squared_norms(features: Any) -> FloatArray:
    """‖x_{k,i}‖² of every row."""
    if isinstance(features, Shifted):
        return features.squared_norms()
    squares = (
        features.multiply(features) if hasattr(features, "multiply") else features**2
    )
    return np.asarray(squares.sum(axis=1), dtype=np.float64).reshape(-1)
