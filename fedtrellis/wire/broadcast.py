"""The server's model on its way to the clients, in the smallest form that will do.

A projection-free method changes its model by a few atoms a round,

    x̄ ← decay · x̄ + weight · Σ_j s_j,

so a client that has an earlier x̄ is sent the steps it lacks. One that has none, or for
whom the steps would be larger, is sent x̄ whole: its non-zero entries, or all of them,
whichever is smaller. Both sides apply the same operations in the same order, so the
client's x̄ is the server's bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from math import isfinite
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedtrellis.domains.atoms import (
    FLOAT64,
    Atom,
    SparseAtom,
    pack_atoms,
    unpack_atoms,
)
from fedtrellis.wire.arrays import (
    ENVELOPE,
    FloatArray,
    Layout,
    array_record,
    bits_of,
    check_entries,
    encode,
    from_sparse_or_dense,
    record_arrays,
    sparse_or_dense,
)

#: Parameters that a message may declare without bringing them, see :func:`receive`.
MAX_PARAMETERS = 10**8
# Steps up to this size are unpacked once for all clients of a process; beyond, each of
# n clients would unpack n atoms. A round of 10 000 with one entry each is 140 kB.
_CACHED_BYTES = 1_048_576
# One step of so few atoms is sent without a look at the whole model.
_FEW_ATOMS = 100

Config = dict[str, Any]


class OutOfSyncError(Exception):
    """The client has not the model version that the server's steps start from."""


@dataclass(frozen=True)
class Step:
    """One change of the model, x̄ ← decay · x̄ + weight · Σ_j s_j."""

    decay: float
    weight: float
    atoms: tuple[Atom, ...]

    def apply(self, point: FloatArray) -> None:
        """Change ``point``, a C-contiguous array, in place."""
        if self.decay == 0.0:
            point.fill(0.0)  # also where the point was not finite
        elif self.decay != 1.0:
            point *= self.decay
        self.add_atoms(point)

    def add_atoms(self, point: FloatArray) -> None:
        """Do only point += weight · Σ_j s_j, in place."""
        if self._entries is None:
            for atom in self.atoms:
                atom.add_to(point, self.weight)
        else:
            # one after the other, as the atoms would: the same bits on both sides
            indices, values = self._entries
            np.add.at(point.reshape(-1), indices, np.float64(self.weight) * values)

    @cached_property
    def _entries(self) -> tuple[NDArray[np.int64], FloatArray] | None:
        """All entries of sparse atoms, which one call adds; None for other atoms."""
        sparse = [atom for atom in self.atoms if isinstance(atom, SparseAtom)]
        if not sparse or len(sparse) < len(self.atoms):
            return None
        indices = [atom.indices.astype(np.int64, copy=False) for atom in sparse]
        return np.concatenate(indices), np.concatenate([a.values for a in sparse])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the atoms on the wire, without envelope."""
        # a row of three numbers, and with each atom its kind and number of entries
        return 24 + sum(atom.nbytes + 2 for atom in self.atoms)


def pack_steps(steps: Sequence[Step]) -> list[NDArray[Any]]:
    """Steps as a few arrays: (decay, weight, number of atoms) each, then the atoms."""
    if not steps:
        return []
    table = np.array([[s.decay, s.weight, len(s.atoms)] for s in steps])
    atoms = [atom for step in steps for atom in step.atoms]
    return [table, *pack_atoms(atoms)] if atoms else [table]


def unpack_steps(
    arrays: Sequence[NDArray[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any] = FLOAT64,
) -> list[Step]:
    """Inverse of :func:`pack_steps`; ValueError if the arrays are malformed.

    ``dtype`` is that of the atoms' values.
    """
    if not arrays:
        return []
    table = arrays[0]
    if (
        table.ndim != 2
        or table.shape[1] != 3
        or table.dtype != np.float64
        or not np.isfinite(table).all()
        or (table[:, 2] < 0.0).any()
        or (table[:, 2] % 1.0).any()
    ):
        raise ValueError("the table of steps is malformed")
    atoms: list[Atom] = []
    if len(arrays) > 1:
        atoms = unpack_atoms(arrays[1:], shape, dtype, drawn=True)
    if table[:, 2].sum() != len(atoms):
        raise ValueError(f"{len(atoms)} atoms for steps of {table[:, 2].tolist()}")
    steps, start = [], 0
    for decay, weight, count in table.tolist():
        stop = start + int(count)
        steps.append(Step(decay, weight, tuple(atoms[start:stop])))
        start = stop
    return steps


class ModelBroadcast:
    """The server's half: the model, its version, and the steps that led to it.

    The ``model`` to start from, of shape ``layout.point_shape``, is copied and rounded
    to the layout's dtype.
    """

    def __init__(self, layout: Layout, model: FloatArray, version: int = 0) -> None:
        self.layout = layout
        self.model: FloatArray = layout.rounded(model)
        self.version = version
        self._steps: deque[Step] = deque()  # the last of them leads to self.version
        self._steps_nbytes = 0
        # flat indices of what each of the last versions changed, see revise
        self._revisions: deque[NDArray[np.intp]] = deque()
        self._encoded: dict[int | None, tuple[ArrayRecord, Config]] = {}

    def advance(self, step: Step) -> None:
        """Apply a step, and remember it for clients that have an earlier version."""
        step.apply(self.model)
        self.version += 1
        self._encoded.clear()
        self._revisions.clear()
        if step.decay == 0.0:
            self._forget_steps()  # nobody needs what came before
        self._steps.append(step)
        self._steps_nbytes += step.nbytes
        # steps that together are larger than the model itself would never be sent
        while self._steps and self._steps_nbytes > self.model.nbytes:
            self._steps_nbytes -= self._steps.popleft().nbytes

    def replace(self, model: FloatArray) -> None:
        """Set the model to something that is not a step from the one before."""
        self._set(model)
        self._revisions.clear()

    def revise(self, model: FloatArray) -> None:
        """Set the model to one of which many entries may be those of the one before.

        A client that has an earlier version is sent the entries that changed since, if
        these are smaller than the model whole.
        """
        before = bits_of(self.model.reshape(-1))
        self._set(model)
        # bits, not values: −0.0 is not 0.0
        changed = np.flatnonzero(bits_of(self.model.reshape(-1)) != before)
        self._revisions.append(changed)
        # what together takes more than the model itself would never be sent; of those
        # that change nothing there could be any number
        count = sum(max(1, indices.size) for indices in self._revisions)
        while self._revisions and count > self.model.size:
            count -= max(1, self._revisions.popleft().size)

    def _set(self, model: FloatArray) -> None:
        self.model = self.layout.rounded(model)
        self.version += 1
        self._encoded.clear()
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._steps.clear()
        self._steps_nbytes = 0

    def encode(self, base: int | None) -> tuple[ArrayRecord, Config]:
        """The model for a client that has version ``base`` (None: has none).

        Its arrays, and the keys that :func:`receive` needs beside them; shared between
        the clients it is for, and not to be changed.
        """
        if base is not None:
            known = max(len(self._steps), len(self._revisions))
            if base < self.version - known:
                base = None
        found = self._encoded.get(base)
        if found is None:
            found = self._encoded[base] = self._encode(base)
        return found

    def _encode(self, base: int | None) -> tuple[ArrayRecord, Config]:
        config: Config = {"model-version": self.version}
        steps: Sequence[Step] | None = None
        if base is not None and self._revisions:
            since = list(self._revisions)[len(self._revisions) - self.version + base :]
            changed = np.unique(np.concatenate([np.empty(0, np.intp), *since]))
            indices = changed.astype(np.min_scalar_type(max(self.model.size - 1, 0)))
            values = self._on_wire.reshape(-1)[changed]
            whole = sparse_or_dense(self._on_wire)
            if indices.nbytes + values.nbytes < sum(array.nbytes for array in whole):
                config |= {"model-encoding": "entries", "model-base": base}
                return array_record([indices, values], join=True), config
        elif base is not None:
            first = len(self._steps) - (self.version - base)
            steps = list(islice(self._steps, first, None))
        elif self._steps and self._steps[0].decay == 0.0:
            # the first step forgets what was there before, so anyone can start there
            steps = list(self._steps)
        if steps is not None and self._worth_sending(steps):
            config["model-encoding"] = "steps"
            config["model-base"] = self.version - len(steps)
            if base is None:
                config |= self.layout.entries()
            return array_record(pack_steps(steps), join=True), config
        arrays = sparse_or_dense(self._on_wire)
        config["model-encoding"] = "dense" if len(arrays) == 1 else "sparse"
        config |= self.layout.entries()
        return array_record(arrays, join=True), config

    @property
    def _on_wire(self) -> NDArray[Any]:
        return self.layout.to_wire(self.model)

    def _worth_sending(self, steps: Sequence[Step]) -> bool:
        """Whether the steps are smaller than the model whole."""
        size = sum(step.nbytes for step in steps) + 2 * ENVELOPE
        atoms = sum(len(step.atoms) for step in steps)
        if (len(steps) > 1 or atoms > _FEW_ATOMS) and size < self.model.nbytes:
            # several steps, or many clients, may well touch the same few entries
            whole = sparse_or_dense(self._on_wire)
            return size < sum(array.nbytes for array in whole) + ENVELOPE
        return not steps or size < self.model.nbytes


@dataclass(frozen=True, eq=False)
class ReceivedModel:
    """The client's half: the model it was sent, and which version that is."""

    layout: Layout
    point: FloatArray  # may be read-only
    version: int

    @cached_property
    def encoded(self) -> Array:
        """The model as a client's state keeps it."""
        return encode(self.point)


def _received_steps(record: ArrayRecord, layout: Layout) -> Sequence[Step]:
    # the clients of one process are all sent the same few
    if len(record) == 1:
        (array,) = record.values()
        if len(array.data) <= _CACHED_BYTES:
            return _unpack_joined(array.stype, array.data, "joined" in record, layout)
    return unpack_steps(record_arrays(record), layout.point_shape, layout.point_dtype)


@lru_cache(maxsize=2)  # a round's, which all clients get; atoms may unpack to megabytes
def _unpack_joined(
    stype: str, data: bytes, joined: bool, layout: Layout
) -> tuple[Step, ...]:
    record = ArrayRecord()
    record["joined" if joined else "0"] = Array("", (), stype, data)
    # steps and their atoms are never changed, so they can be shared
    arrays = record_arrays(record)
    return tuple(unpack_steps(arrays, layout.point_shape, layout.point_dtype))


def _received_entries(
    record: ArrayRecord, base: int, version: int, stored: ReceivedModel | None
) -> ReceivedModel:
    """The stored model with the entries that changed since version ``base``."""
    # what is overwritten may be newer than the base, but not older
    if stored is None or not base <= stored.version <= version:
        raise _out_of_sync(f"entries change version {base}", stored)
    arrays = record_arrays(record)
    if len(arrays) != 2:
        raise ValueError(f"changed entries came in {len(arrays)} arrays")
    indices, values = arrays
    check_entries(indices, values, stored.point.size)
    point = stored.point.copy()
    point.reshape(-1)[indices] = stored.layout.from_wire(values)
    return ReceivedModel(stored.layout, _finite(point), version)


def _out_of_sync(what: str, stored: ReceivedModel | None) -> OutOfSyncError:
    have = "none" if stored is None else str(stored.version)
    return OutOfSyncError(f"{what}, the client has {have}")


def _layout(
    config: Mapping[str, Any], stored: ReceivedModel | None, max_parameters: int
) -> Layout | None:
    """The shapes that a message declares, which are no more than it may declare."""
    if "model-shapes" not in config:
        return None
    layout = Layout.from_list(
        config["model-shapes"], config.get("model-dtype", "float64")
    )
    if stored is not None and layout != stored.layout:
        raise ValueError(
            f"the model has shapes {list(layout.shapes)} of {layout.dtype}; in this "
            f"session it had {list(stored.layout.shapes)} of {stored.layout.dtype}"
        )
    # a dense model brings all of its entries, whatever it declares
    if config["model-encoding"] != "dense" and layout.size > max_parameters:
        raise ValueError(
            f"model-shapes declare {layout.size} parameters; this client takes at "
            f"most {max_parameters} (client_app's max_parameters)"
        )
    return layout


def _finite(point: FloatArray) -> FloatArray:
    # one pass and no memory; of a sum that overflows nothing good would come either
    with np.errstate(over="ignore", invalid="ignore"):
        if not isfinite(point.sum()):
            raise ValueError("the model is not finite")
    return point


def receive(
    record: ArrayRecord,
    config: Mapping[str, Any],
    stored: ReceivedModel | None,
    max_parameters: int = MAX_PARAMETERS,
) -> ReceivedModel:
    """Make the model out of what the server sent and what the client had.

    ``config`` is what :meth:`ModelBroadcast.encode` returned, of the right types;
    ``stored`` is what the client has of this session. A model that comes as its entries
    or as steps has at most ``max_parameters``: a few bytes could declare any number.
    OutOfSyncError: the steps start from a version that the client does not have.
    ValueError: what arrived is malformed, or of other shapes than before.
    """
    encoding = config["model-encoding"]
    version = cast(int, config["model-version"])
    layout = _layout(config, stored, max_parameters)
    if encoding in ("dense", "sparse"):
        if layout is None:
            raise ValueError("a whole model came without its shapes")
        arrays = record_arrays(record)
        if len(arrays) != (1 if encoding == "dense" else 2):
            raise ValueError(f"a {encoding} model came in {len(arrays)} arrays")
        point = layout.from_wire(from_sparse_or_dense(arrays, layout.point_shape))
        return ReceivedModel(layout, _finite(point), version)
    base = cast(int, config.get("model-base", -1))
    if encoding == "entries":
        return _received_entries(record, base, version, stored)
    if encoding != "steps":
        raise ValueError(f"model-encoding is {encoding!r}")
    if stored is not None and base <= stored.version <= version:
        if stored.version == version:
            return stored
        layout = stored.layout
        steps = _received_steps(record, layout)
        if len(steps) != version - base:
            raise ValueError(f"{len(steps)} steps from version {base} to {version}")
        steps = steps[stored.version - base :]
        if steps[0].decay:
            point = stored.point * steps[0].decay
        else:
            point = np.zeros(layout.point_shape, layout.point_dtype)
    elif layout is not None:
        steps = _received_steps(record, layout)
        point = np.zeros(layout.point_shape, layout.point_dtype)
        if not steps or steps[0].decay != 0.0:
            raise ValueError("steps without a base do not start from nothing")
    else:
        raise _out_of_sync(f"steps start at version {base}", stored)
    first, *rest = steps
    first.add_atoms(point)
    for step in rest:
        step.apply(point)
    return ReceivedModel(layout, _finite(point), version)
