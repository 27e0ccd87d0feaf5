"""Weights of a client's samples: its own, their classes', and what they reveal."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis.dual.held_groups import HeldGroup
from fedtrellis.dual.weights import (
    BALANCED,
    labels_of,
    normalised,
    outweighed,
    weight_totals,
)
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

from .agreeing import Agreeing
from .base import Config
from .rules import NodeRules

__all__ = ["Weighing", "weighs"]

# How many features an error names.
_NAMED = 5


def weighs(config: Config) -> bool:
    """Whether samples or classes have weights in a run."""
    return bool(config["weighted"] or config["class-weight"])


class Weighing(Agreeing):
    """Weights as they are normalised in the run."""

    def _own_weights(self) -> tuple[FloatArray, FloatArray]:
        """1 where this client has a weight, and the weight (0 where it has none)."""
        n = self.features.shape[0]
        if self.weights is None:
            return np.zeros(n), np.zeros(n)
        weights = np.asarray(self.weights, dtype=np.float64)
        known = ~np.isnan(weights)
        return known.astype(np.float64), np.where(known, weights, 0.0)

    def _sample_weights(self) -> FloatArray:
        """Weights s of all samples, group by group; 1 where there are none."""
        y: FloatArray = self.state["labels"]
        return self.state["weights"] if "weights" in self.state else np.ones_like(y)

    def _own_totals(self, config: Config) -> FloatArray:
        """Return this client's term of the sums that weights are normalised by.

        Of the samples that it is the first holder of, so that each counts once.
        """
        s, y = self._sample_weights(), self.state["labels"]
        first = np.zeros(len(y), dtype=np.bool_)
        for g, held in self._held().items():
            first[held.own] = self._holders(g)[0] == self.client_id
        rule, classes = config["class-weight"], config["classes"]
        return weight_totals(s[first], y[first], classes, rule)

    def _weights_of(self, config: Config, held: HeldGroup) -> FloatArray | None:
        """s̃ of a group, shape (C, n_g); None where nothing has weights."""
        if not weighs(config):
            return None
        return normalised(
            self._sample_weights()[held.own],
            self.state["labels"][held.own],
            config["classes"],
            config["class-weight"],
            self.state["totals"],
            config["num-samples-all"],
        )

    def _check_totals(self, config: Config) -> FloatArray:
        """The sums over all clients, from a request.

        Raises
        ------
        ValueError
            They cannot be such sums.
        """
        totals = np.array(config["weight-totals"], dtype=np.float64)
        own = self._own_totals(config)
        # rounded: a sum of one's own terms alone may come back a little smaller
        low = own * (1.0 - 1e-9)
        fits = totals.shape == own.shape and bool((totals >= low).all())
        if not fits or not np.isfinite(totals).all():
            raise ValueError("the weights' totals are not sums with this client's")
        if not (totals > 0.0).all():
            raise ValueError("a total of the weights is 0")
        return totals

    def _check_weighed(self, config: Config, balanced: bool) -> None:
        """Refuse a run whose sums show samples that weigh much more than others.

        ``balanced``: whether the classes' totals are known, which those weights need.
        """
        rules = self._rules_of(config)
        if rules.exposed == "accept":
            return
        groups = self._held().values()
        if balanced:
            found = [self._weights_of(config, held) for held in groups]
            rows = np.concatenate([one for one in found if one is not None], axis=1)
        else:
            # up to a factor
            s, y = self._sample_weights(), self.state["labels"]
            rule = config["class-weight"]
            rule = "" if isinstance(rule, str) else rule
            one = np.ones(1)
            rows = normalised(s, y, config["classes"], rule, one, 1)
        rows = np.unique(rows, axis=0)
        shown: list[str] = []
        if balanced and config["class-weight"] == BALANCED and not config["weighted"]:
            # a rare class's sum would be nearly its few rows
            counts = zip(
                labels_of(config["classes"]), self.state["totals"], strict=True
            )
            shown += [
                f"class {label:g}, which {count:g} of all samples have"
                for label, count in counts
                if count < rules.least
            ]
        small = sum(
            any(outweighed(s[held.own], rules.least) for s in rows) for held in groups
        )
        if small:
            shown.append(f"{small} group{'s' * (small > 1)} of samples")
        names = self._outweighed_columns(config, rules, rows)
        shown += [f"feature {name!r}" for name in names[:_NAMED]]
        if len(names) > _NAMED:
            shown.append(f"and {len(names) - _NAMED} features more")
        if shown:
            raise SettingsError(
                f"sums would give single numbers of client {self.client_id} away: a "
                f"few samples outweigh the rest (least = {rules.least}) in "
                f"{', '.join(shown)}. Its node allows it with exposed = 'accept', or "
                "with a smaller least (in a simulation hyfdca.exposed, hyfdca.least)"
            )

    def _outweighed_columns(
        self, config: Config, rules: NodeRules, rows: FloatArray
    ) -> list[str]:
        """Features of which a few samples have nearly all weight."""
        in_rows = np.zeros((len(rows), self.features.shape[0]))
        in_rows[:, self.state["rows"].astype(np.int64)] = rows
        # two sums more for each column, of which it takes two entries more to hide
        least = rules.least + (2 if config["standardize"] else 0)
        columns: Any = self.features
        if not isinstance(columns, np.ndarray):
            from scipy import sparse

            columns = sparse.csc_array(columns)
        names = []
        for m, name in enumerate(self.feature_names):
            if isinstance(columns, np.ndarray):
                values = columns[:, m]
                where = np.flatnonzero(values)
                values = values[where]
            else:
                own = slice(columns.indptr[m], columns.indptr[m + 1])
                where, values = columns.indices[own], columns.data[own]
                where, values = where[values != 0.0], values[values != 0.0]
            # their number gives a column of equal entries away in any case
            equal = len(values) > 0 and bool((values == values[0]).all())
            need = rules.least if equal else least
            if len(where) and any(outweighed(s[where], need) for s in in_rows):
                names.append(str(name))
        return names
