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
from functools import cached_property
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedtrellis.domains.atoms import Atom, SparseAtom, pack_atoms, unpack_atoms
from fedtrellis.wire.arrays import (
    ENVELOPE,
    FloatArray,
    Layout,
    array_record,
    bits_of,
    encode,
    from_sparse_or_dense,
    record_arrays,
    sparse_or_dense,
)

#: Parameters that a message may declare without bringing them, see :func:`receive`.
MAX_PARAMETERS = 10**8
# One step of so few atoms is sent without a look at the whole model.
_FEW_ATOMS = 100

Config = dict[str, Any]


class RestoreNeededError(Exception):
    """The client has neither model nor state of those that the server counts on."""


@dataclass(frozen=True)
class Step:
    """One change of the model, x̄ ← decay · x̄ + weight · Σ_j s_j."""

    decay: float
    weight: float
    atoms: tuple[Atom, ...]

    def apply(self, point: FloatArray) -> None:
        """Change ``point``, a C-contiguous array."""
        if self.decay == 0.0:
            point.fill(0.0)  # also where it was not finite
        elif self.decay != 1.0:
            point *= self.decay
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


def unpack_steps(arrays: Sequence[NDArray[Any]], layout: Layout) -> list[Step]:
    """Inverse of :func:`pack_steps`, for a model's points."""
    if not arrays:
        return []
    (table, *others), shape, dtype = arrays, layout.point_shape, layout.point_dtype
    atoms = unpack_atoms(others, shape, dtype, drawn=True) if others else []
    rest = iter(atoms)
    return [
        Step(decay, weight, tuple(islice(rest, int(count))))
        for decay, weight, count in table.tolist()
    ]


class ModelBroadcast:
    """The server's half: the model, its version, and what led to it.

    The ``model`` to start from, of shape ``layout.point_shape``, is copied and rounded
    to the layout's dtype.
    """

    def __init__(self, layout: Layout, model: FloatArray, version: int = 0) -> None:
        self.layout = layout
        self.model: FloatArray = layout.rounded(model)
        self.version = version
        # how the last versions came about, and how many bytes say so: all of them by
        # steps, or of each the flat indices of what it changed, see revise
        self._changes: deque[tuple[Any, int]] = deque()
        self._nbytes = 0
        self._encoded: dict[int | None, tuple[ArrayRecord, Config]] = {}

    def advance(self, step: Step) -> None:
        """Apply a step, and remember it for clients that have an earlier version."""
        step.apply(self.model)
        if step.decay == 0.0 or not self._has_steps:
            self._forget()  # nobody needs what came before
        self._remember(step, step.nbytes)

    def replace(self, model: FloatArray) -> None:
        """Set the model to something that is not a step from the one before."""
        self.model = self.layout.rounded(model)
        self._remember(None, self.model.nbytes + 1)  # which nothing outlasts

    def revise(self, model: FloatArray) -> None:
        """Set the model to one of which many entries may be those of the one before.

        A client that has an earlier version is sent the entries that changed since, if
        these are smaller than the model whole.
        """
        before = bits_of(self.model.reshape(-1))
        self.model = self.layout.rounded(model)
        # bits, not values: −0.0 is not 0.0
        changed = np.flatnonzero(bits_of(self.model.reshape(-1)) != before)
        if self._has_steps:
            self._forget()
        # of those that change nothing there could be any number
        self._remember(changed, max(1, changed.size) * self.model.itemsize)

    @property
    def _has_steps(self) -> bool:
        return not self._changes or isinstance(self._changes[0][0], Step)

    def _forget(self) -> None:
        self._changes.clear()
        self._nbytes = 0

    def _remember(self, change: Any, nbytes: int) -> None:
        self.version += 1
        self._encoded.clear()
        self._changes.append((change, nbytes))
        self._nbytes += nbytes
        # changes that together are larger than the model itself would never be sent
        while self._nbytes > self.model.nbytes:
            self._nbytes -= self._changes.popleft()[1]

    def encode(self, base: int | None) -> tuple[ArrayRecord, Config]:
        """The model for a client that has version ``base`` (None: has none).

        Its arrays, and the keys that :func:`receive` needs beside them; shared between
        the clients it is for, and not to be changed.
        """
        if base is not None and not 0 <= self.version - base <= len(self._changes):
            base = None
        if base not in self._encoded:
            self._encoded[base] = self._encode(base)
        return self._encoded[base]

    def _encode(self, base: int | None) -> tuple[ArrayRecord, Config]:
        config: Config = {"model-version": self.version}
        shapes, known = self.layout.entries(), len(self._changes)
        if base is not None:
            shapes, known = {}, self.version - base
        since = [change for change, _ in islice(reversed(self._changes), known)][::-1]
        if base is not None and not self._has_steps:
            changed = np.unique(np.concatenate([np.empty(0, np.intp), *since]))
            indices = changed.astype(np.min_scalar_type(max(self.model.size - 1, 0)))
            values = self.model.reshape(-1)[changed]
            if indices.nbytes + values.nbytes < self._whole()[1]:
                config |= {"model-encoding": "entries", "model-base": base}
                return array_record([indices, values], join=True), config
        # a first step that forgets what was there before is where anyone can start
        elif (
            self._has_steps
            and (base is not None or (since and since[0].decay == 0.0))
            and self._worth_sending(since)
        ):
            config |= {"model-encoding": "steps", "model-base": self.version - known}
            return array_record(pack_steps(since), join=True), config | shapes
        arrays, _ = self._whole()
        config["model-encoding"] = "dense" if len(arrays) == 1 else "sparse"
        return array_record(arrays, join=True), config | self.layout.entries()

    def _whole(self) -> tuple[list[NDArray[Any]], int]:
        """All of the model as it travels, and its bytes."""
        arrays = sparse_or_dense(self.model)
        return arrays, sum(array.nbytes for array in arrays)

    def _worth_sending(self, steps: Sequence[Step]) -> bool:
        """Whether the steps are smaller than the model whole."""
        size = sum(step.nbytes for step in steps) + 2 * ENVELOPE
        atoms = sum(len(step.atoms) for step in steps)
        if (len(steps) > 1 or atoms > _FEW_ATOMS) and size < self.model.nbytes:
            # several steps, or many clients, may well touch the same few entries
            return size < self._whole()[1] + ENVELOPE
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


def receive(
    record: ArrayRecord, config: Mapping[str, Any], stored: ReceivedModel | None
) -> ReceivedModel:
    """Make the model out of what the server sent and what the client had.

    ``config`` is what :meth:`ModelBroadcast.encode` returned; ``stored`` is what the
    client has of this session. RestoreNeededError: what came starts from a version that
    the client does not have. ValueError: the model is not finite, or has more than
    :data:`MAX_PARAMETERS` and comes as its entries or as steps.
    """
    encoding, version = config["model-encoding"], config["model-version"]
    base, arrays = config.get("model-base", -1), record_arrays(record)
    if "model-shapes" in config:
        dtype = config.get("model-dtype", "float64")
        layout = Layout.from_list(*config["model-shapes"], dtype=dtype)
        # a dense model brings its entries; of the others a few bytes declare any number
        if encoding != "dense" and layout.size > MAX_PARAMETERS:
            raise ValueError(
                f"model-shapes declare {layout.size} parameters that the message does "
                f"not bring; allowed: at most {MAX_PARAMETERS}"
            )
    elif stored is not None:
        layout = stored.layout
    if encoding in ("dense", "sparse"):
        point = from_sparse_or_dense(arrays, layout.point_shape)
    # what the client has may be newer than what the server believes, but not older
    elif stored is not None and base <= stored.version <= version:
        if stored.version == version:
            return stored
        point = stored.point.copy()
        if encoding == "entries":
            indices, values = arrays
            point.reshape(-1)[indices] = values
        else:
            for step in unpack_steps(arrays, layout)[stored.version - base :]:
                step.apply(point)
    elif encoding == "steps" and "model-shapes" in config:
        point = np.empty(layout.point_shape, layout.point_dtype)
        for step in unpack_steps(arrays, layout):  # the first forgets what was there
            step.apply(point)
    else:
        have = "none" if stored is None else stored.version
        raise RestoreNeededError(
            f"{encoding} since version {base}, the client has {have}"
        )
    # one pass and no memory; of a sum that overflows nothing good would come either
    with np.errstate(over="ignore", invalid="ignore"):
        if not isfinite(point.sum()):
            raise ValueError("the model is not finite")
    return ReceivedModel(layout, point, version)
