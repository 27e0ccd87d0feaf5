"""FedFW on a CNN beside projected FedAvg and FedDR, every layer in a ball.

    FEDTRELLIS_DATA=/data python -m benchmarks.networks.constrained

MNIST by the small CNN, 10 clients of IID shares of 5 000 images, every layer in its ℓ2
ball of radius 5, 5 local steps of 32 examples, 30 rounds. The step size is chosen on
one seed by a fifth of the training examples, held out, from five values; what was
chosen then runs with three other seeds, and is measured on 2 000 test images.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ..report import Comparison, Row
from .comparison import NODES, Curve, run
from .images import PROBLEMS

__all__ = ["rows"]

_SEEDS = (1, 2, 3)
_PROBLEM = replace(PROBLEMS["mnist-iid"], images=5000)
#: Method, what is tuned, its values, and the rest of the settings.
_WAYS: tuple[tuple[str, str, tuple[float, ...], dict[str, Any]], ...] = (
    ("projected-fedavg", "local-step-size", (0.05, 0.1, 0.2, 0.4, 0.8), {}),
    ("feddr", "local-step-size", (0.05, 0.1, 0.2, 0.4, 0.8), {}),
    (
        "fedfw",
        "step-size",
        (0.003, 0.01, 0.03, 0.06, 0.12),
        {"variant": "stochastic", "schedule": "constant"},
    ),
)


def rows(rounds: int = 30) -> Iterable[Row]:
    """A method's row: what was tried and chosen, and what came out on other seeds."""
    for method, tuned, values, more in _WAYS:
        tried = {
            value: _accuracies(_run(method, more | {tuned: value}, 0, rounds))
            for value in values
        }
        chosen = max(tried, key=lambda value: tried[value][0])
        curves = [_run(method, more | {tuned: chosen}, seed, rounds) for seed in _SEEDS]
        found = [_accuracies(curve) for curve in curves]
        moved = [curve.rounds[-1][2] for curve in curves if curve is not None]
        yield {
            "method": method,
            "tried": ", ".join(f"{v:g}: {best:.1f}" for v, (best, _) in tried.items()),
            "chosen": f"{chosen:g}",
            "best accuracy %": _spread([best for best, _ in found]),
            "last accuracy %": _spread([last for _, last in found]),
            "MB of a client": f"{median(moved) / 1e6 / NODES:.1f}",
        }


def _run(method: str, own: dict[str, Any], seed: int, rounds: int) -> Curve | None:
    folder = Path(os.environ["FEDTRELLIS_DATA"]) / _PROBLEM.dataset
    own = {"local-steps": 5, "batch-size": 32, **own}
    return run(
        {
            **_PROBLEM.config(seed == 0, seed),
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
    print(Comparison("", "", "", list(rows())).markdown())


if __name__ == "__main__":
    main()
