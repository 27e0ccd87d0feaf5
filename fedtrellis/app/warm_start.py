"""A run's first model from a file: that of another run's record, or arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError

__all__ = ["read_model"]

# what numpy.load and its archive raise where a file is something else
_UNREADABLE = (
    *(OSError, EOFError, TypeError, ValueError, AttributeError),
    zipfile.BadZipFile,
)


def read_model(path: str, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """The arrays of a ``.npz`` file, or of a record's ``model.npz``, in their order.

    Parameters
    ----------
    path : str
        The file, or the record's directory.
    shapes : sequence of tuple of int
        Those that the model has.

    Returns
    -------
    list of ndarray of float64

    Raises
    ------
    SettingsError
        There is no such file, or it holds another model; one line names it.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "model.npz"
    if not file.is_file():
        raise SettingsError(
            f"initial-model = {path!r}: there is no such file, nor a record of a "
            "completed run"
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = [np.asarray(archive[name], np.float64) for name in archive.files]
    except _UNREADABLE as error:
        why = " ".join(str(error).split())
        raise SettingsError(
            f"initial-model = {path!r} is no .npz of arrays: {why}"
        ) from None
    found = [array.shape for array in arrays]
    if found != list(shapes):
        raise SettingsError(
            f"initial-model = {path!r} has arrays of shapes {found}; this run's model "
            f"has {list(shapes)}"
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise SettingsError(f"initial-model = {path!r} is not finite")
    return arrays
