"""The data sets, as the paper splits them, in the size that is run here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from reproduce.common import Options, SkippedError, read_config, read_csv

__all__ = [
    "AVAILABLE",
    "PROBLEMS",
    "Problem",
    "Split",
    "config_of",
    "inner_steps",
    "present",
    "published",
]

HERE = Path(__file__).parent

#: The paper's fractions of clients that are there in an iteration.
AVAILABLE = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Split:
    """Sample groups × feature groups, and the paper's setting in whose place it is."""

    samples: int
    features: int
    paper: str

    @property
    def nodes(self) -> int:
        """The number of clients."""
        return self.samples * self.features

    @property
    def label(self) -> str:
        """As tables and pictures have it."""
        return f"{self.samples} × {self.features}"


@dataclass(frozen=True)
class Problem:
    """A data set, how it is split, and what the paper has for it.

    Attributes
    ----------
    title : str
    settings : dict
        Of the task, without the prefix.
    splits : tuple of Split
        From few clients to many.
    paper_optimum : float
        Table 5; 0: not in the paper.
    sizes : tuple of int
        The most training samples, in full and in a quick run; 0: all.
    """

    title: str
    settings: dict[str, Any]
    splits: tuple[Split, ...]
    paper_optimum: float = 0.0
    sizes: tuple[int, int] = (0, 0)


_GRID = (Split(1, 4, "5"), Split(4, 4, "500"), Split(25, 4, "5000"))
_GROUPS = (Split(3, 3, "3, 3"), Split(5, 5, "5, 5"), Split(12, 12, "12, 12"))

PROBLEMS = {
    "digits": Problem("scikit-learn's digits", {"dataset": "digits"}, _GRID),
    "mnist": Problem(
        "MNIST",
        {"dataset": "mnist", "path": "mnist", "bias": 10.0},
        _GRID,
        0.07242,
        (5000, 400),
    ),
    "news20": Problem(
        "News20",
        {
            "dataset": "news20",
            "path": "libsvm/news20_multiclass.bz2",
            "partition": "entries",
            "row-scaling": "unit",
            "bias": 0.0,
            "regularization": 1e-5,
        },
        _GROUPS,
        0.008017,
        (4000, 400),
    ),
    "covtype": Problem(
        "Covtype",
        {
            "dataset": "covtype",
            "path": "covtype/covtype.data.gz",
            "partition": "entries",
            "bias": 0.0,
            "regularization": 5e-5,
            # 11 620 of 581 012 samples
            "test-fraction": 0.02,
        },
        _GROUPS,
        0.5286,
        (5000, 400),
    ),
}


def config_of(
    problem: Problem, options: Options, split: Split, *, all_: bool = False
) -> dict[str, Any]:
    """Make a run config, of a part of the training samples or of all of them."""
    settings = dict(problem.settings)
    if "path" in settings:
        settings["path"] = str(options.file(settings["path"]))
    settings["sample-groups"] = split.samples
    settings["feature-groups"] = split.features
    if not all_:
        settings["train-limit"] = problem.sizes[options.quick]
    base = read_config(HERE / "hyfdca.toml")
    return base | {f"hybrid-svm.{key}": value for key, value in settings.items()}


def present(options: Options) -> dict[str, Problem]:
    """The problems whose files are there, and the one that needs none."""
    found = {}
    for name, problem in PROBLEMS.items():
        try:
            config_of(problem, options, problem.splits[0])
        except SkippedError as error:
            options.without(problem.title, error)
        else:
            found[name] = problem
    return found


@cache
def _published() -> dict[tuple[str, str, float], dict[str, float]]:
    rows = read_csv(HERE / "published.csv")
    return {
        (row["problem"], row["setting"], float(row["there"])): {
            key: float(value)
            for key, value in row.items()
            if value and key not in ("problem", "setting")
        }
        for row in rows
    }


def published(problem: str, split: str, available: float) -> dict[str, float]:
    """The paper's hyper-parameters (tables 2 to 4) and seconds (6 to 8), if any."""
    return _published().get((problem, split, available), {})


def inner_steps(iic: float, samples: int, nodes: int) -> int:
    """H = ⌈IIC · N/(KQ)⌉, the paper's (13)."""
    return max(1, ceil(iic * samples / nodes))
