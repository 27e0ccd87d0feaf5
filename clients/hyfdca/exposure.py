"""What sums over all clients would give away of one of them."""

from __future__ import annotations

import numpy as np

from fedtrellis.dual.agreement import feature_digests
from fedtrellis.dual.columns import STATISTICS
from fedtrellis.dual.weights import BALANCED, labels_of, normalised, outweighed
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray

from .node import entry_counts
from .run import ClientRun, IntArray, moving

__all__ = ["check_exposed", "check_weights_hidden"]

# How many features or groups an error names
_NAMED = 5


def check_exposed(run: ClientRun) -> None:
    """Refuse a run whose sums give single numbers of this client away.

    A sum hides its terms only if there are several: several holders of a feature,
    several entries of it on this client, several samples in a group, several samples
    outside of a group of categories.
    """
    rules, config, agreement = run.rules, run.config, run.agreement
    names, own = run.part.feature_names, agreement.index(run.part.client_id)
    shown: list[str] = []
    if run.node.kind == "roster" and config["encryption"] == "none":
        shown.append("nothing is encrypted (encryption = 'none')")
    if not config["secure-sum"]:
        shown.append("secure-sum is off (each client's own sums travel in the clear)")
    number = {digest: m for m, digest in enumerate(agreement.features)}
    columns = [number[digest] for digest in feature_digests(names)]
    holders = agreement.holders_of_features[columns].tolist()
    counts = entry_counts(run.features).tolist()
    few = [
        f"feature {name!r} has {count} holder{'s' * (count > 1)}"
        for name, count, entries in zip(names, holders, counts, strict=True)
        if count < rules.least and entries
    ]
    rare = [
        f"feature {name!r} is not zero in {count} of its samples only"
        for name, count in zip(names, counts, strict=True)
        if 0 < count < rules.least
    ]
    fraction = config["local-fraction"]
    sizes = [
        moving(agreement.groups[g][1], fraction) for g in agreement.held_groups(own)
    ]
    some = " that move in one step" * (fraction < 1.0)
    small = [
        f"{sizes.count(size)} group{'s' * (sizes.count(size) > 1)} of samples with "
        f"the same holders of size {size}{some}"
        for size in sorted({size for size in sizes if size < rules.least})
    ]
    thin: list[str] = []
    if config["standardize"]:
        # two sums are two equations for a column's entries
        least = rules.least + STATISTICS
        thin = [
            f"feature {name!r} is not zero in {count} of its samples only, and "
            f"standardize needs {least}"
            for name, count in _few_values(run, least)
        ]
    left = _left_by_categories(run, rules.least)
    for found in (few, rare, thin, left, small):
        shown += found[:_NAMED]
        if len(found) > _NAMED:
            shown.append(f"and {len(found) - _NAMED} more like that")
    out = ", or 'leave-out' to leave the rare entries out" if rare else ""
    _refuse(run, "; ".join(shown), out)


def check_weights_hidden(run: ClientRun, balanced: bool) -> None:
    """Refuse a run whose sums show samples that weigh much more than others.

    ``balanced``: whether the classes' totals are known, which those weights need.
    """
    rules, config = run.rules, run.config
    groups = run.held.values()
    if balanced:
        found = [run.weights_of(held) for held in groups]
        rows = np.concatenate([one for one in found if one is not None], axis=1)
    else:
        # up to a factor
        rule = config["class-weight"]
        rows = normalised(
            run.sample_weights,
            run.state["labels"],
            config["classes"],
            "" if isinstance(rule, str) else rule,
            np.ones(1),
            1,
        )
    rows = np.unique(rows, axis=0)
    shown: list[str] = []
    if balanced and config["class-weight"] == BALANCED and not config["weighted"]:
        # a rare class's sum would be nearly its few rows
        totals = zip(labels_of(config["classes"]), run.state["totals"], strict=True)
        shown += [
            f"class {label:g}, which {count:g} of all samples have"
            for label, count in totals
            if count < rules.least
        ]
    small = sum(
        any(outweighed(s[held.own], rules.least) for s in rows) for held in groups
    )
    if small:
        shown.append(f"{small} group{'s' * (small > 1)} of samples")
    names = _outweighed_columns(run, rows)
    shown += [f"feature {name!r}" for name in names[:_NAMED]]
    if len(names) > _NAMED:
        shown.append(f"and {len(names) - _NAMED} features more")
    few = f"a few samples outweigh the rest in {', '.join(shown)}" if shown else ""
    _refuse(run, few)


def _refuse(run: ClientRun, shown: str, or_else: str = "") -> None:
    """Refuse the run if anything is shown, unless the node's owner accepts it."""
    if not shown or run.rules.exposed == "accept":
        return
    who, least = run.who, run.rules.least
    start = f"sums would give single numbers of {who} away (least = {least})"
    end = (
        f"Its node allows it with exposed = 'accept'{or_else}, or with a smaller least "
        "(in a simulation hyfdca.exposed, hyfdca.least)"
    )
    raise run.refusal(
        SettingsError,
        f"{start}: {shown}. {end}",
        f"{start}: its node's log says which. {end}",
    )


def _few_values(run: ClientRun, least: int) -> list[tuple[str, int]]:
    """Features of which Σ x and Σ x² would give single entries away.

    With fewer than ``least`` entries that are not 0, unless all of them are equal: then
    the sums say how many, and what.
    """
    counts = entry_counts(run.features)
    found = []
    for m in np.flatnonzero((counts > 0) & (counts < least)).tolist():
        column = np.asarray(run.features[:, [m]] @ np.ones(1)).ravel()
        if len(np.unique(column[column != 0.0])) > 1:
            found.append((str(run.part.feature_names[m]), int(counts[m])))
    return found


def _left_by_categories(run: ClientRun, least: int) -> list[str]:
    """Groups of binary columns that nearly all samples have one of.

    The constant column's sum less those of a group is one over the samples that have
    none of its columns. Groups are runs of neighbours, as one-hot columns stand.
    """
    from scipy import sparse

    columns = sparse.csc_array(run.features)
    columns.eliminate_zeros()
    left = np.ones(columns.shape[0], dtype=np.bool_)
    group: list[tuple[str, IntArray]] = []
    found = []
    for m, name in enumerate(run.part.feature_names):
        entries = slice(columns.indptr[m], columns.indptr[m + 1])
        rows = columns.indices[entries].astype(np.int64)
        if len(np.unique(columns.data[entries])) != 1:
            continue
        while not left[rows].all():  # no two of a group's columns have one sample
            left[group.pop(0)[1]] = True
        left[rows] = False
        group.append((str(name), rows))
        count = int(left.sum())
        if 0 < count < least:
            found.append(
                f"features {group[0][0]!r} to {name!r} are all zero in {count} of its "
                "samples only"
            )
    return found


def _outweighed_columns(run: ClientRun, rows: FloatArray) -> list[str]:
    """Features of which a few samples have nearly all weight."""
    from scipy import sparse

    least = run.rules.least
    in_rows = np.zeros((len(rows), run.features.shape[0]))
    in_rows[:, run.state["rows"].astype(np.int64)] = rows
    columns = sparse.csc_array(run.features)
    columns.eliminate_zeros()
    names = []
    for m, name in enumerate(run.part.feature_names):
        entries = slice(columns.indptr[m], columns.indptr[m + 1])
        where, values = columns.indices[entries], columns.data[entries]
        # two sums more for each column, of which it takes two entries more to hide;
        # of equal entries their number gives the column away in any case
        more = run.config["standardize"] and len(np.unique(values)) > 1
        need = least + STATISTICS * bool(more)
        if len(where) and any(outweighed(s[where], need) for s in in_rows):
            names.append(str(name))
    return names
