"""The data sets, as the paper splits them, in the size that is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from reproduce.common import Options, SkippedError, read_config

__all__ = [
    "AVAILABLE",
    "PROBLEMS",
    "Problem",
    "Split",
    "config_of",
    "inner_steps",
    "present",
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
    file : str
        A file that has to be there; empty: none.
    splits : tuple of Split
        From few clients to many.
    paper_optimum : float
        Table 5; 0: not in the paper.
    sizes : tuple of int
        The most training samples, in full and in a quick run; 0: all.
    tuned : dict
        The paper's hyper-parameters (tables 2 to 4) by its setting and fraction:
        HyFDCA's IIC; IIC, a and b of FedAvg; IIC, a, b and μ of HyFEM.
    """

    title: str
    settings: dict[str, Any]
    file: str
    splits: tuple[Split, ...]
    paper_optimum: float = 0.0
    sizes: tuple[int, int] = (0, 0)
    tuned: Mapping[tuple[str, float], tuple[float, ...]] | None = None


_GRID = (Split(1, 4, "5"), Split(4, 4, "500"), Split(25, 4, "5000"))
_GROUPS = (Split(3, 3, "3, 3"), Split(5, 5, "5, 5"), Split(12, 12, "12, 12"))

_MNIST = {
    ("5", 0.1): (1.876e-4, 0.04872, 0.05857, 0.1124, 0.00568, 6.007e-5, 1.015, 6.296),
    ("5", 0.5): (1.564e-3, 0.04872, 0.05857, 0.1124, 0.00568, 6.007e-5, 1.015, 6.296),
    ("5", 0.9): (2.816e-3, 0.01718, 0.02867, 4.823e-4, 0.00568, 6.007e-5, 1.015, 6.296),
    ("500", 0.1): (
        *(0.03827, 0.01718, 0.02867, 4.823e-4, 0.05594),
        *(4.672e-4, 0.05344, 2.797),
    ),
    ("500", 0.5): (
        *(2.252e-3, 0.06561, 0.04185, 4.166e-5, 0.00568),
        *(6.007e-5, 1.015, 6.296),
    ),
    ("500", 0.9): (0.08337, 0.04872, 0.05857, 0.1124, 0.00568, 6.007e-5, 1.015, 6.296),
    ("5000", 0.1): (
        *(2.673e-3, 1.618, 0.003995, 0.8498, 0.05594),
        *(4.672e-4, 0.05344, 2.797),
    ),
    ("5000", 0.5): (
        *(3.154e-4, 1.618, 0.003995, 0.8498, 0.00568),
        *(6.007e-5, 1.015, 6.296),
    ),
    ("5000", 0.9): (
        *(0.02195, 1.618, 0.003995, 0.8498, 0.05594),
        *(4.672e-4, 0.05344, 2.797),
    ),
}
_NEWS20 = {
    ("3, 3", 0.1): (0.01448, *(0.003037, 0.8753, 0.4597) * 2, 1.0),
    ("3, 3", 0.5): (0.01187, *(0.002873, 4.891, 4.496) * 2, 1.0),
    ("3, 3", 0.9): (0.01122, *(0.002873, 4.891, 4.496) * 2, 1.0),
    ("5, 5", 0.1): (0.03072, *(0.002873, 4.891, 4.496) * 2, 1.0),
    ("5, 5", 0.5): (0.0286, *(0.003037, 0.8753, 0.4597) * 2, 1.0),
    ("5, 5", 0.9): (0.03072, *(0.002873, 4.891, 4.496) * 2, 1.0),
    ("12, 12", 0.1): (0.08568, 4.542, 3.792, 0.1815, 0.03, 3.792, 0.1815, 1.0),
    ("12, 12", 0.5): (0.08504, *(4.542, 3.792, 0.1815) * 2, 1.0),
    ("12, 12", 0.9): (0.07564, *(4.542, 3.792, 0.1815) * 2, 1.0),
}
_SHORT = (0.02291, 0.4475, 3.501e-4)
_COVTYPE = {
    ("3, 3", 0.1): (1.326e-4, *_SHORT, 0.03747, 0.6675, 0.01209, 0.01458),
    ("3, 3", 0.5): (2.643e-4, *_SHORT, 0.03747, 0.6675, 0.01209, 0.01458),
    ("3, 3", 0.9): (5.533e-5, *_SHORT, 0.02038, 0.4948, 0.08829, 0.01155),
    ("5, 5", 0.1): (7.376e-5, 0.03647, 0.3247, 4.514, 0.413, 1.982, 1.058, 0.02459),
    ("5, 5", 0.5): (8.319e-4, *_SHORT, 4.909e-5, 1.913, 4.679, 0.6115),
    ("5, 5", 0.9): (1.326e-4, 0.03647, 0.3247, 4.514, 0.05226, 2.41, 0.0142, 0.06684),
    ("12, 12", 0.1): (
        *(8.319e-4, 5.59e-4, 0.05344, 0.004065, 1.02e-4),
        *(0.1264, 3.874e-4, 8.775),
    ),
    ("12, 12", 0.5): (
        *(7.434e-4, 5.59e-4, 0.05344, 0.004065, 0.03747),
        *(0.6675, 0.01209, 0.01458),
    ),
    ("12, 12", 0.9): (
        *(7.434e-4, 0.2494, 11.93, 0.05131, 0.05226),
        *(2.41, 0.0142, 0.06684),
    ),
}

PROBLEMS = {
    "digits": Problem("scikit-learn's digits", {"dataset": "digits"}, "", _GRID),
    "mnist": Problem(
        "MNIST",
        {"dataset": "mnist", "path": "mnist", "bias": 10.0},
        "mnist/train-images-idx3-ubyte.gz",
        _GRID,
        0.07242,
        (5000, 400),
        _MNIST,
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
        "libsvm/news20_multiclass.bz2",
        _GROUPS,
        0.008017,
        (4000, 400),
        _NEWS20,
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
        "covtype/covtype.data.gz",
        _GROUPS,
        0.5286,
        (5000, 400),
        _COVTYPE,
    ),
}


def config_of(
    problem: Problem,
    options: Options,
    split: Split | None = None,
    *,
    all_: bool = False,
) -> dict[str, Any]:
    """Make a run config.

    Parameters
    ----------
    split : Split, optional
    all_ : bool
        Whether all training samples are taken.
    """
    settings = dict(problem.settings)
    if "path" in settings:
        options.file(problem.file)
        assert options.data is not None
        settings["path"] = str(options.data / settings["path"])
    if split is not None:
        settings["sample-groups"] = split.samples
        settings["feature-groups"] = split.features
    if not all_:
        settings["train-limit"] = problem.sizes[options.quick]
    base = read_config(HERE / "hyfdca.toml")
    return base | {f"hybrid-svm.{key}": value for key, value in settings.items()}


def present(options: Options, names: tuple[str, ...] = ()) -> dict[str, Problem]:
    """The problems whose files are there, and all that need none.

    Raises
    ------
    SkippedError
        None is.
    """
    found = {}
    missing: SkippedError | None = None
    for name in names or tuple(PROBLEMS):
        problem = PROBLEMS[name]
        try:
            if problem.file:
                options.file(problem.file)
        except SkippedError as error:
            missing = error
            print(f"  without {problem.title}: {error}")
        else:
            found[name] = problem
    if not found:
        assert missing is not None
        raise missing
    return found


def inner_steps(iic: float, samples: int, nodes: int) -> int:
    """H = ⌈IIC · N/(KQ)⌉, the paper's (13)."""
    return max(1, ceil(iic * samples / nodes))
