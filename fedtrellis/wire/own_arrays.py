"""Arrays that clients return, made their nodes' and the server's own in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains.atoms import PackedAtoms, SparseAtom
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.protocol import LARGEST, is_moderate, moderate_norm

__all__ = ["RefusedError", "checked", "owned"]

_KINDS = "fiub"  # of arrays that travel
_FEW = 100  # so few are looked at one by one in less time than as a stack


class RefusedError(Exception):
    """What a message would not get through."""


def owned(arrays: Sequence[Any], whole: bool) -> tuple[list[NDArray[Any]], Any]:
    """Read-only copies of arrays, and where they are alike their stack.

    Parameters
    ----------
    arrays : sequence of ndarray
    whole : bool
        Whether the copies may be rows of the stack, which is there as long as one is.

    Raises
    ------
    RefusedError
        One is of a kind that does not travel.
    """
    first = arrays[0]
    alike = isinstance(first, np.ndarray) and first.ndim > 0
    alike = alike and all(
        a.shape == first.shape and a.dtype == first.dtype for a in arrays
    )
    if not alike:
        copies = [np.array(array, order="C") for array in arrays]
    elif first.dtype.kind not in _KINDS:
        raise RefusedError
    else:
        stack = np.array(arrays)  # of one shape and dtype, in C order
        stack.flags.writeable = False
        if whole:
            return list(stack), stack
        copies = [row.copy() for row in stack]
        for copy in copies:
            copy.flags.writeable = False
        return copies, stack
    for copy in copies:
        if copy.dtype.kind not in _KINDS:
            raise RefusedError
        copy.flags.writeable = False
    return copies, None


def _alone(arrays: Sequence[Any]) -> tuple[list[FloatArray], list[float | None]] | None:
    """Copies of a few float64 arrays of one shape, and their norms; else None."""
    rows: list[FloatArray] = []
    norms: list[float | None] = []
    shape = getattr(arrays[0], "shape", ())
    for array in arrays:
        if type(array) is not np.ndarray or array.dtype != np.float64:
            return None
        if array.shape != shape or not shape:
            return None
        row = np.array(array, order="C")
        norm = moderate_norm(row)
        if norm is None:
            return None
        row.flags.writeable = False
        rows.append(row)
        norms.append(norm)
    return rows, norms


def checked(
    answers: Sequence[Sequence[Any]], whole: bool
) -> tuple[Sequence[Sequence[NDArray[Any]]], list[float | None], bool]:
    """The arrays of each client as its own, which have passed the wire's checks.

    Returns
    -------
    (sequence of sequence of ndarray, list of float or None, bool)
        Beside the arrays the norm of one that is alone, and whether all clients' have
        the same shapes and dtypes.

    Raises
    ------
    RefusedError
        An array does not pass.
    """
    norms: list[float | None] = [None] * len(answers)
    if all(type(a) is PackedAtoms and a.are_single for a in answers):
        packed = cast(Sequence[PackedAtoms], answers)
        values = [cast(SparseAtom, atom).values for one in packed for atom in one.atoms]
        if not is_moderate(np.concatenate(values)):
            raise RefusedError
        first = values[0].dtype, packed[0].atoms[0].shape, len(packed[0].atoms)
        alike = all(
            (one.atoms[0].shape, len(one.atoms)) == first[1:] for one in packed
        ) and all(value.dtype is first[0] for value in values)
        return packed, norms, alike
    count = len(answers[0])
    if any(len(arrays) != count for arrays in answers):
        own = [owned(arrays, False)[0] for arrays in answers]
        if not all(is_moderate(array) for arrays in own for array in arrays):
            raise RefusedError
        return own, norms, False
    columns, alike = [], True
    if count == 1 and not whole and len(answers) <= _FEW:
        alone = _alone([arrays[0] for arrays in answers])
        if alone is not None:
            return [[row] for row in alone[0]], alone[1], True
    for j in range(count):
        rows, stack = owned([arrays[j] for arrays in answers], whole)
        columns.append(rows)
        if stack is None or stack.dtype.kind != "f":
            alike = alike and stack is not None
            if not all(map(is_moderate, rows)):
                raise RefusedError
            continue
        flat = stack.reshape(len(rows), -1).astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", flat, flat)
        # Σ a_j² ≤ L² leaves none beyond L, and NaN is not at most anything
        if not (squares <= LARGEST**2).all() and not is_moderate(stack):
            raise RefusedError
        if count == 1:
            norms = np.sqrt(squares).tolist()
    if not columns:
        return [[] for _ in answers], norms, True
    return [list(arrays) for arrays in zip(*columns, strict=True)], norms, alike
