"""What ``fit`` is given, as what each node holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.weights import LIGHTEST, check_weights
from fedtrellis.objectives.base import Array, check_examples

# What the largest sample weight is at most, as it is encrypted.
_HEAVIEST = 2.0**17


class Part(NamedTuple):
    """What one node holds.

    ``features`` is a float64 ndarray or CSR array of shape (n, p). A target is missing
    where it is None or NaN, a weight where it is NaN; None: all are.
    """

    features: Any
    names: tuple[str, ...]
    ids: tuple[str, ...]
    target: NDArray[Any] | None
    weights: Array | None = None


@dataclass(frozen=True)
class Partitions:
    """All nodes' parts, checked against each other; ``names`` are the model's features.

    ``named``: whether these are columns of data frames; ``split``: whether nodes hold
    different features, else each has whole rows.
    """

    parts: tuple[Part, ...]
    names: tuple[str, ...]
    named: bool
    split: bool

    @cached_property
    def rows(self) -> dict[str, int]:
        """Each sample's number, in the order of first appearance."""
        ids = dict.fromkeys(name for part in self.parts for name in part.ids)
        return {name: i for i, name in enumerate(ids)}

    @cached_property
    def first(self) -> list[NDArray[np.bool_]]:
        """Of each part, which samples no part before it holds."""
        seen: set[str] = set()
        masks = []
        for part in self.parts:
            masks.append(np.array([name not in seen for name in part.ids], dtype=bool))
            seen.update(part.ids)
        return masks

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return any(part.weights is not None for part in self.parts)

    def weights(self) -> Array:
        """Return every sample's weight, (N,), in the order of ``rows``; 1 without."""
        s = np.full(len(self.rows), np.nan if self.weighted else 1.0)
        for part in self.parts:
            if part.weights is not None:
                rows = np.array([self.rows[name] for name in part.ids])
                s[rows] = np.where(np.isnan(s[rows]), part.weights, s[rows])
        return s

    def weight_scale(self) -> float:
        """Return a power of 2 that brings weights where they can be encrypted."""
        s = self.weights()
        scale = 2.0 ** np.floor(np.log2(_HEAVIEST / s.max()))
        if scale * s[s > 0.0].min() < LIGHTEST:
            raise ValueError(
                "a sample weight is less than a billionth of the largest; make it 0 or "
                "larger"
            )
        return float(scale)

    def kept(self, ids: Collection[str]) -> Partitions:
        """Return the same of some samples; a node that has none of them is left out."""
        parts = []
        for part in self.parts:
            rows = np.array([i for i, name in enumerate(part.ids) if name in ids], int)
            if not len(rows):
                continue
            own = part.target, part.weights
            target, weights = (None if one is None else one[rows] for one in own)
            names = tuple(part.ids[i] for i in rows)
            parts.append(Part(part.features[rows], part.names, names, target, weights))
        return Partitions(tuple(parts), self.names, self.named, self.split)

    def table(self, names: Sequence[str]) -> tuple[Array, NDArray[Any]]:
        """Return whole rows of these columns, and their targets, in ``rows``' order."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise ValueError(f"no partition has the column {absent[0]!r}")
        column = {name: j for j, name in enumerate(names)}
        table = np.zeros((len(self.rows), len(names)))
        for part in self.parts:
            rows = np.array([self.rows[name] for name in part.ids])
            held = [j for j, name in enumerate(part.names) if name in column]
            values = part.features[:, held]
            if not isinstance(values, np.ndarray):
                values = values.toarray()
            columns = np.array([column[part.names[j]] for j in held])
            table[rows[:, None], columns] = values
        return table, self.sample_targets()

    def sample_targets(self) -> NDArray[Any]:
        """Return every sample's target, (N,) objects; None where nobody has one."""
        targets = np.full(len(self.rows), None, dtype=object)
        for part in self.parts:
            if part.target is not None:
                rows = np.array([self.rows[name] for name in part.ids])
                there = known(part.target)
                targets[rows[there]] = part.target[there]
        return targets

    def targets(self) -> NDArray[Any]:
        """Return all targets that there are, of shape (K,) with K at least N."""
        found = [p.target[known(p.target)] for p in self.parts if p.target is not None]
        return np.concatenate(found)


def known(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where there is a target: neither None nor NaN."""
    if target.dtype.kind == "f":
        return np.asarray(~np.isnan(target))
    if target.dtype.kind == "O":
        # NaN alone is not equal to itself
        return np.array([t is not None and t == t for t in target], dtype=bool)
    return np.ones(len(target), dtype=np.bool_)


def is_frame(table: Any) -> bool:
    """Whether it has names of columns and rows, as a pandas data frame."""
    return hasattr(table, "columns") and hasattr(table, "index")


def read_partitions(
    partitions: Any,
    label: str,
    *,
    targets: bool = True,
    weights: Sequence[Any] | None = None,
) -> Partitions:
    """Read what ``fit`` is given, with or without targets for every sample.

    ValueError, in one line, where it does not make one table.
    """
    if (
        isinstance(partitions, np.ndarray)
        or is_frame(partitions)
        or not len(partitions)
    ):
        raise ValueError(
            "fit takes a list of partitions, (X, y) pairs or data frames, or one X "
            "with its y: y is missing (requires y to be passed, but the target y is "
            "None)"
        )
    parts = [_part(number, item, label) for number, item in enumerate(partitions)]
    if weights is not None:
        parts = _with_weights(parts, weights)
    named = [is_frame(_table(item)) for item in partitions]
    if any(named) and not all(named):
        raise ValueError(
            f"partition {named.index(False)} is no data frame, others are; give all of "
            "them as frames, or none"
        )
    split = named[0] and any(set(p.names) != set(parts[0].names) for p in parts[1:])
    if split:
        return _by_columns(parts, targets)
    return _by_rows(parts, named[0], targets)


def _table(item: Any) -> Any:
    return item[0] if isinstance(item, tuple) else item


def _part(number: int, item: Any, label: str) -> Part:
    if isinstance(item, tuple):
        if len(item) != 2:
            raise ValueError(
                f"partition {number} is a tuple of {len(item)}; it must be (X, y)"
            )
        table, target = item
    else:
        table, target = item, None
    if is_frame(table):
        if target is None and label in table.columns:
            target = table[label]
            table = table.drop(columns=label)
        names = tuple(str(name) for name in table.columns)
        ids = tuple(str(name) for name in table.index)
        features = check_examples(f"partition {number}", table.to_numpy())
    else:
        features = check_examples(f"partition {number}", table)
        count, width = features.shape
        names = tuple(f"x{j}" for j in range(width))
        ids = tuple(f"{number}.{i}" for i in range(count))
    if len(set(names)) < len(names):
        raise ValueError(f"partition {number} has a column twice")
    if target is not None:
        target = np.asarray(target)
        if target.shape != (len(ids),):
            raise ValueError(
                f"partition {number} has {len(ids)} rows and a y of shape "
                f"{target.shape}; it must be ({len(ids)},)"
            )
    return Part(features, names, ids, target)


def _with_weights(parts: list[Part], weights: Sequence[Any]) -> list[Part]:
    if isinstance(weights, np.ndarray) or is_frame(weights):
        raise ValueError(
            "sample_weight must be a list with an array, or None, for each partition"
        )
    if len(weights) != len(parts):
        raise ValueError(
            f"sample_weight has {len(weights)} entries for {len(parts)} partitions"
        )
    found = []
    for number, (part, own) in enumerate(zip(parts, weights, strict=True)):
        s = None if own is None else np.asarray(own, dtype=np.float64)
        if s is not None:
            check_weights(f"the weights of partition {number}", s, len(part.ids), 0.0)
        found.append(part._replace(weights=s))
    return found


def check_positive(weights: Array) -> None:
    """Raise ValueError unless every sample has a weight, and some are above 0."""
    missing = int(np.isnan(weights).sum())
    if missing:
        raise ValueError(f"{missing} samples have a weight nowhere, others have one")
    if not (weights > 0.0).any():
        raise ValueError("all sample weights are 0; some must be above 0")


def _by_rows(parts: list[Part], named: bool, targets: bool) -> Partitions:
    names = parts[0].names
    for number, part in enumerate(parts):
        if len(part.names) != len(names):
            raise ValueError(
                f"partition {number} has {len(part.names)} columns, partition 0 has "
                f"{len(names)}; where nodes hold different columns, give data frames"
            )
        if targets and (part.target is None or not known(part.target).all()):
            raise ValueError(
                f"partition {number} has rows without a target: with whole rows every "
                "one needs its own"
            )
        # frames may have the columns in any order; what rows are called says nothing
        if set(part.names) != set(names):
            raise ValueError(f"partition {number} has other columns than partition 0")
        features = part.features
        if part.names != names:
            features = features[:, [part.names.index(name) for name in names]]
        ids = tuple(f"{number}.{i}" for i in range(len(part.ids)))
        parts[number] = Part(features, names, ids, part.target, part.weights)
    return Partitions(tuple(parts), names, named, False)


def _by_columns(parts: list[Part], need_targets: bool) -> Partitions:
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    ids = tuple(dict.fromkeys(name for part in parts for name in part.ids))
    row = {name: i for i, name in enumerate(ids)}
    column = {name: j for j, name in enumerate(names)}
    holders = np.zeros((len(ids), len(names)), dtype=np.uint8)
    for number, part in enumerate(parts):
        if len(set(part.ids)) < len(part.ids):
            raise ValueError(f"partition {number} has a sample's index twice")
        rows = [row[name] for name in part.ids]
        holders[np.ix_(rows, [column[name] for name in part.names])] += 1
    _agreed(parts, "weight")
    targets = _agreed(parts, "target")
    for count, what in ((0, "nowhere"), (2, "in two partitions")):
        wrong = np.argwhere(holders == 0 if count == 0 else holders >= count)
        if len(wrong):
            i, j = wrong[0]
            raise ValueError(
                f"column {names[j]!r} of sample {ids[i]!r} is {what}: every value has "
                "one holder; keep the samples that all have, for example by "
                "frame.loc[first.index.intersection(second.index)]"
            )
    missing = [name for name in ids if name not in targets]
    if need_targets and missing:
        raise ValueError(
            f"{len(missing)} samples have a target nowhere, {missing[0]!r} among them"
        )
    return Partitions(tuple(parts), names, True, True)


def _agreed(parts: list[Part], what: str) -> dict[str, Any]:
    """Return each sample's target or weight; ValueError if it has two."""
    found: dict[str, Any] = {}
    for part in parts:
        values = part.target if what == "target" else part.weights
        if values is None:
            continue
        there = known(values)
        ids = np.array(part.ids, dtype=object)[there]
        for name, value in zip(ids, values[there], strict=True):
            if found.setdefault(name, value) != value:
                raise ValueError(f"sample {name!r} has two {what}s")
    return found
