"""What clients do before round 1: names, an agreement, labels, norms, weights, sums."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as Ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES, feature_digests, needs_norms
from fedtrellis.dual.weights import (
    BALANCED,
    STATISTICS,
    in_parts,
    labels_of,
    normalised,
    outweighed,
    weight_totals,
)
from fedtrellis.encryption import Cipher, intersection, remove_run_key
from fedtrellis.encryption.fixed_point import RangeError
from fedtrellis.encryption.releases import OwnRows, ReleaseMemory
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.broadcast import RestoreNeededError

from .run import (
    Arrays,
    ClientRun,
    IntArray,
    as_arrays,
    as_bytes,
    column_sums,
    moving,
    squared_norms,
)

# So that one of them and the server together cannot try ids.
_EVALUATORS = 2


def blind(run: ClientRun) -> Arrays:
    """Blinded ids, where the clients have no common key to hash them under."""
    _check_data(run)
    part = run.part
    new = [] if part.new_samples is None else part.new_samples.sample_ids
    # new samples' are ids of another kind
    ids = [f"sample {i}" for i in part.sample_ids] + [f"new {i}" for i in new]
    return [intersection.blind(ids, _secret(run, "blind"), run.config["session"])]


def evaluate_points(run: ClientRun) -> Arrays:
    """Every client's points times this evaluator's secret."""
    scalar, count = _secret(run, "evaluate"), len(run.config["owners"])
    points = [_points(run.config[f"points/{i}"]) for i in range(count)]
    return [intersection.evaluate(own, scalar) for own in points]


def _check_data(run: ClientRun) -> None:
    try:
        run.part.check_data(run.config)
    except SettingsError as error:
        public = f"{run.who}: its data cannot be used; its node's log says why"
        raise run.refusal(SettingsError, str(error), public) from None


def _secret(run: ClientRun, purpose: str) -> int:
    if run.node.kind != "roster":
        raise SettingsError(f"{run.who} has no identity and roster to blind ids with")
    secret = run.node.identity.derive(purpose, run.config["session"])
    return intersection.scalar_from(secret)


def _points(data: bytes) -> NDArray[np.uint8]:
    """Points of the curve, shape (n, 32), as a request has them."""
    return as_bytes(data).reshape(-1, intersection.POINT_BYTES)


def _pseudonyms(run: ClientRun) -> NDArray[np.uint8]:
    """The samples' hashes, then the new samples': shape (n + n_new, 16)."""
    if run.node.kind == "roster":
        points = [_points(run.config[f"points/{i}"]) for i in range(_EVALUATORS)]
        scalar = _secret(run, "blind")
        unblinded = [intersection.unblind(one, scalar) for one in points]
        return intersection.pseudonyms(*unblinded)
    # of this run alone: an id has another name in the next
    kinds = {"sample": run.part.sample_ids}
    if run.part.new_samples is not None:
        kinds["new-sample"] = run.part.new_samples.sample_ids
    session, key, hashes = run.config["session"], run.common_key, b""
    for kind, ids in kinds.items():
        hashes += keyed_hashes(key, (kind, session), ids, HASH_BYTES)
    return as_bytes(hashes).reshape(-1, HASH_BYTES)


def keyed_hashes(
    cipher: Cipher, purpose: tuple[str, ...], names: Sequence[str], length: int
) -> bytes:
    """HMAC-SHA256 of each name under a key of clients, cut to ``length`` bytes."""
    key = cipher.derive("alignment", *purpose)
    return b"".join(
        hmac.digest(key, str(name).encode(), hashlib.sha256)[:length] for name in names
    )


def align(run: ClientRun) -> Arrays:
    """Hashes of the samples' ids, features' names, which key this is, a fresh key."""
    _check_data(run)
    hashes = _pseudonyms(run)
    n = len(run.part.sample_ids)
    own = run.block.introduce(run.config["session"].encode())
    answer = [
        hashes[:n],
        as_bytes("\n".join(run.part.feature_names).encode()),
        as_bytes(own.key.encode()),
        as_bytes(own.fresh),
        hashes[n:],
    ]
    if run.config["send-context"]:
        answer.append(as_bytes(run.common_key.evaluation_bytes()))
    return answer


def agree(run: ClientRun) -> Arrays:
    """Check what the server wrote down; returns the keys that are drawn for others."""
    run.pin()
    if run.node.kind != "roster" and run.common_key.name != run.config["encryption"]:
        raise SettingsError(
            f"{run.who}: encryption = {run.config['encryption']!r} on the server, but "
            f"the key is of backend {run.common_key.name!r}"
        )
    check_exposed(run)
    run.block.agree(*run.agreed_on, _rows(run))
    return as_arrays(run.sealed_keys())


def _rows(run: ClientRun) -> OwnRows:
    """The client's rows; without a file of the node's what it was given must do."""
    part = run.part
    given = part.features, part.labels, part.weights
    return part.rows or OwnRows(tuple(part.feature_names), given)


# --------------------------------------------------------- what sums would give away

# How many features or groups an error names
_NAMED = 5
#: A feature's name, the rows where it is not zero, and what is there.
Entries = tuple[str, IntArray, NDArray[Any]]


def check_exposed(run: ClientRun) -> None:
    """Refuse a run whose sums give single numbers of this client away.

    A sum hides its terms only if there are several: several holders of a feature,
    several entries of it on this client, several samples in a group, several samples
    outside of a group of categories.
    """
    config, agreement, least = run.config, run.agreement, run.rules.least
    entries = list(_entries(run))
    shown: list[str] = []
    if run.node.kind == "roster" and config["encryption"] == "none":
        shown.append("nothing is encrypted (encryption = 'none')")
    if not config["secure-sum"]:
        if run.rules.noise:
            raise SettingsError(f"{run.who}: noise needs hyfdca.secure-sum = true")
        shown.append("secure-sum is off (each client's own sums travel in the clear)")
    number = {digest: m for m, digest in enumerate(agreement.features)}
    columns = [number[digest] for digest in feature_digests(run.part.feature_names)]
    holders = agreement.holdings.sum(axis=0)[columns].tolist()
    few = [
        f"{name!r} {count}"
        for (name, rows, _), count in zip(entries, holders, strict=True)
        if count < least and len(rows)
    ]
    if few:
        shown.append(
            f"{len(few)} of its features have fewer than {least} holders, {few[0]} "
            "(let more nodes hold them; in a simulation partition = 'horizontal' does)"
        )
    rare = [
        f"feature {name!r} is not zero in {len(rows)} of its samples only"
        for name, rows, _ in entries
        if 0 < len(rows) < least
    ]
    fraction = config["local-fraction"]
    sizes = [moving(held.size, fraction) for held in run.held.values()]
    some = " that move in one step" * (fraction < 1.0)
    small = [
        f"{sizes.count(size)} group{'s' * (sizes.count(size) > 1)} of samples with "
        f"the same holders of size {size}{some}"
        for size in sorted({size for size in sizes if size < least})
    ]
    # two sums are two equations for a column's entries, unless all of them are equal:
    # then the sums say how many, and what
    need = least + STATISTICS
    thin = [
        f"feature {name!r} is not zero in {len(rows)} of its samples only, and "
        f"standardize needs {need}"
        for name, rows, values in entries
        if config["standardize"] and 0 < len(rows) < need
        if len(np.unique(values)) > 1
    ]
    left = _left_by_categories(entries, run.features.shape[0], least)
    for found in (rare, thin, left, small):
        shown += _some(found)
    out = ", or 'leave-out' to leave the rare entries out" if rare else ""
    _refuse(run, "; ".join(shown), out)


def check_weights_hidden(run: ClientRun, balanced: bool) -> None:
    """Refuse a run whose sums show samples that weigh much more than others.

    ``balanced``: whether the classes' totals are known, which those weights need.
    """
    config, least, groups = run.config, run.rules.least, run.held.values()
    if balanced:
        found = [run.weights_of(held) for held in groups]
        weights = np.concatenate([one for one in found if one is not None], axis=1)
    else:
        # up to a factor
        rule, y = config["class-weight"], run.state["labels"]
        rule = "" if isinstance(rule, str) else rule
        own = run.sample_weights, y, config["classes"], rule
        weights = normalised(*own, np.ones(1), 1)
    weights = np.unique(weights, axis=0)
    shown: list[str] = []
    if balanced and config["class-weight"] == BALANCED and not config["weighted"]:
        # a rare class's sum would be nearly its few rows
        totals = zip(labels_of(config["classes"]), run.state["totals"], strict=True)
        shown += [
            f"class {label:g}, which {count:g} of all samples have"
            for label, count in totals
            if count < least
        ]
    small = sum(any(outweighed(s[held.own], least) for s in weights) for held in groups)
    if small:
        shown.append(f"{small} group{'s' * (small > 1)} of samples")
    in_rows = np.zeros((len(weights), run.features.shape[0]))
    in_rows[:, run.state["rows"].astype(np.int64)] = weights
    features = []
    for name, rows, values in _entries(run):
        # two sums more for each column, of which it takes two entries more to hide;
        # of equal entries their number gives the column away in any case
        more = config["standardize"] and len(np.unique(values)) > 1
        need = least + STATISTICS * bool(more)
        if len(rows) and any(outweighed(s[rows], need) for s in in_rows):
            features.append(f"feature {name!r}")
    shown += _some(features)
    few = f"a few samples outweigh the rest in {', '.join(shown)}" if shown else ""
    _refuse(run, few)


def _some(found: list[str]) -> list[str]:
    """The first of them, and how many there are more."""
    more = len(found) - _NAMED
    return found[:_NAMED] + [f"and {more} more like that"] * (more > 0)


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
    private = f"{start}: {shown}. {end}"
    public = f"{start}: its node's log says which. {end}"
    raise run.refusal(SettingsError, private, public)


def _entries(run: ClientRun) -> Iterator[Entries]:
    """Of each feature its name, the rows where it is not zero, and what is there."""
    from scipy import sparse

    columns = sparse.csc_array(run.features)
    columns.eliminate_zeros()
    for m, name in enumerate(run.part.feature_names):
        own = slice(columns.indptr[m], columns.indptr[m + 1])
        yield str(name), columns.indices[own].astype(np.int64), columns.data[own]


def _left_by_categories(entries: list[Entries], n: int, least: int) -> list[str]:
    """Groups of binary columns that nearly all samples have one of.

    The constant column's sum less those of a group is one over the samples that have
    none of its columns. Groups are runs of neighbours, as one-hot columns stand.
    """
    left = np.ones(n, dtype=np.bool_)
    group: list[tuple[str, IntArray]] = []
    found = []
    for name, rows, values in entries:
        if len(np.unique(values)) != 1:
            continue
        while not left[rows].all():  # no two of a group's columns have one sample
            left[group.pop(0)[1]] = True
        left[rows] = False
        group.append((name, rows))
        count = int(left.sum())
        if 0 < count < least:
            found.append(
                f"features {group[0][0]!r} to {name!r} are all zero in {count} of its "
                "samples only"
            )
    return found


# -------------------------------------------------------------------------- opening


class LabelError(CodedError):
    """The clients' labels do not fit together."""

    code = "labels"


def learn(run: ClientRun, check: bool = False, openly: bool = False) -> None:
    """Open a run, and take (``check``: and check) what sums say that came along."""
    run.open()
    if openly and run.config["secure-sum"]:
        raise SettingsError(f"{run.who}: it was agreed that sums are hidden")
    # a file may have changed since the agreement
    names = [one.name for one in run.agreement.members]
    ReleaseMemory(run.node, run.config["session"]).admit(names, _rows(run))
    if "labels" not in run.state:
        _take_labels(run, check)
    _take_sums(run, run.weighs)
    if check and run.weighs:
        check_weights_hidden(run, balanced=True)


def ready(run: ClientRun) -> Arrays:
    """Check the key, and the labels of all holders against each other."""
    learn(run, check=True)
    return []


def finish(run: ClientRun) -> Arrays:
    """Remove the key that the clients of this machine made for the run."""
    if run.config.get("forget-key") and run.node.kind == "run":
        remove_run_key(run.config["session"])
    return []


# ------------------------------------------------------------------------------ labels


def _known(values: NDArray[Any] | None, n: int) -> tuple[FloatArray, FloatArray]:
    """1 where there is a value, and the value (0 where there is none)."""
    if values is None:
        return np.zeros(n), np.zeros(n)
    numbers = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(numbers)
    return known.astype(np.float64), np.where(known, numbers, 0.0)


def send_labels(run: ClientRun) -> Arrays:
    """Labels, whether there are any, and ‖x_{k,i}‖² if need be, encrypted."""
    run.open()
    n = run.features.shape[0]
    known, labels = _known(run.part.labels, n)
    sent = {"labels": labels, "counts": known}
    if needs_norms(run.config):
        _take_sums(run, weighs=False)
        sent["norms"] = squared_norms(run.columns)
    if run.config["weighted"]:
        sent["weight-counts"], sent["weights"] = _known(run.part.weights, n)
    blobs: list[bytes] = []
    for g, held in run.held.items():
        for what, values in sent.items():
            blobs += run.encrypt(run.holders(g), (what, g), values[held.rows])
    answer = as_arrays(blobs)
    for g in run.config.get("tag-groups", []):
        others = [name for name in run.holders(g) if name != run.part.client_id]
        shared = [run.shared_columns[name] for name in others]
        columns = np.unique(np.concatenate([np.zeros(0, np.int64), *shared]))
        rows = run.held[g].rows
        answer.append(_entry_tags(run, run.cipher(run.holders(g)), rows, columns))
    return answer


def _entry_tags(
    run: ClientRun, cipher: Cipher, rows: IntArray, columns: IntArray
) -> NDArray[np.uint8]:
    """A number for each non-zero entry, to find those that are held twice.

    AES of 64 bits of the sample's keyed hash and 64 of the feature's, cut to 64:
    without the key a tag says nothing but whether two clients have it.
    """
    from scipy import sparse

    own = sparse.csr_array(run.features)[rows][:, columns].tocoo()
    entries = own.data != 0.0
    ids = [run.part.sample_ids[i] for i in rows]
    names = [run.part.feature_names[m] for m in columns]
    samples = np.frombuffer(keyed_hashes(cipher, ("entry-sample",), ids, 8), "<u8")
    features = np.frombuffer(keyed_hashes(cipher, ("entry-feature",), names, 8), "<u8")
    i, m = own.coords[0][entries], own.coords[1][entries]
    blocks = np.stack([samples[i], features[m]], axis=1).astype("<u8").tobytes()
    key = cipher.derive("entry tags")
    # each block is another one, and nothing is to be decrypted
    aes = Ciphers(algorithms.AES(key), modes.ECB()).encryptor()
    words = np.frombuffer(aes.update(blocks) + aes.finalize(), "<u8")
    return as_bytes(np.sort(words[::2]).tobytes())


def _take_labels(run: ClientRun, check: bool) -> None:
    """Take labels, norms and weights from the sums over the holders."""
    config = run.config
    if not any(key.startswith("labels/") for key in config):
        raise RestoreNeededError("this client has no labels")
    n = run.features.shape[0]
    found: dict[str, list[FloatArray]] = {"labels": [], "norms": [], "weights": []}
    shared = ["labels", "counts", *["norms"] * needs_norms(config)]
    if config["weighted"]:
        shared += ["weights", "weight-counts"]
    for g, held in run.held.items():
        holders = run.holders(g)
        sums = {
            what: run.decrypt(holders, config[f"{what}/{g}"], (what, g), held.size)
            for what in shared
        }
        own = [one[held.rows] for one in _known(run.part.labels, n)]
        y = _mean(run, "labels", sums["labels"], sums["counts"], own, check)
        # a mean of rounded sums is a label to the resolution; a sign exactly
        found["labels"].append(np.rint(y) if run.loss.labels == "signs" else y)
        if "norms" in sums:
            found["norms"].append(np.maximum(sums["norms"], 0.0))
        if config["weighted"]:
            own = [one[held.rows] for one in _known(run.part.weights, n)]
            counts = sums["weight-counts"]
            s = _mean(run, "weights", sums["weights"], counts, own, check)
            # exact where they have 40 fractional bits, as whole numbers do
            found["weights"].append(np.maximum(s, 0.0))
    run.state.update(
        {key: np.concatenate(parts) for key, parts in found.items() if parts}
    )


def _mean(
    run: ClientRun,
    what: str,
    sums: FloatArray,
    counts: FloatArray,
    own: list[FloatArray],
    check: bool,
) -> FloatArray:
    """The values of a group's samples, of which each holder that has one sent it."""
    values: FloatArray = sums / np.maximum(counts, 1.0)
    if not check:
        return values
    public = f"the {what} do not fit together: its node's log says how many"
    known, here = own
    for wrong, where in (
        (counts == 0, f"{what} on none of their holders"),
        (
            (known > 0) & (np.abs(values - here) > 1e-9),
            f"other {what} on another client",
        ),
    ):
        if wrong.any():
            private = f"{int(wrong.sum())} samples have {where}"
            raise run.refusal(LabelError, private, public)
    return values


# -------------------------------------------------------------- sums over all clients


def send_sums(run: ClientRun) -> Arrays:
    """Sums of columns and of weights, hidden in those over all who have them."""
    run.open()
    sums, totals = np.zeros((0, len(run.part.feature_names))), np.zeros(0)
    if run.weighs:
        if "labels" not in run.state:
            _take_labels(run, True)
        check_weights_hidden(run, balanced=False)
        totals = _own_totals(run)
    if run.config["standardize"]:
        sums = _column_sums(run)
    terms = len(run.agreement.members)
    try:
        rows, ends = (in_parts(numbers, terms) for numbers in (sums, totals))
    except RangeError:
        why = "a column's sum of squares is too large, or not finite, to be hidden"
        raise SettingsError(f"{run.who}: {why}") from None
    return [run.hidden(rows.reshape(-1, sums.shape[1]), ends.reshape(-1))]


def _column_sums(run: ClientRun) -> FloatArray:
    """Σ x and Σ x² of each column, shape (2, p_k).

    With weights Σ s x, Σ s x², and Σ s over the samples of which this client is the
    first to hold the column, shape (3, p_k).
    """
    if not run.config["weighted"]:
        return column_sums(run.features)
    s = np.empty(run.features.shape[0])
    mass = np.zeros(len(run.part.feature_names))
    for g, held in run.held.items():
        own = run.sample_weights[held.own]
        s[held.rows] = own
        mass += own[held.by_row].sum() * run.first_columns(g, False)
    return np.vstack([column_sums(run.features, s), mass])


def _own_totals(run: ClientRun) -> FloatArray:
    """The sums that weights are normalised by, of samples that no holder before has."""
    s, y = run.sample_weights, run.state["labels"]
    first = np.zeros(len(y), dtype=np.bool_)
    for g, held in run.held.items():
        first[held.own] = run.holders(g)[0] == run.part.client_id
    rule, classes = run.config["class-weight"], run.config["classes"]
    return weight_totals(s[first], y[first], classes, rule)


def _take_sums(run: ClientRun, weighs: bool) -> None:
    """Take the means and scales of the columns, and what weights are normalised by."""
    columns = ("means", "column-means"), ("scales", "column-scales")
    wanted = [*columns] * run.config["standardize"]
    for key, entry in wanted + [("totals", "weight-totals")] * weighs:
        if key in run.state:
            continue
        if entry not in run.config:
            raise RestoreNeededError(f"this client has no {entry}")
        run.state[key] = np.array(run.config[entry], dtype=np.float64)
