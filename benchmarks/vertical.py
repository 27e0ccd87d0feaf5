"""Columns split over two parties: HyFDCA beside a Taylor gradient under Paillier.

Both minimise (λ/2)‖w‖² + (1/N) Σ ln(1 + exp(−y_i x_iᵀw)); see
:mod:`benchmarks.taylor_paillier` for what the other one takes for it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from scipy.special import expit
from sklearn.datasets import load_breast_cancer

from clients import HyFDCAClient
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import make_loss
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.client import client_app
from fedtrellis.wire.local_grid import LocalGrid
from strategies import HyFDCA

from .report import Aim, Comparison, Row
from .taylor_paillier import Paillier, encrypted_gradient, taylor_descent

__all__ = ["FULL", "QUICK", "Case", "compare", "credit"]

_TOLERANCE = 1e-4
_REGULARIZATION = 1e-3
# How near the Taylor gradient has to come to the lowest loss of this many iterations.
_SLACK = 0.01
_LONGEST = 2_000
_CREDIT_COLUMNS = 25
_BILLS = 6


@dataclass(frozen=True)
class Case:
    """How much is measured.

    Parameters
    ----------
    credit_rows : int
    encrypted_rows : int
        Of how many rows a gradient is computed under Paillier; that of more is scaled.
    """

    credit_rows: int
    encrypted_rows: int


QUICK = Case(3_000, 20)
FULL = Case(30_000, 1_000)


@dataclass(frozen=True)
class _Data:
    """Standardised columns with a constant last, and labels −1 and +1."""

    name: str
    X: FloatArray
    y: FloatArray

    @property
    def parts(self) -> tuple[FloatArray, FloatArray]:
        """The two parties' columns."""
        half = self.X.shape[1] // 2
        return self.X[:, :half], self.X[:, half:]

    @cached_property
    def problem(self) -> RegularizedLoss:
        """What both are judged by."""
        return RegularizedLoss(self.X, self.y, make_loss("logistic"), _REGULARIZATION)


def _standardised(columns: FloatArray) -> FloatArray:
    scaled = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return np.column_stack([scaled, np.ones(len(columns))])


def credit(rows: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Generate columns like a bank's, and who does not pay.

    A limit, an age and four more of a person; six months of bills, which follow one
    another, payments, which follow the bills, and delays; a constant. A fifth to a
    quarter of all default, by a logistic model of limit, delays and payments.

    Parameters
    ----------
    rows : int
    seed : int, default 0

    Returns
    -------
    (ndarray of shape (rows, 25), ndarray of shape (rows,))
        Standardised but for the constant, which is last; −1 and +1.
    """
    rng = np.random.default_rng(seed)
    limit = rng.lognormal(11.5, 0.9, rows)
    age = 21.0 + 50.0 * rng.beta(2.0, 4.0, rows)
    person = rng.integers(1, 5, (rows, 4)).astype(np.float64)
    # a share of the limit that changes slowly
    use = np.cumsum(rng.normal(0.0, 0.3, (rows, _BILLS)), axis=1)
    bills = limit[:, None] * expit(use + rng.normal(-0.5, 1.0, (rows, 1)))
    habit = rng.normal(0.0, 1.0, (rows, 1))
    payments = bills * expit(habit + rng.normal(-1.5, 0.7, (rows, _BILLS)))
    delays = np.maximum(np.rint(rng.normal(0.0, 1.0, (rows, _BILLS)) - habit), 0.0)
    table = _standardised(
        np.column_stack([limit, age, person, bills, payments, delays])
    )
    assert table.shape[1] == _CREDIT_COLUMNS
    truth = np.zeros(_CREDIT_COLUMNS)
    truth[0], truth[1], truth[-8] = -0.3, 0.1, -0.4
    truth[-7:-1] = np.linspace(0.2, 0.7, _BILLS)
    truth[-1] = -1.6
    y = np.where(rng.random(rows) < expit(table @ truth), 1.0, -1.0)
    return table, y


def _breast_cancer() -> _Data:
    X, y = load_breast_cancer(return_X_y=True)
    return _Data("breast cancer", _standardised(X), 2.0 * y - 1.0)


class _Reached(Callback):
    """Ends a run as soon as a certified model is as low as a value."""

    def __init__(self, value: float) -> None:
        self._value = value

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        return record.metrics.get("primal", math.inf) <= self._value


@dataclass(frozen=True)
class _Run:
    w: FloatArray
    iterations: int
    seconds: float
    size: int


def _hyfdca(data: _Data, tolerance: float, goal: float = -math.inf) -> _Run:
    """Run HyFDCA as two nodes, to a relative gap or to a value."""
    ids = [str(i) for i in range(len(data.y))]
    starts = (0, data.parts[0].shape[1])
    names = [
        [f"x{start + j}" for j in range(part.shape[1])]
        for start, part in zip(starts, data.parts, strict=True)
    ]

    def client_fn(context: Context) -> HyFDCAClient:
        number = int(context.node_config["partition-id"])
        return HyFDCAClient(
            context,
            features=data.parts[number],
            feature_names=names[number],
            sample_ids=ids,
            labels=data.y if number else None,
        )

    strategy = HyFDCA(
        loss="logistic",
        regularization=_REGULARIZATION,
        tolerance=tolerance,
        # a column has one holder, whose sums are the model itself
        exposed="accept",
        callbacks=[_Reached(goal)],
    )
    grid = LocalGrid(client_app(client_fn), 2, encode=True)
    start = ArrayRecord([np.zeros(data.X.shape[1])])
    began = time.process_time()
    result = strategy.start(grid, start, num_rounds=1000)
    passed = time.process_time() - began
    (w,) = result.arrays.to_numpy_ndarrays()
    return _Run(w, len(strategy.history), passed, grid.bytes_up + grid.bytes_down)


def _taylor(data: _Data, paillier: Paillier, rows: int) -> tuple[_Run, int]:
    """Run the other one: an iteration measured on some rows, and as many in the clear.

    Returns
    -------
    (_Run, int)
        Seconds and bytes of all iterations and rows, and how many rows were encrypted.
    """
    run = taylor_descent(
        data.X,
        data.y,
        _REGULARIZATION,
        data.problem.value,
        slack=_SLACK,
        iterations=_LONGEST,
    )
    rows = min(rows, len(data.y))
    X, y = data.X[:rows], data.y[:rows]
    parts = [part[:rows] for part in data.parts]
    measured = encrypted_gradient(paillier, parts, y, run.w)
    expected = X.T @ (0.25 * (X @ run.w) - 0.5 * y) / rows
    if np.abs(measured.gradient - expected).max() > 1e-5:
        raise RuntimeError("the encrypted gradient is not that of the expanded loss")
    # ciphertexts are of samples, but for one of each column
    times = run.iterations * len(data.y) / rows
    size = round(times * measured.size)
    return _Run(run.w, run.iterations, times * measured.seconds, size), rows


def _row(data: _Data, method: str, run: _Run, best: float, note: str = "") -> Row:
    value = data.problem.value(run.w)
    return {
        "data": f"{data.name}, {data.X.shape[0]:,} x {data.X.shape[1]}",
        "method": method,
        "iterations": run.iterations,
        "loss": f"{value:.6f}",
        "above the optimum": f"{(value - best) / best:.1e}",
        "seconds": f"{run.seconds:,.2f}",
        "MB": f"{run.size / 1e6:,.2f}",
        "measured": note,
    }


def compare(case: Case) -> Iterator[Comparison]:
    """Three rows a data set; the aim is on seconds at the Taylor loss."""
    result = Comparison(
        "vertical",
        "Columns split over two parties: logistic regression",
        f"lambda = {_REGULARIZATION:g}. Processor time of all parties, one after the "
        f"other, on one core; bytes of all messages. HyFDCA to a relative gap of "
        f"{_TOLERANCE:g}, and to the loss that the Taylor gradient reaches with the "
        f"best fixed step: it stops within {_SLACK:.0%} of the lowest that it comes to "
        f"in {_LONGEST:,} iterations. One of these is computed under Paillier-2048, on "
        "as many rows as 'measured' says; seconds and bytes are that times the "
        "iterations, and times the rows that there are. LocalGrid encodes HyFDCA's "
        "messages, Paillier's are counted.",
    )
    paillier: Paillier | None = None
    try:
        phe = importlib.import_module("phe")
    except ImportError:
        result.about += " The Taylor gradient was left out: phe is not installed."
    else:
        with_gmpy2 = "with" if phe.util.HAVE_GMP else "without"
        result.about += f" phe computes {with_gmpy2} gmpy2 here."
        paillier = Paillier(phe)
    for data in (
        _breast_cancer(),
        _Data("credit", *credit(min(1_000, case.credit_rows))),
        _Data("credit", *credit(case.credit_rows)),
    ):
        best = central_optimum(data.problem).value
        ours = _hyfdca(data, _TOLERANCE)
        result.rows.append(_row(data, "HyFDCA", ours, best, "all"))
        if paillier is None:
            continue
        other, encrypted = _taylor(data, paillier, case.encrypted_rows)
        same = _hyfdca(data, 0.0, data.problem.value(other.w))
        result.rows.append(_row(data, "HyFDCA, to Taylor's loss", same, best, "all"))
        note = f"1 iteration of {encrypted} rows"
        result.rows.append(_row(data, "Taylor, Paillier", other, best, note))
        ratio = other.seconds / same.seconds
        result.aims.append(
            Aim(
                f"{data.name}, {len(data.y):,} rows: at the Taylor gradient's loss "
                "HyFDCA takes less time",
                f"{ratio:,.0f} times less, {other.size / same.size:,.0f} times fewer "
                "bytes",
                ratio > 1.0,
            )
        )
    yield result
