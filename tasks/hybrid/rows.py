"""The data sets of the hybrid tasks: rows with two labels, in one form for all.

Digits and breast cancer come with scikit-learn; MNIST, Covtype, a9a and News20 are the
user's files. News20 and a9a are sparse, and four of five entries of MNIST and Covtype
are 0, so these four stay CSR.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.extras import need

from ..base import DataFileError, data_path
from ..data.datasets import load_mnist
from ..data.readers import read_libsvm, read_own_file
from ..data.settings import FILE
from ..data.table import UNPACKING_ERRORS, open_packed

__all__ = ["BY_PATH", "DATASETS", "TARGETS", "Rows", "load_rows"]

FloatArray = NDArray[np.float64]

#: Data sets by name, with the rule by which their classes become +1 and −1.
DATASETS = {
    "digits": "5 and above against 0 to 4",
    "breast-cancer": "benign against malignant",
    "mnist": "5 and above against 0 to 4",
    "covtype": "class 2 against the rest",
    "a9a": "the larger label against the smaller",
    "news20": "the upper half of the classes, in ascending order, against the lower",
    FILE: "the larger of two labels, or the second in the alphabet, against the other",
}

#: Data sets whose labels are numbers, with what they are.
TARGETS = {"diabetes": "how far the disease went in a year"}

#: Those that are the user's, with the names of their files in a folder; MNIST's are
#: known to its reader.
BY_PATH: dict[str, tuple[str, ...]] = {
    "mnist": (),
    "covtype": (
        "covtype.data",
        "covtype.data.gz",
        "covtype.libsvm.binary.scale.bz2",
        "covtype.libsvm.binary.bz2",
    ),
    "a9a": ("a9a", "a9a.bz2"),
    "news20": ("news20", "news20.bz2", "news20_multiclass.bz2"),
    FILE: (),
}

_COVTYPE = (
    "elevation",
    "aspect",
    "slope",
    "horizontal-distance-to-hydrology",
    "vertical-distance-to-hydrology",
    "horizontal-distance-to-roadways",
    "hillshade-9am",
    "hillshade-noon",
    "hillshade-3pm",
    "horizontal-distance-to-fire-points",
    *(f"wilderness-area-{i}" for i in range(1, 5)),
    *(f"soil-type-{i}" for i in range(1, 41)),
)


class Rows(NamedTuple):
    """All rows of a data set, in its own order.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (d, p)
        float64.
    classes : ndarray of shape (d,)
        float64; what :func:`tasks.hybrid.samples.signs` makes labels of. Of
        :data:`TARGETS` the labels themselves.
    names : tuple of str
        Of the p features.
    side : int
        Where the features are the pixels of square images, row by row, their number
        of rows, else 0.
    test : int
        How many rows, the last ones, are test data by nature.
    weights : ndarray of shape (d,) or None
        What each row counts.
    """

    features: Any
    classes: FloatArray
    names: tuple[str, ...]
    side: int = 0
    test: int = 0
    weights: FloatArray | None = None


def load_rows(
    dataset: str,
    path: str,
    key: str,
    target: Literal["class", "number"] = "class",
    label_column: str = "label",
    weight_column: str = "",
) -> Rows:
    """Load a data set.

    Parameters
    ----------
    dataset : str
        A key of :data:`DATASETS` or :data:`TARGETS`.
    path : str
        The file, or a folder with it; not used where the data comes with
        scikit-learn.
    key : str
        The setting that holds the path, for messages.
    target, label_column : str
        What the labels of ``file`` are, and where they are in a csv file.
    weight_column : str
        And where the rows' weights are; empty: there are none.

    Returns
    -------
    Rows
        Pixels are divided by the largest value they may have.

    Raises
    ------
    FileNotFoundError
        There is no such file; the message has the setting.
    DataFileError
        The file holds something else; the message has its name.
    """
    if dataset in BY_PATH and not path:
        raise FileNotFoundError(
            f"{key} is empty; for {dataset!r} it must name the data set's file or the "
            "folder with it"
        )
    if dataset == FILE:
        data = read_own_file(key, path, target, label_column, weight_column)
        # labels that are numbers are classes of these numbers
        values = [x if isinstance(x, float) else i for i, x in enumerate(data.labels)]
        classes = np.array(values, dtype=np.float64)
        known = classes[data.targets.astype(np.intp)] if values else data.targets
        return Rows(data.features, known, data.names, weights=data.weights)
    return _LOADERS[dataset](path, key)


def _pixel_names(side: int) -> tuple[str, ...]:
    return tuple(f"pixel-{i}-{j}" for i in range(side) for j in range(side))


def _load_digits(path: str, key: str) -> Rows:
    need("sklearn", "the data set 'digits'", "sklearn")
    # half a second that nodes with other data need not spend
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return Rows(pixels / 16.0, labels.astype(np.float64), _pixel_names(8), side=8)


def _load_breast_cancer(path: str, key: str) -> Rows:
    need("sklearn", "the data set 'breast-cancer'", "sklearn")
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = tuple(str(name).replace(" ", "-") for name in data.feature_names)
    return Rows(data.data.astype(np.float64), data.target.astype(np.float64), names)


def _load_diabetes(path: str, key: str) -> Rows:
    need("sklearn", "the data set 'diabetes'", "sklearn")
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    names = tuple(str(name) for name in data.feature_names)
    return Rows(data.data.astype(np.float64), data.target.astype(np.float64), names)


def _load_mnist(path: str, key: str) -> Rows:
    examples = load_mnist(data_path(key, path, folder=True), key)
    parts = [
        scipy.sparse.csr_array(pixels.reshape(len(pixels), -1)).astype(np.float64)
        for pixels in (examples.features, examples.test_features)
    ]
    features = scipy.sparse.vstack(parts, format="csr")
    features.data /= 255.0
    classes = np.concatenate([examples.labels, examples.test_labels])
    return Rows(
        scipy.sparse.csr_array(features),
        classes.astype(np.float64),
        _pixel_names(28),
        side=28,
        test=len(examples.test_labels),
    )


def _find(path: str, key: str, dataset: str) -> Path:
    """Return the file that a setting names, or that is in the folder it names."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return data_path(key, path)
    for name in BY_PATH[dataset]:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{key} = {path!r} has no file of {dataset}: looked for "
        f"{' or '.join(BY_PATH[dataset])}"
    )


def _load_libsvm(path: Path) -> Rows:
    features, classes = read_libsvm(path)
    names = tuple(f"feature-{i}" for i in range(1, features.shape[1] + 1))
    return Rows(_short(features), classes, names)


def _short(matrix: Any) -> Any:
    """Return a CSR matrix with 32-bit indices, which half the memory suffices for."""
    indices, starts = (a.astype(np.int32) for a in (matrix.indices, matrix.indptr))
    return scipy.sparse.csr_array((matrix.data, indices, starts), shape=matrix.shape)


def _load_covtype(path: str, key: str) -> Rows:
    """Load UCI's ``covtype.data``, 54 whole numbers and a class, or LIBSVM's file."""
    file = _find(path, key, "covtype")
    try:
        with open_packed(file) as lines:
            uci = b"," in lines.readline()
            lines.seek(0)
            numbers = _comma_separated(lines) if uci else None
    except UNPACKING_ERRORS as error:
        raise DataFileError(f"{file}: cannot be read or unpacked") from error
    if not uci:
        rows = _load_libsvm(file)
        known = rows.features.shape[1] == len(_COVTYPE)
        return rows._replace(names=_COVTYPE if known else rows.names)
    if numbers is None or numbers.shape[1] != len(_COVTYPE) + 1:
        raise DataFileError(
            f"{file}: must be lines of {len(_COVTYPE) + 1} whole numbers with , between"
        )
    features = scipy.sparse.csr_array(numbers[:, :-1]).astype(np.float64)
    return Rows(_short(features), numbers[:, -1].astype(np.float64), _COVTYPE)


def _comma_separated(lines: Any) -> NDArray[np.int32] | None:
    """Return a table of whole numbers, None where the text is something else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows
            return np.loadtxt(
                lines, delimiter=",", dtype=np.int32, comments=None, ndmin=2
            )
    except ValueError:
        return None


_LOADERS: dict[str, Callable[[str, str], Rows]] = {
    "digits": _load_digits,
    "breast-cancer": _load_breast_cancer,
    "diabetes": _load_diabetes,
    "mnist": _load_mnist,
    "covtype": _load_covtype,
    "a9a": lambda path, key: _load_libsvm(_find(path, key, "a9a")),
    "news20": lambda path, key: _load_libsvm(_find(path, key, "news20")),
}
