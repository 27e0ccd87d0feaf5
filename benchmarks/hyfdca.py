"""HyFDCA: where an iteration's time goes, and how fast the loss falls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from clients import HybridFedAvgClient, HyFDCAClient, HyFEMClient
from fedtrellis.dual.regularized_loss import RegularizedLoss, central_optimum
from fedtrellis.objectives.losses import Hinge
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.arrays import FloatArray, array_record, record_arrays
from fedtrellis.wire.client import client_app
from strategies import HybridFedAvg, HyFDCA, HyFEM
from strategies.hybrid import HybridStrategy
from tasks import ClientData, HybridSVM, HybridTask

from .hyfdca_split import Clock, IterationTimes, SplitGrid, instrumented
from .report import Aim, Comparison, Row, Spread, ratios

__all__ = ["FULL", "QUICK", "Cases", "IterationCase", "LossCase", "compare"]

_MNIST = "train-images-idx3-ubyte.gz"
_CIPHERS = ("stream", "none")
# MNIST's corners and 2 sample groups leave sums over few; what is measured is time.
_EXPOSED: Any = "accept"
_SHARE = 0.15


@dataclass(frozen=True)
class IterationCase:
    """A whole iteration on MNIST's quadrants, or on random data of that size.

    Parameters
    ----------
    samples, side : int
        n, and the images' height and width; one more feature for the bias.
    groups : int
        Sample groups; four feature groups each.
    iterations : int
        Measured of each run.
    turns : int
        Runs with and without encryption, in turn.
    real : bool
        Whether MNIST is taken where ``FEDTRELLIS_DATA`` has it.
    """

    samples: int = 60_000
    side: int = 28
    groups: int = 4
    iterations: int = 6
    turns: int = 3
    real: bool = True


@dataclass(frozen=True)
class LossCase:
    """Relative loss against time, 16 clients, 4 × 4.

    Parameters
    ----------
    name : str
    make : callable
        The task, for 16 clients; None where its data is not there.
    rounds : tuple of int
        The most of HyFDCA's, and of the baselines' rounds.
    turns : int
    goals : tuple of float
        Relative losses whose times are taken.
    """

    name: str
    make: Callable[[], HybridTask | None]
    rounds: tuple[int, int]
    turns: int
    goals: tuple[float, ...] = (1e-2, 1e-3)


@dataclass(frozen=True)
class Cases:
    """What each of the comparisons measures."""

    iteration: IterationCase
    loss: tuple[LossCase, ...]


def _mnist_folder() -> Path | None:
    data = os.environ.get("FEDTRELLIS_DATA")
    folder = Path(data).expanduser() / "mnist" if data else None
    return folder if folder is not None and (folder / _MNIST).is_file() else None


def _digits() -> HybridTask | None:
    return HybridSVM(num_clients=16, seed=0, test_fraction=0.0)


def _mnist(limit: int) -> HybridTask | None:
    folder = _mnist_folder()
    if folder is None:
        return None
    return HybridSVM(
        num_clients=16,
        seed=0,
        dataset="mnist",
        path=str(folder),
        bias=10.0,
        train_limit=limit,
    )


QUICK = Cases(
    IterationCase(iterations=2, turns=2),
    (LossCase("digits", _digits, (300, 600), 1),),
)
FULL = Cases(
    IterationCase(),
    (
        LossCase("digits", _digits, (400, 2000), 3),
        LossCase("MNIST, 5 000 samples", lambda: _mnist(5_000), (700, 4000), 1),
    ),
)


# ------------------------------------------------------------------------------- runs


def _app(kind: Callable[..., NumPyClient], shares: Sequence[ClientData]) -> ClientApp:
    """Clients with their data at hand."""

    def client_fn(context: Context) -> NumPyClient:
        return kind(context, *shares[int(context.node_config["partition-id"])])

    return client_app(client_fn)


def random_quadrants(case: IterationCase) -> list[ClientData]:
    """As many clients with as much data as MNIST's quadrants have; 19 % are not 0."""
    from scipy import sparse

    rng = np.random.default_rng(0)
    side, quarter = case.side, (case.side // 2) ** 2
    shares: list[ClientData] = []
    for rows in np.array_split(np.arange(case.samples), case.groups):
        labels = np.where(rng.random(len(rows)) < 0.5, 1.0, -1.0)
        for q in range(4):
            pixels = sparse.random_array(
                (len(rows), quarter), density=0.19, format="csr", rng=rng
            )
            names = [f"pixel-{q}-{i}" for i in range(quarter)]
            if q == 3:
                column = sparse.csr_array(np.ones((len(rows), 1)))
                pixels = sparse.csr_array(sparse.hstack([pixels, column], format="csr"))
                names.append("bias")
            ids = tuple(map(str, rows))
            shares.append(ClientData(pixels, tuple(names), ids, labels))
    assert sum(len(share.feature_names) for share in shares[:4]) == side**2 + 1
    return shares


class _Taker(Callback):
    """Takes each iteration's times from the grid."""

    def __init__(self, grid: SplitGrid) -> None:
        self.grid = grid
        self.times: list[IterationTimes] = []
        self._before = dict(grid.clock.seconds)

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        self.times.append(self.grid.take(self._before))
        self._before = dict(self.grid.clock.seconds)
        return False


def _iterations(
    shares: Sequence[ClientData], encryption: Any, count: int, warm_up: int = 1
) -> list[IterationTimes]:
    """Times of some iterations, messages as bytes, after one that does not count."""
    clock = Clock()
    grid = SplitGrid(_app(HyFDCAClient, shares), len(shares), clock, encode=True)
    taker = _Taker(grid)
    names = dict.fromkeys(name for share in shares for name in share.feature_names)
    strategy = HyFDCA(
        encryption=encryption,
        exposed=_EXPOSED,
        tolerance=0.0,
        callbacks=[taker],
        min_nodes=len(shares),
    )
    # before round 1 clients and server agree on samples and labels: not counted
    with instrumented(clock):
        strategy.start(
            grid, array_record([np.zeros(len(names))]), num_rounds=warm_up + count
        )
    return taker.times[warm_up:]


def _split(case: IterationCase) -> Comparison:
    shares, source = None, "random data of MNIST's size"
    folder = _mnist_folder() if case.real else None
    if folder is not None:
        task = _mnist(case.samples)
        assert task is not None
        task = replace(task, num_clients=4 * case.groups)
        shares = [task.client_data(k) for k in range(task.num_clients)]
        source = "MNIST's quadrants"
    if shares is None:
        shares = random_quadrants(case)
    nodes = len(shares)
    result = Comparison(
        "hyfdca-iteration",
        f"A whole iteration, {case.samples:,} samples × {case.side**2 + 1} features, "
        f"{nodes} clients ({case.groups} × 4)",
        f"Step bundle on {source}, all clients one after the other in one process, "
        "messages as bytes; processor time. Local work is products with the data and "
        "proposals; messages are making, encoding, decoding and reading them, and "
        f"clients' state. {case.turns} runs of {case.iterations} iterations, in turn.",
    )
    found: dict[str, list[list[IterationTimes]]] = {name: [] for name in _CIPHERS}
    for _ in range(case.turns):
        for name in _CIPHERS:
            found[name].append(_iterations(shares, name, case.iterations))

    def spread(name: str, what: Callable[[IterationTimes], float]) -> Spread:
        return Spread(
            tuple(float(np.mean([what(t) for t in turn])) for turn in found[name]), "ms"
        )

    parts: dict[str, Callable[[IterationTimes], float]] = {
        "the whole iteration": lambda t: t.total,
        "local work": lambda t: t.parts["local"],
        "encryption": lambda t: t.encryption,
        "· encrypt": lambda t: t.parts["encrypt"],
        "· add": lambda t: t.parts["add"],
        "· decrypt": lambda t: t.parts["decrypt"],
        "messages and state": lambda t: t.messages,
        "the server's search": lambda t: t.parts["search"],
    }
    totals = {name: spread(name, lambda t: t.total) for name in _CIPHERS}
    for title, what in parts.items():
        row: Row = {"part": title}
        for name in _CIPHERS:
            own = spread(name, what)
            row[name] = own
            row[f"{name}, share"] = f"{100 * ratios(own, totals[name]).median:.0f} %"
        if title == "the whole iteration":
            row["ratio"] = ratios(*(totals[name] for name in _CIPHERS))
        result.rows.append(row)
    secret = ratios(spread(_CIPHERS[0], lambda t: t.encryption), totals[_CIPHERS[0]])
    result.aims.append(
        Aim(
            f"encryption is below {100 * _SHARE:.0f} % of an iteration",
            f"{100 * secret.median:.0f} %",
            secret.median < _SHARE,
        )
    )
    return result


# ----------------------------------------------------------------- loss against time


@lru_cache(maxsize=4)
def _optimum(task: HybridTask) -> float:
    problem = task.objective()
    assert isinstance(problem, RegularizedLoss)
    return central_optimum(problem).value


class _Goals(Callback):
    """Seconds of the rounds until each goal; stops at the last, or when time is up."""

    def __init__(self, best: float, goals: Sequence[float], limit: float) -> None:
        self.best, self.goals, self.limit = best, goals, limit
        self.reached: dict[float, tuple[int, float]] = {}
        self.seconds, self.lowest = 0.0, np.inf

    def on_round(self, strategy: Any, record: RoundRecord) -> bool:
        if not record.round:
            return False
        self.seconds += record.seconds
        if record.evaluation:
            self.lowest = min(self.lowest, record.evaluation["loss"] / self.best - 1.0)
            for goal in self.goals:
                if self.lowest <= goal and goal not in self.reached:
                    self.reached[goal] = (record.round, self.seconds)
        return len(self.reached) == len(self.goals) or self.seconds > self.limit


#: HyFDCA's settings, and steps of the baselines: the best that a small search found on
#: digits (``python -m reproduce hyfdca figure-3``).
_METHODS: dict[str, dict[str, Any]] = {
    "HyFDCA": {"encryption": "stream"},
    "HyFDCA, not encrypted": {"encryption": "none"},
    "HybridFedAvg": {"local_steps": 100, "step_size": 0.03, "step_offset": 1.0},
    "HyFEM": {
        "local_steps": 100,
        "step_size": 0.3,
        "step_offset": 1.0,
        "matching": 0.1,
    },
}


def _loss_run(task: HybridTask, method: str, case: LossCase, limit: float) -> _Goals:
    objective = task.objective()
    goals = _Goals(_optimum(task), case.goals, limit)
    ours = method.startswith("HyFDCA")
    shares = [task.client_data(k) for k in range(task.num_clients)]
    kinds: dict[str, Callable[..., NumPyClient]] = {
        "HybridFedAvg": HybridFedAvgClient,
        "HyFEM": HyFEMClient,
    }
    options: dict[str, Any] = {
        **_METHODS[method],
        "loss": Hinge().name,
        "regularization": task.regularization,
        "feature_names": task.feature_names(),
        "callbacks": [goals],
        "min_nodes": len(shares),
    }
    strategy: HybridStrategy
    if ours:
        strategy = HyFDCA(tolerance=0.0, exposed=_EXPOSED, **options)
    elif method == "HyFEM":
        strategy = HyFEM(evaluate_every=5, **options)
    else:
        strategy = HybridFedAvg(evaluate_every=5, **options)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (w,) = record_arrays(arrays)
        return MetricRecord({"loss": objective.value(np.asarray(w, np.float64))})

    grid = SplitGrid(
        _app(kinds.get(method, HyFDCAClient), shares), len(shares), Clock()
    )
    start: FloatArray = np.zeros(task.shapes()[0])
    rounds = case.rounds[0 if ours else 1]
    strategy.start(grid, array_record([start]), num_rounds=rounds, evaluate_fn=evaluate)
    return goals


def _loss(cases: Sequence[LossCase]) -> Comparison:
    result = Comparison(
        "hyfdca-loss",
        "Relative loss (P − P*)/P* against time, 16 clients (4 × 4)",
        "Seconds of the rounds, all clients one after the other in one process, "
        "without the evaluation; the baselines are given twice HyFDCA's. Their "
        "steps: H = 100, b = 1, a = 0.03 (HybridFedAvg), a = 0.3 and μ = 0.1 (HyFEM). "
        "Methods in turn; × HyFDCA: of the time to the same loss.",
    )
    for case in cases:
        task = case.make()
        if task is None:
            result.about += f" {case.name} was left out: FEDTRELLIS_DATA has no files."
            continue
        found: dict[str, list[_Goals]] = {name: [] for name in _METHODS}
        for _ in range(case.turns):
            limit = np.inf
            for name in _METHODS:
                found[name].append(_loss_run(task, name, case, limit))
                if name == "HyFDCA":
                    limit = 2.0 * found[name][0].seconds
        for name, runs in found.items():
            row: Row = {"data": case.name, "method": name}
            for goal in case.goals:
                title = f"to {100 * goal:g} %"
                if not all(goal in run.reached for run in runs):
                    row[f"seconds {title}"] = "not reached"
                    continue
                times = Spread(tuple(r.reached[goal][1] for r in runs), "s")
                row[f"rounds {title}"] = runs[0].reached[goal][0]
                row[f"seconds {title}"] = times
                ours = [run.reached.get(goal) for run in found["HyFDCA"]]
                if all(ours):
                    base = Spread(tuple(t[1] for t in ours if t), "s")
                    row[f"× HyFDCA {title}"] = ratios(times, base)
            row["seconds in all"] = Spread(tuple(r.seconds for r in runs), "s")
            row["lowest, %"] = f"{100 * max(float(np.median(_lowest(runs))), 0.0):.2g}"
            result.rows.append(row)
    return result


def _lowest(runs: Sequence[_Goals]) -> list[float]:
    return [run.lowest for run in runs]


def compare(cases: Cases) -> Iterator[Comparison]:
    """The comparisons, each when it has been made."""
    yield _split(cases.iteration)
    yield _loss(cases.loss)
