"""FedFW on a CNN beside projected FedAvg and FedDR, every layer in a ball.

    FEDTRELLIS_DATA=/data python -m benchmarks.networks.constrained

MNIST by the small CNN, 10 clients of IID shares of 5 000 images, every layer in its ℓ2
ball of radius 5, 5 local steps of 32 examples, 30 rounds. Every method has twelve
settings, of which one is chosen by a fifth of the training examples, held out, as a
mean of three seeds. It then runs with three other seeds, and is measured on 2 000 test
images; once more on mini-batches of 128, whose gradients have half of the noise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..report import Comparison, Row
from .comparison import NODES, Curve, run
from .images import PROBLEMS

__all__ = ["rows"]

_TUNING, _SEEDS = (0, 100, 101), (1, 2, 3)
_PROBLEM = replace(PROBLEMS["mnist-iid"], images=5000)
_STEPS = (0.01, 0.03, 0.06, 0.12)
_LOCAL_STEPS = (0.1, 0.2, 0.4, 0.8)
#: Method, the grid that is tuned over, and the rest of the settings.
_WAYS: tuple[tuple[str, dict[str, tuple[float, ...]], dict[str, Any]], ...] = (
    (
        "projected-fedavg",
        {"local-step-size": tuple(round(0.025 * 2 ** (k / 2), 3) for k in range(12))},
        {},
    ),
    (
        "feddr",
        {"local-step-size": _LOCAL_STEPS, "proximal-step": (10.0, 100.0, 1000.0)},
        {},
    ),
    (
        "fedfw",
        {"step-size": _STEPS, "averaging": (0.01, 0.03, 0.1)},
        {"variant": "stochastic", "schedule": "constant"},
    ),
)


def rows(rounds: int = 30) -> Iterable[Row]:
    """A method's row: what was chosen, and what came out on other seeds."""
    for method, grid, more in _WAYS:
        tried: dict[tuple[float, ...], float] = {}
        for values in product(*grid.values()):
            own = dict(zip(grid, values, strict=True))
            tried[values] = mean(
                _accuracies(_run(method, more | own, seed, rounds))[0]
                for seed in _TUNING
            )
        chosen = max(tried, key=lambda values: tried[values])
        own = more | dict(zip(grid, chosen, strict=True))
        curves = [_run(method, own, seed, rounds) for seed in _SEEDS]
        found = [_accuracies(curve) for curve in curves]
        calm = [
            _accuracies(_run(method, own | {"batch-size": 128}, seed, rounds))
            for seed in _SEEDS
        ]
        moved = [curve.rounds[-1][2] for curve in curves if curve is not None]
        yield {
            "method": method,
            "chosen": ", ".join(
                _placed(name, value, grid[name])
                for name, value in zip(grid, chosen, strict=True)
            ),
            "held out %": f"{tried[chosen]:.1f}",
            "best accuracy %": _spread([best for best, _ in found]),
            "last accuracy %": _spread([last for _, last in found]),
            "last, batches of 128": _spread([last for _, last in calm]),
            "MB of a client": f"{median(moved) / 1e6 / NODES:.1f}",
        }


def _placed(name: str, value: float, values: Sequence[float]) -> str:
    """What was chosen of what; an end of the grid is said to be one."""
    end = " (an end)" if value in (min(values), max(values)) else ""
    return f"{name} {value:g}{end}"


def _run(method: str, own: dict[str, Any], seed: int, rounds: int) -> Curve | None:
    folder = Path(os.environ["FEDTRELLIS_DATA"]) / _PROBLEM.dataset
    own = {"local-steps": 5, "batch-size": 32, **own}
    return run(
        {
            **_PROBLEM.config(seed in _TUNING, seed),
            "classification.path": str(folder),
            "domain": "l2-ball",
            "radius": 5.0,
            "layers": "product",
            "rounds": rounds,
            "method": method,
            **{f"{method}.{key}": value for key, value in own.items()},
        },
        loss=False,
    )


def _accuracies(curve: Curve | None) -> tuple[float, float]:
    """The best accuracy of a round and the last, in per cent; zeros: it diverged."""
    if curve is None:
        return 0.0, 0.0
    accuracies = [100 * accuracy for accuracy, _, _ in curve.rounds]
    return max(accuracies), accuracies[-1]


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


def main() -> None:
    """Print the table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(Comparison("", "", "", list(rows())).csv())


if __name__ == "__main__":
    main()
