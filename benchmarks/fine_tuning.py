"""A small transformer fine-tuned from scalars alone, beside first-order FedAvg.

The task ``characters``: the network is first trained on letters, which no client has;
then four clients, of one source of text each, go on. Every contender has the same grid
of step sizes, one seed to choose on, and the grid goes on where the best is at its end;
what was chosen runs with other seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import sim
from reproduce.drawing import band, new_figure, save, style_of

from .networks.runs import best_of
from .report import Comparison, Row

__all__ = ["CONTENDERS", "FULL", "QUICK", "Size", "compare"]

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


FULL, QUICK = Size(40, 150, 2, 3), Size(4, 10, 1, 1)


@dataclass(frozen=True)
class Contender:
    """A method, the first step size of its grid, and its settings.

    ``cost`` is in forward passes of a client and round; a forward and backward pass
    takes about as long as three forward passes.
    """

    method: str
    first: float
    cost: int
    settings: dict[str, Any]


def _scalars(first: float, **more: Any) -> Contender:
    return Contender("zeroth-order-sgd", first, 11, {"batch-size": _BATCH, **more})


CONTENDERS = {
    "FedAvg": Contender(
        "local-sgd", 0.1, 3, {"batch-fraction": _BATCH / 200, "local-steps": 1}
    ),
    "decomfl, m = 10": _scalars(1e-3),
    "feedsign, m = 10": _scalars(5e-4, variant="feedsign"),
    "fedkseed, K = 256, m = 10": _scalars(1e-3, variant="fedkseed", pool=256),
}


@dataclass(frozen=True)
class Curve:
    """By evaluated round the rounds, losses, and kB up and down of a client so far."""

    rounds: list[int]
    losses: list[float]
    up: list[float]
    down: list[float]


def _run(name: str, step: float, rounds: int, seed: int) -> Curve | None:
    """One run; None where it diverged."""
    method = CONTENDERS[name].method
    own = {**CONTENDERS[name].settings, "step-size": step}
    config = {
        **_SHARED,
        "method": method,
        **{f"{method}.{key}": value for key, value in own.items()},
        "rounds": rounds,
        "evaluate-every": max(1, rounds // 20),
        "seed": seed,
    }
    experiment = sim.app.experiment(config, _NODES)
    strategy = experiment.strategy()
    try:
        experiment.start(strategy)
    except (FloatingPointError, RuntimeError):
        return None
    curve, up, down = Curve([], [], [], []), 0, 0
    for record in strategy.history:
        up, down = up + record.bytes_up, down + record.bytes_down
        if "loss" in record.evaluation:
            curve.rounds.append(record.round)
            curve.losses.append(record.evaluation["loss"])
            curve.up.append(up / 1e3 / _NODES)
            curve.down.append(down / 1e3 / _NODES)
    return curve


def _tuned(name: str, size: Size) -> float:
    @lru_cache(None)
    def score(step: float) -> float:
        curve = _run(name, step, size.tuning, 0)
        return float("inf") if curve is None else curve.losses[-1]

    steps = [CONTENDERS[name].first * 2.0**k for k in range(size.sizes)]
    return best_of(steps, score, goes_on=size.sizes > 2)


def _row(name: str, size: Size, curves: Sequence[Curve], step: float) -> Row:
    row: Row = {"method": name, "step": f"{step:g}"}
    row["ended well"] = f"{len(curves)} of {size.seeds}"
    if curves:
        row["forward passes of a client"] = CONTENDERS[name].cost * size.rounds
        row["kB up"] = f"{median(curve.up[-1] for curve in curves):,.0f}"
        row["kB down"] = f"{median(curve.down[-1] for curve in curves):,.0f}"
        for words, at in (("before", 0), ("after", -1)):
            losses = (f"{curve.losses[at]:.2f}" for curve in curves)
            row[f"loss {words}"] = ", ".join(losses)
    return row


def compare(size: Size) -> Iterator[Comparison]:
    """Tune and run all contenders."""
    # threads that wait for each other take longer than one for so small a network
    import_module("torch").set_num_threads(1)
    rows, found = [], {}
    for name in CONTENDERS:
        step = _tuned(name, size)
        runs = [_run(name, step, size.rounds, 1 + seed) for seed in range(size.seeds)]
        found[name] = [curve for curve in runs if curve is not None]
        rows.append(_row(name, size, found[name], step))
    yield Comparison(
        "fine-tuning",
        "A transformer of 28 096 parameters, fine-tuned on text by characters",
        f"{_NODES} clients, of one source of text each; mini-batches of {_BATCH} "
        f"passages of 32 characters; the losses of {size.seeds} seeds after "
        f"{size.rounds} rounds. A gradient counts as three forward passes. Bytes are "
        f"of one client, messages and all. Tuned on one more seed, {size.tuning} "
        "rounds, step sizes a factor of 2 apart, more where the best was at an end.",
        rows,
        draw=partial(_draw, found),
    )


def _draw(found: dict[str, list[Curve]], folder: Path) -> None:
    """Draw the loss against forward passes and against bytes."""
    figure, ((left, right),) = new_figure(2)
    for number, (name, curves) in enumerate(found.items()):
        if not curves:
            continue
        cost = CONTENDERS[name].cost
        moved = [[a + b for a, b in zip(c.up, c.down, strict=True)] for c in curves]
        kilobytes = [median(each) for each in zip(*moved, strict=True)]
        losses = [curve.losses[1:] for curve in curves]
        # what stands at 0 has no logarithm
        passes = [cost * t for t in curves[0].rounds[1:]]
        for axes, x in ((left, passes), (right, kilobytes[1:])):
            band(axes, x, losses, name, least=2, **style_of(number))
    for axes, label in ((left, "forward passes"), (right, "kB both ways")):
        axes.set_xscale("log")
        axes.set_xlabel(f"{label} of a client")
    left.set_ylabel("training loss")
    left.legend(fontsize="small")
    save(figure, folder, "fine-tuning")
