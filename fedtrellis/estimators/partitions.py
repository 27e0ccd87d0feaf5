"""What ``fit`` is given, as what each node holds."""

from __future__ import annotations

from collections.abc import Sequence
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
    """What one node holds, of the samples with the numbers ``rows``.

    ``features`` is a float64 ndarray or CSR array of shape (n, p). A target is missing
    where it is None or NaN, a weight where it is NaN; None: all are.
    """

    features: Any
    names: tuple[str, ...]
    rows: NDArray[np.intp]
    targets: NDArray[Any] | None
    weights: Array | None = None


@dataclass(frozen=True)
class Partitions:
    """All nodes' parts, checked against each other; ``names`` are the model's features.

    ``ids`` are the samples', ``named``: whether names are those of data frames;
    ``split``: whether nodes hold different features, else each has whole rows.
    """

    parts: tuple[Part, ...]
    names: tuple[str, ...]
    ids: tuple[str, ...]
    named: bool
    split: bool

    @cached_property
    def first(self) -> list[NDArray[np.bool_]]:
        """Of each part, which samples no part before it holds."""
        seen, masks = np.zeros(len(self.ids), np.bool_), []
        for part in self.parts:
            masks.append(~seen[part.rows])
            seen[part.rows] = True
        return masks

    def joined(self, what: str) -> NDArray[Any]:
        """Return every sample's ``targets`` or ``weights``, (N,) objects, or None.

        ValueError: a sample has two.
        """
        found = np.full(len(self.ids), None, dtype=object)
        for part in self.parts:
            if (values := getattr(part, what)) is not None:
                there = known(values)
                rows, own = part.rows[there], values[there].astype(object)
                for i, old, new in zip(rows, found[rows], own, strict=True):
                    if old is not None and old != new:
                        raise ValueError(f"sample {self.ids[i]!r} has two {what}")
                found[rows] = own
        return found

    def weights(self) -> Array:
        """Return every sample's weight, (N,); NaN where it has none, 1 without any."""
        if all(part.weights is None for part in self.parts):
            return np.ones(len(self.ids))
        return self.joined("weights").astype(np.float64)

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

    def table(self, names: Sequence[str]) -> tuple[Array, NDArray[Any]]:
        """Return whole rows of these columns, and their targets."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise ValueError(f"no partition has the column {absent[0]!r}")
        column = {name: j for j, name in enumerate(names)}
        table = np.zeros((len(self.ids), len(names)))
        for part in self.parts:
            held = [j for j, name in enumerate(part.names) if name in column]
            values = part.features[:, held]
            if not isinstance(values, np.ndarray):
                values = values.toarray()
            columns = np.array([column[part.names[j]] for j in held])
            table[part.rows[:, None], columns] = values
        return table, self.joined("targets")


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
    one = isinstance(partitions, np.ndarray) or is_frame(partitions)
    if one or not len(partitions):
        raise ValueError(
            "fit takes a list of partitions, (X, y) pairs or data frames, or one X "
            "with its y: y is missing (requires y to be passed, but the target y is "
            "None)"
        )
    tables = [item[0] if isinstance(item, tuple) else item for item in partitions]
    named = [is_frame(table) for table in tables]
    if any(named) and not all(named):
        what = f"partition {named.index(False)} is no data frame, others are"
        raise ValueError(f"{what}; give all of them as frames, or none")
    given = _weights_of(partitions, weights)
    read = [_read(k, item, label, given[k]) for k, item in enumerate(partitions)]
    parts, indices = [part for part, _ in read], [index for _, index in read]
    split = named[0] and any(set(p.names) != set(parts[0].names) for p in parts[1:])
    if split:
        return _by_columns(parts, indices, targets)
    return _by_rows(parts, named[0], targets)


def _read(
    number: int, item: Any, label: str, weights: Any
) -> tuple[Part, tuple[str, ...]]:
    """Return a partition, and what its rows are called."""
    table, target = item if isinstance(item, tuple) else (item, None)
    if is_frame(table):
        if target is None and label in table.columns:
            target = table[label]
            table = table.drop(columns=label)
        names = tuple(str(name) for name in table.columns)
        ids = tuple(str(name) for name in table.index)
        # bool beside float, or a nullable dtype, would be objects
        real = table.select_dtypes(["number", "bool"], "timedelta").shape == table.shape
        as_float: Any = {"dtype": np.float64, "na_value": np.nan} if real else {}
        features = check_examples(f"partition {number}", table.to_numpy(**as_float))
    else:
        features = check_examples(f"partition {number}", table)
        names = tuple(f"x{j}" for j in range(features.shape[1]))
        ids = ("",) * features.shape[0]
    if len(set(names)) < len(names):
        raise ValueError(f"partition {number} has a column twice")
    count = len(ids)
    if target is not None:
        if not isinstance(getattr(target, "dtype", np.dtype("O")), np.dtype):
            target = target.astype(object).where(target.notna(), None)
        target = np.asarray(target)
        if target.dtype.kind in "mM":
            raise ValueError(f"partition {number} has a y of times, not of numbers")
        if target.shape != (count,):
            what = f"{count} rows and a y of shape {target.shape}"
            raise ValueError(f"partition {number} has {what}; it must be ({count},)")
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        check_weights(f"the weights of partition {number}", weights, count, 0.0)
    return Part(features, names, np.arange(count), target, weights), ids


def _weights_of(partitions: Sequence[Any], weights: Any) -> Sequence[Any]:
    if weights is None:
        return [None] * len(partitions)
    if isinstance(weights, np.ndarray) or is_frame(weights):
        what = "must be a list with an array, or None, for each partition"
        raise ValueError(f"sample_weight {what}")
    if len(weights) != len(partitions):
        found = f"{len(weights)} entries for {len(partitions)} partitions"
        raise ValueError(f"sample_weight has {found}")
    return list(weights)


def check_positive(weights: Array) -> None:
    """Raise ValueError unless every sample has a weight, and some are above 0."""
    missing = int(np.isnan(weights).sum())
    if missing:
        raise ValueError(f"{missing} samples have a weight nowhere, others have one")
    if not (weights > 0.0).any():
        raise ValueError("all sample weights are 0; some must be above 0")


def _by_rows(parts: list[Part], named: bool, targets: bool) -> Partitions:
    names, ids = parts[0].names, list[str]()
    for number, part in enumerate(parts):
        if len(part.names) != len(names):
            found = f"{len(part.names)} columns, partition 0 has {len(names)}"
            hint = "where nodes hold different columns, give data frames"
            raise ValueError(f"partition {number} has {found}; {hint}")
        if targets and (part.targets is None or not known(part.targets).all()):
            why = "with whole rows every one needs its own"
            raise ValueError(f"partition {number} has rows without a target: {why}")
        # frames may have the columns in any order; what rows are called says nothing
        if set(part.names) != set(names):
            raise ValueError(f"partition {number} has other columns than partition 0")
        features = part.features
        if part.names != names:
            features = features[:, [part.names.index(name) for name in names]]
        own = {"features": features, "names": names, "rows": len(ids) + part.rows}
        parts[number] = part._replace(**own)
        ids += [f"{number}.{i}" for i in range(len(part.rows))]
    return Partitions(tuple(parts), names, tuple(ids), named, False)


def _by_columns(
    parts: list[Part], indices: list[tuple[str, ...]], need_targets: bool
) -> Partitions:
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    ids = tuple(dict.fromkeys(name for index in indices for name in index))
    row = {name: i for i, name in enumerate(ids)}
    column = {name: j for j, name in enumerate(names)}
    holders = np.zeros((len(ids), len(names)), dtype=np.uint8)
    for number, (part, index) in enumerate(zip(parts, indices, strict=True)):
        if len(set(index)) < len(index):
            raise ValueError(f"partition {number} has a sample's index twice")
        rows = np.array([row[name] for name in index], np.intp)
        parts[number] = part._replace(rows=rows)
        columns = np.array([column[name] for name in part.names], np.intp)
        holders[rows[:, None], columns] += 1
    found = Partitions(tuple(parts), names, ids, True, True)
    found.weights()
    targets = found.joined("targets")
    for wrong, what in ((holders == 0, "nowhere"), (holders > 1, "in two partitions")):
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise ValueError(
                f"column {names[j]!r} of sample {ids[i]!r} is {what}: every value has "
                "one holder; keep the samples that all have, for example by "
                "frame.loc[first.index.intersection(second.index)]"
            )
    missing = [name for name, y in zip(ids, targets, strict=True) if y is None]
    if need_targets and missing:
        what = f"{len(missing)} samples have a target nowhere"
        raise ValueError(f"{what}, {missing[0]!r} among them")
    return found
