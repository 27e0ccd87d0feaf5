"""A table as people have it: what its columns become, and linear models of them.

A :class:`Preparation` says which features a table's columns make: a number or a date
is one, a category has one for each value that is common enough. It is agreed on from
each owner's summary, never from rows, is stored with the model, and
:class:`TableModel` predicts from tables in their own units by it.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Self, cast

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError, need

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

#: Kinds of models: of a number, or its logarithm; of classes, with shares or without.
Loss = Literal["squared", "poisson", "logistic", "softmax", "margin"]
#: Fields that stand for nothing, beside pandas' own such as NA and an empty one.
_MISSING = ("?",)
_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
#: What reading a damaged packed file may raise, or one that is not packed at all;
#: RuntimeError is how zipfile asks for a password.
UNPACKING_ERRORS = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError),
)
_COMMA = r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*"
# the rest of a category's values, and the feature of missing numbers
_OTHER, _GONE = "(other)", "(missing)"
# cells of a column of numbers that may be something else: the rows' fault, not its kind
_BAD_SHARE = 0.1
_NO_TEXTS = ("number", "bool", "datetime", "datetimetz", "timedelta")


class DataFileError(SettingsError):
    """A data file is not what its setting says; the message names the file."""

    code = "data-file"


def open_packed(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed as its name's end says.

    Of a zip archive, whatever its name, the one csv file in it. What is wrong with the
    content shows while reading, as one of :data:`UNPACKING_ERRORS`.
    """
    if not zipfile.is_zipfile(path):
        return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if name.lower().endswith(".csv")]
    if len(names) != 1:
        count = f"the archive has {len(names)} csv files; it must have one"
        raise DataFileError(f"{path}: {count}")
    return cast(BinaryIO, archive.open(names[0]))


def read_frame(
    path: Path,
    bad_rows: str = "refuse",
    *,
    names: Sequence[str] = (),
    separator: str = "",
    texts: Sequence[str] = (),
) -> pd.DataFrame:
    """Read a csv file, packed or not: what separates fields and decimals is found out.

    ``names`` are those of the columns where the file has no line of them, ``texts`` the
    columns that stay texts. With ``bad_rows = "drop"`` a row with too many fields is
    left out. A DataFileError quotes nothing of the file.
    """
    need("pandas", f"{path}, a file of text,", "data")
    import pandas as pd

    if not path.exists():
        raise DataFileError(f"{path}: there is no file")
    options: dict[str, Any] = {
        "sep": separator,
        "dtype": dict.fromkeys(texts, str),
        "na_values": list(_MISSING),
        "skipinitialspace": True,
        "low_memory": False,  # a column's cells have one kind, in all parts of a file
        "on_bad_lines": "skip" if bad_rows == "drop" else "error",
    }
    if names:
        options |= {"names": names, "header": None}
    # from pandas 3.1 on numbers are exact to the last bit by default
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        options["float_precision"] = "round_trip"

    def read(encoding: str, **more: Any) -> pd.DataFrame:
        with open_packed(path) as file:
            return pd.read_csv(file, **options, encoding=encoding, **more)

    frame, encoding = None, "utf-8-sig"
    with suppress(ValueError, *UNPACKING_ERRORS):  # a ParserError is a ValueError, too
        with open_packed(path) as file:
            first = file.readline().split(b"\r", 1)[0]
        if not separator:
            # a line of names has nothing else as often
            options["sep"] = max(",;\t|", key=lambda one: first.count(one.encode()))
        try:
            frame = read(encoding)
        except UnicodeDecodeError:  # as spreadsheets on Windows write it
            encoding = "cp1252"
            frame = read(encoding)
        # blanks around a name are no part of it
        blank = [n for n in frame if str(n).strip() in texts and n not in texts]
        if blank:
            options["dtype"] |= dict.fromkeys(blank, str)
            frame = read(encoding)
        cells = frame.drop(columns=[*options["dtype"]], errors="ignore")
        cells = cells.select_dtypes(exclude=_NO_TEXTS)
        commas = []
        for name in cells:
            c = cells[name].dropna().astype(str)
            number = c.str.fullmatch(_COMMA)
            if c.str.contains(",").any() and number.mean() >= 1.0 - _BAD_SHARE:
                commas.append(name)
        if commas and options["sep"] != ",":
            frame = read(encoding, decimal=",")
            for name in commas:
                if (c := frame[name]).dtype.kind not in "biuf":
                    # a cell that is no number leaves its column texts
                    points = c.str.replace(",", ".", regex=False)
                    frame[name] = c.where(~c.str.fullmatch(_COMMA, na=False), points)
    # a row with more fields than there are names has its first as its own name
    if frame is None or frame.empty or not isinstance(frame.index, pd.RangeIndex):
        # outside of the except: a chained exception could quote the file
        why = "cannot be read as a csv table: a first line of column names and rows"
        hint = " with as many fields (data.bad-rows = 'drop' leaves the others out)"
        raise DataFileError(f"{path}: {why}{hint}")
    if not names and options["sep"] in (line := first.decode(encoding)):
        names = next(csv.reader([line], delimiter=options["sep"]))
        check_names(path, [name.strip() for name in names], "the first line")
    return frame.rename(columns=lambda name: str(name).strip())


def check_names(path: Path, names: Sequence[str], where: str) -> None:
    """Check the names of columns, showing none: they may be the first example."""
    for number, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            raise DataFileError(f"{path}: {where}: column {number} has no name")
        if name in names[: number - 1]:
            places = f"columns {names.index(name) + 1} and {number}"
            raise DataFileError(f"{path}: {where}: {places} have one name")


def as_numbers(values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
    """Return a column's numbers, NaN for others, and which cells are something else."""
    import pandas as pd

    found = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    finite = np.isfinite(found)
    return np.where(finite, found, np.nan), ~finite & ~values.isna().to_numpy()


def _as_days(values: pd.Series) -> tuple[Array, NDArray[np.bool_]]:
    """Return dates, of texts as ISO 8601 has them or 31.12.2020, as days since 1970."""
    import pandas as pd

    if values.dtype.kind in "biuf":  # a year or an hour is a number
        return np.full(len(values), np.nan), ~values.isna().to_numpy()
    read = partial(pd.to_datetime, values, errors="coerce", utc=True)
    # in microseconds, as nanoseconds end with the year 2262
    iso, german = (read(format=one).dt.as_unit("us") for one in ("ISO8601", "%d.%m.%Y"))
    dates = iso.fillna(german)
    epoch, day = pd.Timestamp(0, tz="UTC").as_unit("us"), pd.Timedelta(days=1)
    days = (dates - epoch) / day.as_unit("us")
    return days.to_numpy(np.float64), (dates.isna() & ~values.isna()).to_numpy()


def _as_texts(values: pd.Series) -> pd.Series:
    """Return a column's values as texts, whole numbers without a point."""

    def text(value: Any) -> str:
        return re.sub(r"^([-+]?\d+)\.0+$", r"\1", str(value).strip())

    return values.map(text, na_action="ignore").astype(object)


def describe(
    frame: pd.DataFrame, least: int, categories: Iterable[str] = ()
) -> dict[str, Any]:
    """Say of each column what it may be: counts of cells, and values that are common.

    A category's value is named if at least ``least`` rows have it; those of
    ``categories`` are some, whatever stands in them.
    """
    found = {}
    for name in frame:
        values = frame[name]
        about: dict[str, Any] = {
            "rows": len(values),
            "missing": int(values.isna().sum()),
        }
        there = (~values.isna()).to_numpy() if name in categories else None
        bad = as_numbers(values)[1] if there is None else there
        about["unlike-numbers"] = int(bad.sum())
        if about["unlike-numbers"]:
            bad = _as_days(values)[1] if there is None else there
            about["unlike-dates"] = int(bad.sum())
            counts = _as_texts(values).value_counts()
            common = counts[counts >= least]
            about["values"] = sorted(common.index)
            about["rare"] = len(values) - int(common.sum())
        found[str(name)] = about
    return found


@dataclass(frozen=True)
class Column:
    """What becomes of a column.

    ``kind``: a number, a date (days since 1970) or a category; ``categories`` are the
    values that have a feature each, ``other`` is whether the rest have one, ``missing``
    whether it is one that a number is missing.
    """

    name: str
    kind: Literal["number", "date", "category"]
    categories: tuple[str, ...] = ()
    other: bool = False
    missing: bool = False

    def features(self) -> list[str]:
        """Return the names of its features."""
        if self.kind != "category":
            return [self.name] + [f"{self.name} {_GONE}"] * self.missing
        values = [*self.categories, *[_OTHER] * self.other]
        return [f"{self.name}={value}" for value in values]

    def expand(self, values: pd.Series) -> Array:
        """Return its features of rows, (d, k), NaN where a number is missing."""
        if self.kind == "category":
            texts = _as_texts(values)
            parts = [(texts == value).to_numpy() for value in self.categories]
            parts += [(~texts.isin(self.categories)).to_numpy()] * self.other
        else:
            number = (as_numbers if self.kind == "number" else _as_days)(values)[0]
            parts = [number, *[np.isnan(number)] * self.missing]
        return np.column_stack(parts).astype(np.float64)

    def bad(self, values: pd.Series) -> NDArray[np.bool_]:
        """Say which cells are neither missing nor of its kind."""
        if self.kind == "category":
            return np.zeros(len(values), np.bool_)
        return (as_numbers if self.kind == "number" else _as_days)(values)[1]


def columns_of(found: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Make columns of what JSON has of them."""
    parts = [{**part, "categories": tuple(part["categories"])} for part in found]
    return tuple(Column(**part) for part in parts)


def agree(
    summaries: Sequence[Mapping[str, Any]], least: int
) -> tuple[list[Column], list[str]]:
    """Make columns of what owners say of them, and a line for each that is left out.

    A column of which nearly all cells are numbers is one of numbers, if they are dates,
    one of dates; of the others a value that all owners, or at least ``least`` of them,
    have named, has a feature.
    """
    columns, dropped = [], []
    owners = min(least, len(summaries))
    names = [n for n in summaries[0] if all(n in s for s in summaries)]
    rare = {n: None for s in summaries for n in s if n not in names}
    dropped += [f"column {name!r} is left out: not every file has it" for name in rare]
    for name in names:
        of = [summary[name] for summary in summaries]
        rows, gone = (sum(s[key] for s in of) for key in ("rows", "missing"))
        unlike = sum(s["unlike-numbers"] for s in of)
        undated = sum(s.get("unlike-dates", s["rows"] - s["missing"]) for s in of)
        missing = sum(s["missing"] >= least for s in of) >= owners
        if gone == rows:
            dropped.append(f"column {name!r} is left out: it is empty")
        elif unlike <= _BAD_SHARE * (rows - gone):
            columns.append(Column(name, "number", missing=missing))
        elif undated <= _BAD_SHARE * (rows - gone):
            columns.append(Column(name, "date", missing=missing))
        else:
            counts: dict[str, int] = {}
            for value in (v for s in of for v in s.get("values", ())):
                counts[value] = counts.get(value, 0) + 1
            kept = tuple(sorted(v for v, n in counts.items() if n >= owners))
            if kept:
                other = any(s.get("rare", s["rows"]) for s in of)
                other |= len(kept) < len(counts)
                columns.append(Column(name, "category", kept, other=other))
            else:
                why = f"none of its values is in {least} rows (data.least)"
                dropped.append(f"column {name!r} is left out: {why}")
    return columns, dropped


class Moments(NamedTuple):
    """Sums of weights, means and summed squared deviations of features: (p,) each."""

    weight: Array
    mean: Array
    spread: Array


def moments(features: Array, weights: Array | None = None, least: int = 1) -> Moments:
    """Return what an owner says of features; of what is missing nothing counts.

    Nothing, zeros, is said of a feature that fewer than ``least`` rows have.
    """
    known = ~np.isnan(features)
    s = known if weights is None else known * weights[:, None]
    total = s.sum(axis=0).astype(np.float64)
    safe = np.where(total > 0.0, total, 1.0)
    values = np.where(known, features, 0.0)
    # a column of one value is exactly that
    first = np.where(
        known.any(axis=0), values[known.argmax(axis=0), range(len(safe))], 0
    )
    mean = first + (s * (values - first)).sum(axis=0) / safe
    spread = (s * np.square(values - mean)).sum(axis=0)
    shown = known.sum(axis=0) >= least
    return Moments(*(np.where(shown, part, 0.0) for part in (total, mean, spread)))


def pool(parts: Sequence[Moments]) -> Moments:
    """Put owners' moments together, without the cancellation of sums of squares."""
    weight, mean, spread = (array.copy() for array in parts[0])
    for w, m, s in parts[1:]:
        total = weight + w
        share = w / np.where(total > 0.0, total, 1.0)
        spread += s + np.square(m - mean) * weight * share
        mean += (m - mean) * share
        weight = total
    return Moments(weight, mean, spread)


def summarise(
    features: Array, targets: Array, weights: Array, classes: int = 0, least: int = 1
) -> dict[str, Any]:
    """Say of rows what :meth:`Preparation.of_owners` needs, as JSON has it.

    Targets are numbers, or with ``classes`` the classes' numbers. Nothing, zeros, is
    said of what fewer than ``least`` rows have.
    """
    about: Sequence[NDArray[Any]] = moments(targets[:, None], weights, least)
    if classes:
        codes = targets.astype(np.intp) if len(targets) >= least else np.arange(0)
        about = [np.bincount(codes, weights[: len(codes)], classes)]
    found = moments(features, weights, least)
    lists = ([array.tolist() for array in part] for part in (found, about))
    return dict(zip(("moments", "targets"), lists, strict=True), rows=len(targets))


@dataclass(frozen=True, eq=False)
class Preparation:
    """What a table's columns become, in the model's order.

    Features are centred and divided by their deviations (``scaling = "standard"``), or
    only by norms (``"unit-columns"``), or rows by theirs (``"unit-rows"``), or by
    nothing (``"none"``). What is missing is the mean. ``offset`` was taken off the
    target; ``classes`` are the labels, class 0 first, none where it is a number.
    """

    columns: tuple[Column, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    scaling: str = "standard"
    target: str = "label"
    classes: tuple[str | float, ...] = ()
    offset: float = 0.0
    #: the classes' shares, or the variance of a number, and how many rows there were
    spread: tuple[float, ...] = ()
    rows: int = 0

    @classmethod
    def of_moments(
        cls,
        columns: Sequence[Column],
        found: Moments,
        scaling: str = "standard",
        **target: Any,
    ) -> Self:
        """Make it of the pooled moments of the columns' features."""
        variances = found.spread / np.where(found.weight > 0.0, found.weight, 1.0)
        # what varies by rounding alone does not vary
        small = np.square(1e-13 * found.mean)
        if scaling == "unit-columns":
            squares = found.spread + found.weight * np.square(found.mean)
            deviations = np.sqrt(squares)
        else:
            deviations = np.sqrt(np.where(variances > small, variances, 0.0))
        lists = tuple(found.mean.tolist()), tuple(deviations.tolist())
        return cls(tuple(columns), *lists, scaling, **target)

    @classmethod
    def of_owners(
        cls,
        columns: Sequence[Column],
        found: Sequence[Mapping[str, Any]],
        scaling: str,
        *,
        target: str,
        classes: tuple[str | float, ...] = (),
    ) -> Self | None:
        """Make it of what owners say by :func:`summarise`; None: of nothing.

        Σ_k s_k (a_kᵀx + c − b_k)² is least in c at c = b̄ − āᵀx, the means with F's
        weights s: for columns and targets without these c is 0, whatever x.
        """
        features, targets = (
            [list(map(np.array, one[part])) for one in found]
            for part in ("moments", "targets")
        )
        offset, rows = 0.0, sum(one["rows"] for one in found)
        if classes:
            weight = np.sum([counts for [counts] in targets], axis=0)
            spread = weight / (weight.sum() or 1.0)
        else:
            weight, mean, total = pool([Moments(*one) for one in targets])
            spread, offset = total / np.where(weight > 0.0, weight, 1.0), float(mean[0])
        if not weight.any():
            return None
        about = {"target": target, "classes": classes, "offset": offset, "rows": rows}
        pooled = pool([Moments(*one) for one in features])
        if scaling == "unit-columns":  # a norm counts rows, whatever these weigh in F
            shown = (
                one["rows"] * np.any(of[0])
                for one, of in zip(found, targets, strict=True)
            )
            each = sum(shown) / weight.sum()
            pooled = Moments(pooled.weight * each, pooled.mean, pooled.spread * each)
        about["spread"] = tuple(spread.tolist())
        return cls.of_moments(columns, pooled, scaling, **about)

    def names(self) -> tuple[str, ...]:
        """Return the features' names."""
        return tuple(name for column in self.columns for name in column.features())

    def divisors(self) -> Array:
        """Return what each feature is divided by."""
        d = np.array(self.deviations)
        unscaled = self.scaling in ("none", "unit-rows")
        return np.ones_like(d) if unscaled else np.where(d > 0.0, d, np.inf)

    def shifts(self) -> Array:
        """Return what is taken off each feature."""
        means = np.array(self.means)
        return means if self.scaling == "standard" else np.zeros_like(means)

    def transform(self, table: pd.DataFrame | str | Path) -> Array:
        """Return the features of rows as the model takes them, (d, p), in float64.

        SettingsError: a column is missing, or has a cell that is not of its kind.
        """
        frame: Any = table
        if isinstance(table, str | Path):
            texts = [c.name for c in self.columns if c.kind == "category"]
            frame = read_frame(Path(table), texts=texts)
        for column in self.columns:
            if column.name not in frame:
                raise SettingsError(f"the table has no column {column.name!r}")
            codes = any(re.match(r"0\d", text) for text in column.categories)
            if codes and frame[column.name].dtype.kind in "iuf":
                what = f"column {column.name!r}: 007 is not 7"
                raise SettingsError(f"{what}; read it as texts (dtype=str)")
            bad = column.bad(frame[column.name])
            if bad.any():
                row = f"row {int(bad.argmax()) + 1}, column {column.name!r}"
                raise SettingsError(f"{row}: must be a {column.kind}")
        return self.scaled(expand(self.columns, frame))

    def scaled(self, features: Array) -> Array:
        """Fill and scale what :func:`expand` makes."""
        filled = np.where(np.isnan(features), np.array(self.means), features)
        filled = (filled - self.shifts()) / self.divisors()
        if self.scaling == "unit-rows":
            lengths = np.linalg.norm(filled, axis=1, keepdims=True)
            filled /= np.where(lengths > 0.0, lengths, 1.0)
        return filled

    def meaning(self, loss: str, intercept: float) -> dict[str, Any]:
        """Return what a record holds of a model; its last row times this is one."""
        return {"loss": loss, "intercept": intercept, "table": asdict(self)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Make it of what JSON has of its fields."""
        known = {field.name: found[field.name] for field in fields(cls)}
        known["columns"] = columns_of(known["columns"])
        for name in ("means", "deviations", "classes", "spread"):
            known[name] = tuple(known[name])
        return cls(**known)


def expand(columns: Iterable[Column], frame: pd.DataFrame) -> Array:
    """Return all features of rows, (d, p), unscaled, NaN where a number is missing."""
    parts = [column.expand(frame[column.name]) for column in columns]
    return np.hstack(parts) if parts else np.empty((len(frame), 0))


#: Losses whose models give classes probabilities.
SHARES = ("logistic", "softmax")


class TableModel(dict[str, NDArray[Any]]):
    """A run's model: its arrays by name, and what it predicts of a table.

    A record of a run on tables knows what their columns became; of others only the
    arrays are there, and the rest is a SettingsError.

    Examples
    --------
    >>> import fedtrellis
    >>> run = fedtrellis.load_run("RECORD")  # doctest: +SKIP
    >>> run.model.predict("new.csv")  # doctest: +SKIP
    array(['no', 'yes', 'no'])
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(arrays)
        self.about = about or {}

    @property
    def known(self) -> bool:
        """Whether it is known what a row is."""
        return "table" in self.about

    def _known(self) -> Mapping[str, Any]:
        if not self.known:
            why = "it is not of a linear model of a table that the run prepared"
            raise SettingsError(f"the record does not say what a row is: {why}")
        return self.about

    @property
    def preparation(self) -> Preparation:
        """What the columns of a table become."""
        return Preparation.from_json(self._known()["table"])

    def _parts(self) -> tuple[Array, Any]:
        """Weights of scaled features, (p,) or (p, C), and the intercept."""
        (x,) = (array.astype(np.float64) for array in self.values())
        constant = self._known()["intercept"]
        return (x[:-1], constant * x[-1]) if constant else (x, 0.0)

    @property
    def loss(self) -> Loss:
        """What the model minimised."""
        loss: Loss = self._known()["loss"]
        return loss

    def linear(self) -> tuple[Array, Any]:
        """Return weights and intercept of the features in the table's own units.

        Shapes (p,) and (), or (p, C) and (C,). SettingsError: rows are scaled, too.
        """
        (w, b), made = self._parts(), self.preparation
        if made.scaling == "unit-rows":
            raise SettingsError("scaling = 'unit-rows' divides rows: no weights do so")
        w = (w.T / made.divisors()).T
        return w, b - made.shifts() @ w + made.offset

    def scores(self, table: pd.DataFrame | str | Path) -> Array:
        """Return the rows' scores, (d,) or (d, C); of a regression the prediction.

        ``table`` is a data frame, or the path of a csv file, in the units of the
        table that the run learnt from; a label is not needed. SettingsError: a column
        is missing, or a cell is not of its kind.
        """
        (w, b), made = self._parts(), self.preparation
        return np.asarray(made.transform(table) @ w + b + made.offset)

    def predict(self, table: pd.DataFrame | str | Path) -> NDArray[Any]:
        """Return what each row's target is, (d,): a number, or a class by its label."""
        scores = self.scores(table)
        if self.loss in ("squared", "poisson"):
            return scores if self.loss == "squared" else np.asarray(np.exp(scores))
        chosen = scores > 0.0 if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes[chosen.astype(np.intp)]

    @property
    def classes(self) -> NDArray[Any]:
        """The classes' labels, in the order of :meth:`predict_proba`'s columns."""
        labels = self.preparation.classes
        return np.array([x if isinstance(x, str) or x % 1 else int(x) for x in labels])

    def predict_proba(self, table: pd.DataFrame | str | Path) -> Array:
        """Return each class's probability, (d, C); SettingsError: there is none."""
        if self.loss not in SHARES:
            raise SettingsError(f"the {self.loss} loss gives no class a probability")
        scores = self.scores(table)
        if scores.ndim == 1:
            right = scipy.special.expit(scores)
            return np.column_stack([scipy.special.expit(-scores), right])
        return np.asarray(scipy.special.softmax(scores, axis=1))
