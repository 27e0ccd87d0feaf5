"""Files that are not what they should be: one line, and nobody is told the rest."""

import gzip
import logging
import lzma
import re
import struct
import tomllib
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis import LocalGrid
from tasks import DataFileError, QuadraticAssignmentTask
from tasks.data.datasets import read_cifar, read_idx
from tasks.data.readers import read_ratings, read_table
from tasks.data.table import Schema
from tasks.linear import load_table
from tests.tasks.data.files import idx

TWO = Schema(2, target="class", labels=("no", "yes"))
NAMED = Schema(2, ("age", "weight"), "class", ("0", "1"))
NUMBERS = Schema(2, target="number")
BARE = Schema(2)
DIGITS = Schema(2, target="class", labels=("0", "1"))
SPLIT = Schema(3, target="class", labels=("-1", "1"), split=True)
COUNTED = replace(DIGITS, features=1, weight_column="count")

# what a row holds in the tests below, and nobody may be told
SECRETS = ("s3cret", "77.125", "patient-9", "Ünseen")

TEXTS = tomllib.loads(Path(__file__).with_name("bad_files.toml").read_text("utf-8"))
LATIN = b"a,b,label\n1,\xff77.125,no\n", "TWO", "row 1, column 'b': must be a finite"
NPZ: list[tuple[dict[str, Any], Schema, str]] = [
    ({"features": [["s3cret"]]}, TWO, "'features' must be of numbers"),
    ({"features": [[1, 77.125, 3]], "labels": ["no"]}, TWO, "3 feature columns"),
    ({"features": [[1, np.nan]], "labels": ["no"]}, TWO, "row 1, column '2': must be"),
    ({"features": [[1, 2]]}, TWO, "must have an array 'labels'"),
    ({"features": [[1, 2]], "labels": ["no", "no"]}, TWO, "must be of 1 numbers or"),
    ({"features": [[1, 2]], "labels": ["s3cret"]}, TWO, "row 1, column 'labels': is n"),
    ({"features": [[1, 2]], "labels": ["s3cret"]}, NUMBERS, "must be of 1 numbers"),
    ({"features": [[1, 2]], "labels": [np.inf]}, NUMBERS, "row 1, column 'labels'"),
    ({"features": [[1, 2]], "labels": [1]}, NAMED, "must have an array 'names'"),
    ({"features": [[1]], "names": ["a"]}, SPLIT, "must have an array 'ids'"),
    (
        {"features": [[1]], "labels": [0], "weights": [-1.0]},
        COUNTED,
        "column 'weights'",
    ),
    # Python objects are not unpickled
    ({"features": [["s3cret", None]]}, TWO, "cannot be read as an archive"),
]
BITS = "0;" * 1024 + "negative\n"
VARIABLES = "ID_code,target," + ",".join(f"var_{i}" for i in range(200)) + "\n"
TABLES = [
    ("qsar", BITS + "1;" * 1023 + "negative", "row 2, column 'bit-1024': must be"),
    ("qsar", BITS + "1;" * 1024 + "s3cret", "row 2, column 'label': is not among the"),
    ("santander", VARIABLES + "a,0" + ",77.125" * 7 + ",inf" + ",1" * 192, "'var_7'"),
    (
        "santander",
        VARIABLES + "a,2" + ",77.125" * 200,
        "row 1, column 'target': is not",
    ),
]
IMAGES = idx(np.arange(60).reshape(5, 3, 4))
IDX = [
    (b"", "magic number"),
    (idx(np.arange(5)), "magic number"),  # labels where images are expected
    (IMAGES[:9], "magic number .* and 3 dimensions"),
    (IMAGES[:-1], "ask for 60 bytes of data, the file has 59"),
    (b"\0\0\x08\3" + struct.pack(">3I", 0, 28, 28), "dimensions"),
    (b"\0\0\x08\3" + struct.pack(">3I", *[2**32 - 1] * 3), "dimensions"),
]
CIFAR = [
    ("b.bin", b"\0" * 3072, "records of 3073"),
    ("b.bin", b"\0" * (3073 * 10_000 + 1), "records of 3073"),
    ("b.bin", b"\x0a" + b"\0" * 3072, "with labels from 0 to 9"),
    ("b.bin", b"", "records of 3073"),
    ("b.bin.xz", b"\0" * 3073, "cannot be decompressed"),
    ("b.bin.xz", lzma.compress(bytes(range(256)) * 12)[:-9], "cannot be decompressed"),
]
PACKED: list[tuple[str, bytes, str]] = [
    *((f"a{end}", b"s3cret 77.125", r"\w") for end in (".csv.gz", ".npz", ".parquet")),
    ("a.svm.gz", b"s3cret 77.125", "cannot be read or unpacked"),
    ("a.csv.gz", gzip.compress(b"a,b,label\n" + b"1,2,no\n" * 50)[:-9], "a csv table"),
]


def assignment(path: Path) -> None:
    QuadraticAssignmentTask(1, 0, path=str(path)).check()


def ratings(path: Path) -> Any:
    return read_ratings(path, 9, 4)


def images(path: Path) -> Any:
    return read_idx(path, 3)


def table(schema: Schema) -> Callable[[Path], Any]:
    return partial(read_table, schema=schema)


#: A file's name, what is in it, its reader, and what that says.
FAULTS: list[tuple[str, Any, Callable[[Path], Any], str]] = [
    *(
        (f"a.{form}", text, table(globals()[schema]), match)
        for form in ("csv", "libsvm")
        for text, schema, match in (*TEXTS[form], *[LATIN] * (form == "csv"))
    ),
    *(("a.npz", arrays, table(schema), match) for arrays, schema, match in NPZ),
    *(("u.data", text, ratings, match) for text, match in TEXTS["ratings"]),
    *(("a.dat", text, assignment, match) for text, match in TEXTS["assignments"]),
    *(("t", text, partial(load_table, name), match) for name, text, match in TABLES),
    *(("x", data, images, match) for data, match in IDX),
    *(
        ("x.gz", data, images, "cannot be decompressed")
        for data in (IMAGES, gzip.compress(IMAGES)[:-9])
    ),
    *((name, data, read_cifar, match) for name, data, match in CIFAR),
    *(
        (name, data, table(BARE if "svm" in name else TWO), match)
        for name, data, match in PACKED
    ),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_is_one_line_that_names_the_file(tmp_path: Path, number: int) -> None:
    name, content, read, match = FAULTS[number]
    path = tmp_path / name
    if name.endswith(".npz") and isinstance(content, dict):
        arrays: dict[str, Any] = {n: np.array(value) for n, value in content.items()}
        np.savez(path, **arrays)
    else:
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(content)
    with pytest.raises(DataFileError, match=match) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    # the source lines of a traceback are ours, not the file's: only messages count
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    said = (message + repr(caught.value)).replace(str(path), "")
    assert not [secret for secret in SECRETS if secret in said]


def test_a_pair_of_idx_files(tmp_path: Path) -> None:
    pixels = np.arange(8).reshape(2, 2, 2)
    images = tmp_path / "train-images-idx3-ubyte"
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    images.write_bytes(idx(pixels))
    schema = Schema(4, target="class", labels=("0", "1", "2"))
    labels.write_bytes(gzip.compress(idx([2, 0])))
    found = read_table(tmp_path, schema)
    np.testing.assert_array_equal(found.features, pixels.reshape(2, 4) / 255.0)
    np.testing.assert_array_equal(found.targets, [2.0, 0.0])
    for content, match in (
        (gzip.compress(idx([2, 77])), "row 2, column 'label': is not"),
        (gzip.compress(idx(range(6))), "6 labels for the 2 images"),
    ):
        labels.write_bytes(content)
        with pytest.raises(DataFileError, match=match) as caught:
            read_table(tmp_path, schema)
        said = str(caught.value).replace(str(tmp_path), "")
        assert not {"77", b"s3cret".hex()[:8], "b's3"} & set(re.split(r"[ ,]", said))
    labels.unlink()
    with pytest.raises(DataFileError, match=r"has 0 files \*labels-idx1-ubyte"):
        read_table(tmp_path, schema)


def told(error: BaseException | None) -> str:
    seen = traceback.format_exception(error) if error else []
    while error is not None:
        seen.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    return " ".join(seen)


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("logistic-regression", "a.csv", b"a,b,label\n77.125,s3cret,1\n"),
        ("logistic-regression", "a.svm", b"s3cret 77.125:2\n"),
        ("kernel-pca", "a.csv.gz", gzip.compress(b"a,b\n77.125,s3cret\n")),
        ("hybrid-svm", "a.csv", b"id,a,label\npatient-9,1,77.125\n"),
        ("matrix-completion", "a.data", b"77.125\ts3cret\t2\n"),
    ],
    ids=range(5),  # they are in the file's path
)
def test_a_bad_file_tells_nobody_what_it_holds(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    logged: list[str],
    capfd: pytest.CaptureFixture[str],
    task: str,
    name: str,
    content: bytes,
) -> None:
    """The node's log, the server's, the messages between them and the record."""
    path = tmp_path / name
    path.write_bytes(content)
    columns = {"data.features": 2, "data.prepare": False}
    more: dict[str, dict[str, Any]] = {
        "logistic-regression": columns,
        "hybrid-svm": {**columns, "method": "hyfdca", "hybrid-svm.bias": 0.0},
        "kernel-pca": columns | {"kernel-pca.scale": False, "kernel-pca.components": 1},
        "matrix-completion": {f"{task}.users": 9, f"{task}.items": 9, "radius": 1.0},
    }
    config = sim.app.default_config() | more[task]
    config |= {"results-dir": str(tmp_path / "runs"), "task": task}
    config[f"{task}.dataset"] = "nodes"
    nodes = [{"client-id": "A", "data": str(path)}]
    said: list[str] = []

    class Listening(LocalGrid):
        def _answer(self, message: Any, strikes: Any, answer: Any) -> None:
            said.append(answer if isinstance(answer, str) else "")
            super()._answer(message, strikes, answer)

    grid = Listening(sim.client_app, 1, run_config=config, node_configs=nodes)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RuntimeError, match="none of 1 nodes can be used") as caught:
        sim.app.run(grid, config)
    output = capfd.readouterr()
    kept = [p for p in (tmp_path / "runs").rglob("*") if p.suffix in (".json", ".toml")]
    heard = [told(caught.value), caplog.text, *logged, output.out, output.err]
    assert str(path) in said[0]  # the file is named
    assert str(path) in " ".join(logged)
    everything = " ".join([*heard, *said, *(p.read_text() for p in kept)])
    assert not [secret for secret in SECRETS if secret in everything]
