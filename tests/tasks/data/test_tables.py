"""Loaders of tables: small files made here, malformed ones, and the real ones."""

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import DataFileError
from tasks.linear import LogisticRegression, load_table
from tests.tasks.data.node_files import real

load_qsar, load_santander, load_libsvm = (
    partial(load_table, dataset) for dataset in ("qsar", "santander", "libsvm")
)

# What no message may show.
SECRET = "48151623"


def refused(load: Callable[[Path], Any], path: Path, match: str) -> None:
    with pytest.raises(DataFileError, match=match) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert SECRET not in message


def put(folder: Path, name: str, text: str, zipped: bool = False) -> Path:
    """Write a file, or an archive of it and another one."""
    path = folder / "table"
    if not zipped:
        path.write_bytes(text.encode())
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"folder/{name}", text)
        archive.writestr("readme.txt", "not this one")
    return path


# -- QSAR


def qsar_rows(count: int = 6) -> tuple[np.ndarray, list[str]]:
    bits = np.random.default_rng(0).integers(0, 2, (count, 1024))
    words = [["negative", "positive"][i % 3 == 0] for i in range(count)]
    lines = [
        ";".join(map(str, row)) + ";" + word
        for row, word in zip(bits, words, strict=True)
    ]
    return bits, lines


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("zipped", [True, False])
def test_qsar(tmp_path: Path, newline: str, zipped: bool) -> None:
    bits, lines = qsar_rows()
    bits[2] = 0  # a row without any
    lines[2] = "0;" * 1024 + "negative"
    text = newline.join(lines) + (newline if zipped else "")
    table = load_qsar(put(tmp_path, "qsar.csv", text, zipped))
    assert table.features.format == "csr"
    assert table.features.dtype == np.float64
    np.testing.assert_array_equal(table.features.toarray(), bits)
    assert table.features.nnz == bits.sum()
    assert table.targets.tolist() == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("1;" * 1023 + "negative", r"row 3, column 'bit-1024': must be"),
        ("1;" * 1025 + "negative", "cannot be read as a csv table"),
        ("1;" * 1024 + SECRET, r"row 3, column 'label': is not among the labels"),
        ("1," * 1024 + "negative", r"row 3, column 'bit-1': must be a finite number"),
    ],
)
def test_malformed_qsar(tmp_path: Path, line: str, match: str) -> None:
    lines = qsar_rows()[1]
    lines[2] = line
    refused(load_qsar, put(tmp_path, "qsar.csv", "\n".join(lines) + "\n"), match)


# -- Santander


def santander_lines(count: int = 5) -> list[str]:
    numbers = np.random.default_rng(0).normal(5, 10, (count, 200)).round(4)
    lines = ["ID_code,target," + ",".join(f"var_{i}" for i in range(200))]
    for i, row in enumerate(numbers):
        lines.append(f"train_{i},{i % 2}," + ",".join(map(str, row)))
    return lines


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("zipped", [True, False])
def test_santander(tmp_path: Path, newline: str, zipped: bool) -> None:
    text = newline.join(santander_lines()) + newline
    path = tmp_path / "train.csv"
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("train.csv", text)
    else:
        path.write_bytes(text.encode())
    table = load_santander(path)
    expected = np.random.default_rng(0).normal(5, 10, (5, 200)).round(4)
    np.testing.assert_array_equal(table.features, expected)
    assert table.features.flags.c_contiguous
    assert table.features.dtype == np.float64
    assert table.targets.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        (201, "1.0,1.0", "cannot be read as a csv table"),
        (9, "inf", r"row 3, column 'var_7': .* finite"),
        (100, SECRET + "x", r"row 3, column 'var_98': "),
        (100, "1_0", r"row 3, column 'var_98': "),
        (1, "2", r"row 3, column 'target': is not among the labels"),
    ],
)
def test_malformed_santander(
    tmp_path: Path, column: int, value: str, match: str
) -> None:
    lines = santander_lines()
    fields = lines[3].split(",")
    fields[column] = value
    lines[3] = ",".join(fields)
    refused(load_santander, put(tmp_path, "train.csv", "\n".join(lines) + "\n"), match)


# -- LIBSVM


TEXT = "+1 1:0.5 4:-2 # a comment\n-1 2:1e3\n\n+1 3:1\n-1\n"


@pytest.mark.parametrize("end", ["", ".gz", ".bz2", ".xz"])
def test_libsvm(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"data{end}"
    text = TEXT.encode()
    packed = {".gz": gzip.compress(text), ".bz2": bz2.compress(text)}
    packed[".xz"] = lzma.compress(text)
    path.write_bytes(packed.get(end, text))
    table = load_libsvm(path)
    expected = np.zeros((4, 4))
    expected[0, 0], expected[0, 3], expected[1, 1], expected[2, 2] = 0.5, -2, 1e3, 1
    assert table.features.format == "csr"
    np.testing.assert_array_equal(table.features.toarray(), expected)
    assert table.targets.tolist() == [1, 0, 1, 0]


# -- the real files, where they are


def test_real_qsar() -> None:
    table = load_qsar(real("qsar_oral_toxicity/qsar_oral_toxicity.zip"))
    assert table.features.shape == (8992, 1024)
    assert table.features.nnz == table.features.sum() == 856863
    assert np.bincount(table.targets.astype(int)).tolist() == [8251, 741]


def test_real_libsvm_of_many_classes() -> None:
    def two_labels(path: Path) -> Any:
        own: Any = {"dataset": "libsvm", "path": str(path)}
        return LogisticRegression(num_clients=1, seed=0, **own)._table()

    refused(two_labels, real("libsvm/news20_multiclass.bz2"), "and 10 more")
