"""What clients share once they agree: labels, norms, weights, sums of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as Ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from numpy.typing import NDArray

from fedtrellis.dual.agreement import needs_norms
from fedtrellis.dual.columns import in_parts
from fedtrellis.dual.weights import weight_totals
from fedtrellis.encryption import Cipher, remove_run_key
from fedtrellis.encryption.fixed_point import RangeError
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import RestoreNeededError

from .exposure import check_weights_hidden
from .matching import keyed_hashes
from .node import column_sums, squared_norms
from .run import ClientRun, as_arrays, as_bytes

__all__ = ["LabelError", "finish", "learn", "ready", "send_labels", "send_sums"]

Arrays = list[NDArray[Any]]
IntArray = NDArray[np.int64]


class LabelError(CodedError):
    """The clients' labels do not fit together."""

    code = "labels"


def learn(run: ClientRun, check: bool = False) -> None:
    """Open a run, and take what sums say that came along.

    With ``check`` labels and weights of several clients must not contradict each other
    (LabelError), and no few samples outweigh all others (SettingsError).
    """
    run.open()
    if "labels" not in run.state:
        _take_labels(run, check)
    needed = ["scales"] * run.config["standardize"] + ["totals"] * run.weighs
    if any(key not in run.state for key in needed):
        _take_sums(run)
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
        if run.config["standardize"]:
            _take_sums(run)
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
    without the key a tag says nothing but whether two clients have it. Only of
    features that another holder of these samples has too.
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
    missing = int((counts == 0).sum())
    if missing:
        private = f"{missing} samples have {what} on none of their holders"
        raise run.refusal(LabelError, private, public)
    known, here = own
    wrong = int(((known > 0) & (np.abs(values - here) > 1e-9)).sum())
    if wrong:
        private = f"{wrong} samples have other {what} on another client"
        raise run.refusal(LabelError, private, public)
    return values


# -------------------------------------------------------------- sums over all clients


def send_sums(run: ClientRun) -> Arrays:
    """Sums of columns and of weights, hidden in those over all who have them.

    Σ x and Σ x² of each column with ``standardize``, shape (PARTS · 2 · p_k,); with
    samples' weights Σ s x and Σ s x², and Σ s over the samples of which this client is
    the first to hold the column. Then the totals that weights are normalised by.
    """
    run.open()
    answered = run.answered()
    if answered is not None:
        return [answered]
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
        raise SettingsError(
            f"{run.who}: a column's sum of squares is too large, or not finite, and "
            "cannot be hidden"
        ) from None
    return [run.hidden(rows.reshape(-1, sums.shape[1]), ends.reshape(-1))]


def _column_sums(run: ClientRun) -> FloatArray:
    """Statistics of the columns, shape (2, p_k), or with weights (3, p_k)."""
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
    """Return this client's term of the sums that weights are normalised by.

    Of the samples that it is the first holder of, so that each counts once.
    """
    s, y = run.sample_weights, run.state["labels"]
    first = np.zeros(len(y), dtype=np.bool_)
    for g, held in run.held.items():
        first[held.own] = run.holders(g)[0] == run.part.client_id
    rule, classes = run.config["class-weight"], run.config["classes"]
    return weight_totals(s[first], y[first], classes, rule)


def _take_sums(run: ClientRun) -> None:
    """Take the means and scales of the columns, and what weights are normalised by."""
    columns = ("means", "column-means"), ("scales", "column-scales")
    wanted = [*columns] * run.config["standardize"]
    for key, entry in wanted + [("totals", "weight-totals")] * run.weighs:
        if entry not in run.config:
            raise RestoreNeededError(f"this client has no {entry}")
        run.state[key] = np.array(run.config[entry], dtype=np.float64)
