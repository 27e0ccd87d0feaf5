"""What a node remembers of the runs that it took part in, and what it refuses for that.

The difference of two sums over data sets that differ by a few rows is the sum of these
rows, whatever hides each sum's terms. So a node with keys keeps, beside them, the keyed
hashes of the rows behind each of its releases, with the block and the columns; before
it agrees to a block it compares.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.encryption.node_file import NodeFile, private_folder
from fedtrellis.encryption.node_secrets import NodeSecrets, for_good
from fedtrellis.encryption.symmetric import encode_items
from fedtrellis.settings import SettingsError

#: Rows that two releases may differ by, at least; ``least-rows`` of the node config.
LEAST_ROWS = 10

_HASH_BYTES = 16
# Rows are compared by so many first parts each: a run that reads other labels of them,
# or none, has the same features
_PARTS = (1, 2, 3)
_MODELS = 100


class ReleaseError(SettingsError):
    """What a run would give away beside others; ``detail`` is for the node's log."""

    def __init__(self, detail: str) -> None:
        super().__init__("this node's memory of earlier runs refuses; its log says why")
        self.detail = detail


class OwnRows(NamedTuple):
    """A node's rows as they are in its file, before any preparation.

    A client has them as its attribute ``rows``, which tasks set for files of the nodes'
    own. Without it (a user's own objective) a node compares the block alone. ``parts``
    are arrays of one entry a row, or CSR: features, targets, weights, whatever there is
    (or None). Ids are no part of a row: whoever numbers anew has the same rows.
    """

    columns: tuple[str, ...]
    parts: tuple[Any, ...]

    def is_of(self, other: OwnRows | None) -> bool:
        """Whether both are of the very same arrays."""
        if other is None or self.columns != other.columns:
            return False
        return [id(part) for part in self.parts] == [id(part) for part in other.parts]

    def texts(self, parts: int | None = None) -> list[bytes]:
        """Each row as bytes, of all its parts or the first ones.

        Dense or sparse, they are the same; each time that a row occurs, other ones.
        """
        kinds: list[list[bytes]] = []
        for part in self.parts[:parts]:
            if part is None:
                continue
            if isinstance(part, np.ndarray) and part.ndim == 1:
                kinds.append([(row + 0.0).tobytes() for row in part])  # -0.0 is 0.0
                continue
            part = scipy.sparse.csr_array(part, copy=True)
            part.sum_duplicates()  # and in order
            part.eliminate_zeros()
            columns, values = part.indices.astype(np.int64), part.data.astype(float)
            both = (
                np.split(numbers, part.indptr[1:-1]) for numbers in (columns, values)
            )
            kinds.append(
                [i.tobytes() + x.tobytes() for i, x in zip(*both, strict=True)]
            )
        seen: Counter[bytes] = Counter()
        result = []
        for row in map(b"|".join, zip(*kinds, strict=True)):
            seen[row] += 1
            result.append(encode_items("row", row, seen[row]))
        return result


# What a process has found in order, so that it need not compare in each round.
_SETTLED: dict[Any, tuple[Any, ...]] = {}


class ReleaseMemory:
    """The memory of a client's node; a simulation's clients have none.

    ``releases`` of the node config says what the owner makes of what would be refused:
    ``"refuse"``, ``"once"`` (one run is taken and remembered; the next one only after
    the node took part in a run with ``"refuse"``) or ``"accept"``. ``least-rows`` is
    how many rows a new cell of the Venn diagram of all releases' rows must have.
    ``session`` is the run.
    """

    def __init__(self, node: NodeSecrets, session: str) -> None:
        self._node, self._session = node, session
        self._choice = node.choice("releases", ("refuse", "once", "accept"))
        self._least = node.number("least-rows", LEAST_ROWS)
        self._folder = node.lasting_folder()

    def _open(self, what: str) -> tuple[NodeFile, dict[str, Any], bytes]:
        """A file of the memory, and what it has; a SettingsError if it is damaged."""
        assert self._folder is not None
        with for_good():
            folder = private_folder(self._folder)
            mark = hashlib.sha256(encode_items("releases", self._node.lasting_name))
            name = f"{mark.hexdigest()[:32]}.{what}"
            file = NodeFile(folder / name, durable=True)
            return file, *file.read()

    def admit(self, names: Sequence[str], rows: OwnRows | None) -> None:
        """Compare a run's block and rows with those of earlier ones; remember them.

        A ReleaseError: they give away a few rows or a client, and the owner does not
        accept it. A SettingsError: the memory is damaged or cannot be written.
        """
        place, run = (self._folder, self._node.client), (self._session, [*names])
        before, rows_before = _SETTLED.get(place, (None, None))
        same = rows.is_of(rows_before) if rows else rows_before is None
        if self._folder is None or (before == run and same):
            return
        file, content, blob = self._open("releases")
        was = dict(content), blob
        key = bytes.fromhex(content.setdefault("secret", secrets.token_hex(32)))

        def keyed(*items: str | bytes) -> bytes:
            return hmac.digest(key, encode_items(*items), "sha256")[:_HASH_BYTES]

        places = range(0, len(blob), _HASH_BYTES)
        hashes = iter([blob[place : place + _HASH_BYTES] for place in places])
        known = [
            [set(islice(hashes, size)) for _ in _PARTS]
            for size in content.get("sizes", [])
        ]
        new = [
            {keyed(text) for text in rows.texts(parts)} if rows else set()
            for parts in _PARTS
        ]
        block = keyed("block", *sorted(names)).hex()
        columns = keyed("columns", *rows.columns).hex() if rows else ""
        why = []
        if block not in content.get("blocks", [block]):
            why.append("its block has other clients than in earlier runs")
        if columns not in content.get("columns", [columns]):
            why.append("the data has other columns than in earlier runs")
        cell = min(
            _smallest_cut([s[k] for s in known], one) for k, one in enumerate(new)
        )
        if known and cell < self._least:
            why.append(
                f"with earlier runs a difference of {cell} rows can be told apart "
                f"(least-rows = {self._least})"
            )
        self._refuse(content, why)
        content["blocks"] = sorted({*content.get("blocks", []), block})
        content["columns"] = sorted({*content.get("columns", []), columns})
        if new not in known:
            content["sizes"] = [*content.get("sizes", []), len(new[0])]
            blob += b"".join(key for one in new for key in sorted(one))
        if self._choice == "refuse":
            content.pop("once", None)
        if (content, blob) != was:
            with for_good():
                file.write(content, blob)
        _SETTLED[place] = run, rows

    def note_model(self, model: NDArray[Any], *, first: bool = False) -> None:
        """Remember that a run has sent a model; the last 100 are kept.

        A ReleaseError: the ``first`` of a run is not 0, nor of an earlier one.
        """
        if self._folder is None:
            return
        file, content, _ = self._open("models")
        models, mark = content.get("models", []), _digest(model)
        if mark in models:
            return
        with for_good():
            if first and model.any():
                releases, kept, blob = self._open("releases")
                why = "the run begins at a model that no earlier run sent"
                self._refuse(kept, [why])
                releases.write(kept, blob)
            file.write({"models": [*models, mark][-_MODELS:]})

    def _refuse(self, content: dict[str, Any], why: list[str]) -> None:
        """Raise, unless there is nothing or the owner accepts it."""
        if not why or self._choice == "accept":
            return
        if self._choice == "once" and content.get("once") in (None, self._session):
            content["once"] = self._session
            return
        raise ReleaseError(
            f"client {self._node.client}: {'; '.join(why)}; its owner may accept that "
            "with releases = 'once' or 'accept' in the node config"
        )


def _digest(model: NDArray[Any]) -> str:
    numbers = np.asarray(model, np.float64).reshape(-1) + 0.0
    return hashlib.sha256(numbers.tobytes()).hexdigest()[: 2 * _HASH_BYTES]


def _smallest_cut(known: Sequence[set[bytes]], new: set[bytes]) -> float:
    """Rows of the smallest cell of the Venn diagram that the new set makes.

    Cells that there were before do not count: they are given away already. Rows of all
    earlier sets are not: no difference has had them without the other clients'.
    """
    cells: Counter[tuple[bool, ...]] = Counter()
    for row in set().union(new, *known):
        cells[(row in new, *(row in one for one in known))] += 1
    # what is in no earlier release, what was in all and is not in this one, and either
    # part of a cell that is cut in two
    made = [
        count
        for (inside, *rest), count in cells.items()
        if not any(rest) or (all(rest) and not inside) or (not inside, *rest) in cells
    ]
    return min(made, default=np.inf)
