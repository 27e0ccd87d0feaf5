"""A node's own data: the file that ``data`` in its node config names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtrellis.settings import SettingsError

from .csv_file import read_csv
from .idx import read_idx_folder
from .libsvm import read_libsvm_table
from .npz_file import read_npz
from .settings import Schema
from .table import NodeTable, fault

__all__ = ["file_stamp", "node_path", "read_node_file"]

_READERS = {
    **dict.fromkeys((".csv", ".csv.gz"), read_csv),
    ".npz": read_npz,
    **{
        suffix + packed: read_libsvm_table
        for suffix in (".svm", ".libsvm", ".txt")
        for packed in ("", ".gz", ".bz2")
    },
}


def node_path(node_config: Mapping[str, Any], key: str = "data") -> Path:
    """Return the file that a node's config names.

    Raises
    ------
    SettingsError
        There is no such entry, or it is no absolute path.
    FileNotFoundError
        There is no such file or folder.
    """
    value = node_config.get(key)
    if value is None:
        raise SettingsError(
            f"node config: {key} is missing, and the run has dataset = 'nodes'; start "
            f"the node with --node-config '{key}=\"/absolute/path\"'"
        )
    if not isinstance(value, str) or not Path(value).expanduser().is_absolute():
        raise SettingsError(
            f"node config: {key} = {value!r} must be an absolute path; a run happens "
            "in a bundle's folder"
        )
    path = Path(value).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"node config: {key} = {value!r}: there is none")
    return path


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return what tells that a file is the one that was read before."""
    stamp: list[int] = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        stat = file.stat()
        stamp += [stat.st_mtime_ns, stat.st_size]
    return tuple(stamp)


def read_node_file(path: Path, schema: Schema) -> NodeTable:
    """Read a node's file in the format that its name ends with, and check all of it.

    Raises
    ------
    DataFileError
        The file does not hold what it should; names file, row and column.
    """
    if path.is_dir():
        return read_idx_folder(path, schema)
    name = path.name.lower()
    for suffix, read in _READERS.items():
        if name.endswith(suffix):
            return read(path, schema)
    fault(
        path,
        "the name must end in .csv, .csv.gz, .npz, .svm, .libsvm or .txt, or be that "
        "of a folder of idx files",
    )
