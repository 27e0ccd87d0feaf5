"""A small transformer fine-tuned from scalars alone, beside first-order FedAvg.

The task ``characters``: the network is first trained on letters, which no client has;
then four clients, of one source of text each, go on. Every contender has the same grid
of step sizes, one seed to choose on, and the grid goes on where the best is at its end;
what was chosen runs with other seeds.

``python -m benchmarks.fine_tuning PICTURE`` draws the losses as well.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

import sim
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.server.loop import LoopStrategy

from .report import Comparison, quiet

__all__ = ["CONTENDERS", "FULL", "QUICK", "Size", "compare", "config_of", "draw"]

_NODES, _BATCH = 4, 8
_SHARED: dict[str, Any] = {
    "task": "characters",
    "characters.partition": "labels",
    "characters.train-passages": 800,
    "characters.test-passages": 100,
    "characters.pretrained-steps": 300,
    "characters.device": "cpu",
    "dtype": "float32",
    "evaluate-gap": False,
}
_SCALARS = {"zeroth-order-sgd.batch-size": _BATCH}
_FIRST = {"local-sgd.batch-fraction": _BATCH / 200, "local-sgd.local-steps": 1}


@dataclass(frozen=True)
class Size:
    """How much is run.

    Parameters
    ----------
    tuning, rounds : int
        Rounds of the runs to choose by, and of those that are measured.
    seeds : int
        Of what is measured, from 1; 0 is what is tuned on.
    sizes : int
        Step sizes of a grid, before it goes on.
    """

    tuning: int
    rounds: int
    seeds: int
    sizes: int


FULL = Size(40, 150, 2, 3)
QUICK = Size(4, 10, 1, 1)


@dataclass(frozen=True)
class Contender:
    """A method, the first step size of its grid, and its settings.

    ``evaluations`` are function values of a client and round, ``gradients`` likewise.
    """

    method: str
    first: float
    settings: dict[str, Any]
    evaluations: int
    gradients: int


_ZO = "zeroth-order-sgd"
CONTENDERS = {
    "FedAvg": Contender("local-sgd", 0.1, _FIRST, 0, 1),
    "decomfl, m = 10": Contender(_ZO, 1e-3, {**_SCALARS}, 11, 0),
    "feedsign, m = 10": Contender(
        _ZO, 5e-4, {**_SCALARS, f"{_ZO}.variant": "feedsign"}, 11, 0
    ),
    "fedkseed, K = 256, m = 10": Contender(
        _ZO,
        1e-3,
        {**_SCALARS, f"{_ZO}.variant": "fedkseed", f"{_ZO}.pool": 256},
        *(11, 0),
    ),
}


class _Curve(Callback):
    """Notes down the loss and the bytes so far, where there is an evaluation."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float, int, int]] = []
        self._up = self._down = 0

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> bool:
        """Note down a round."""
        self._up += record.bytes_up
        self._down += record.bytes_down
        if "loss" in record.evaluation:
            loss = record.evaluation["loss"]
            self.points.append((record.round, loss, self._up, self._down))
        return False


def config_of(name: str, step: float, rounds: int, seed: int) -> dict[str, Any]:
    """Return a contender's run config."""
    contender = CONTENDERS[name]
    return {
        **_SHARED,
        **contender.settings,
        "method": contender.method,
        f"{contender.method}.step-size": step,
        "rounds": rounds,
        "evaluate-every": max(1, rounds // 20),
        "seed": seed,
    }


def _run(name: str, step: float, rounds: int, seed: int) -> _Curve | None:
    """One run; None where it diverged."""
    experiment = sim.app.experiment(config_of(name, step, rounds, seed), _NODES)
    curve = _Curve()
    try:
        experiment.start(experiment.strategy(callbacks=[curve]))
    except (FloatingPointError, RuntimeError):
        return None
    return curve


def _tuned(name: str, size: Size) -> float:
    @lru_cache(None)
    def score(step: float) -> float:
        curve = _run(name, step, size.tuning, 0)
        return float("inf") if curve is None else curve.points[-1][1]

    first = CONTENDERS[name].first
    steps = [first * 2.0**k for k in range(size.sizes)]
    while True:
        best = min(steps, key=score)
        if size.sizes < 3 or best not in (steps[0], steps[-1]):
            return best
        steps = [steps[0] / 2, *steps] if best == steps[0] else [*steps, 2 * steps[-1]]


def _row(name: str, size: Size) -> tuple[dict[str, Any], dict[str, Any]]:
    contender, step = CONTENDERS[name], _tuned(name, size)
    found = [_run(name, step, size.rounds, seed + 1) for seed in range(size.seeds)]
    curves = [curve.points for curve in found if curve is not None]
    row: dict[str, Any] = {"method": name, "step": f"{step:g}"}
    row["ended well"] = f"{len(curves)} of {size.seeds}"
    if not curves:
        return row, {}
    rounds = curves[0][-1][0]
    # a forward and backward pass takes about as long as three forward passes
    cost = contender.evaluations + 3 * contender.gradients
    row["rounds"] = rounds
    row["forward passes of a client"] = cost * rounds
    row["kB up"] = round(median(c[-1][2] for c in curves) / 1e3 / _NODES, 1)
    row["kB down"] = round(median(c[-1][3] for c in curves) / 1e3 / _NODES, 1)
    for words, which in (("before", 0), ("after", -1)):
        losses = [c[which][1] for c in curves]
        row[f"loss {words}"] = ", ".join(f"{loss:.2f}" for loss in losses)
    drawn = [
        {
            "passes": [cost * point[0] for point in points],
            "kB": [(point[2] + point[3]) / 1e3 / _NODES for point in points],
            "loss": [point[1] for point in points],
        }
        for points in curves
    ]
    return row, {name: drawn}


def compare(size: Size, picture: Path | None = None) -> Iterable[Comparison]:
    """Tune and run all contenders; their curves go to a picture, if one is named."""
    # threads that wait for each other take longer than one for so small a network
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    rows, curves = [], {}
    for name in CONTENDERS:
        row, points = _row(name, size)
        rows.append(row)
        curves.update(points)
    if picture is not None:
        draw(curves, picture)
    yield Comparison(
        "fine-tuning",
        "A transformer of 28 096 parameters, fine-tuned on text by characters",
        f"{_NODES} clients, of one source of text each; mini-batches of {_BATCH} "
        f"passages of 32 characters; the losses of {size.seeds} seeds. A "
        "gradient counts as three forward passes. Bytes are of one client, messages "
        f"and all. Tuned on one more seed, {size.tuning} rounds, step "
        "sizes a factor of 2 apart, more where the best was at an end.",
        rows,
        [],
    )


def draw(curves: Mapping[str, Any], picture: Path) -> None:
    """Draw the loss against forward passes and against bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    words = ("forward passes of a client", "kB of a client, both ways")
    for ax, key, label in zip(axes, ("passes", "kB"), words, strict=True):
        for number, (name, runs) in enumerate(curves.items()):
            for i, run in enumerate(runs):
                # what stands at 0 has no logarithm
                ax.plot(
                    run[key][1:],
                    run["loss"][1:],
                    color=f"C{number}",
                    label=name if not i else None,
                )
        ax.set_xscale("log")
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("training loss")
    axes[0].legend(fontsize=8)
    figure.savefig(picture)


def _main() -> None:
    parser = argparse.ArgumentParser(description="The table, and a picture of it.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    quiet()
    for table in compare(QUICK if options.quick else FULL, options.picture):
        table.show(Console(highlight=False, width=180))


if __name__ == "__main__":
    _main()
