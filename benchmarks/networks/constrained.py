"""FedFW on a CNN beside projected FedAvg and FedDR, every layer in a ball.

    FEDTRELLIS_DATA=/data python -m benchmarks.networks.constrained

MNIST by the small CNN, 10 clients of IID shares of 5 000 images, every layer in its ℓ2
ball of radius 5, 5 local steps of 32 examples, 30 rounds, one seed: the best accuracy
of a round on held-out training examples, by the step size.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .comparison import run
from .images import PROBLEMS

__all__ = ["rows"]

_STOCHASTIC = {"variant": "stochastic", "schedule": "constant"}
#: Method, what is tuned, its values, and the rest of the settings.
_WAYS: tuple[tuple[str, str, tuple[float, ...], dict[str, Any]], ...] = (
    ("projected-fedavg", "local-step-size", (0.05, 0.1, 0.2, 0.4, 0.8), {}),
    ("feddr", "local-step-size", (0.05, 0.1, 0.2, 0.4, 0.8), {}),
    ("fedfw", "step-size", (0.003, 0.01, 0.03, 0.06, 0.12), _STOCHASTIC),
)


def rows(rounds: int = 30) -> Iterable[tuple[Any, ...]]:
    """Method, settings, tuned value, accuracy, loss and bytes up and down."""
    problem = PROBLEMS["mnist-iid"]
    folder = Path(os.environ["FEDTRELLIS_DATA"]) / problem.dataset
    shared = {
        **problem.config(True, 0),
        "classification.path": str(folder),
        "domain": "l2-ball",
        "radius": 5.0,
        "layers": "product",
        "rounds": rounds,
    }
    for method, tuned, values, more in _WAYS:
        for value in values:
            own = {"local-steps": 5, "batch-size": 32, **more, tuned: value}
            curve = run(
                {
                    **shared,
                    "method": method,
                    **{f"{method}.{key}": entry for key, entry in own.items()},
                }
            )
            words = ", ".join(f"{key} {entry}" for key, entry in more.items())
            if curve is None:
                yield method, words, value, "diverged"
                continue
            best = max(accuracy for accuracy, _, _ in curve.rounds)
            yield method, words, value, f"{100 * best:.1f}", curve.rounds[-1][2]


def main() -> None:
    """Print the rows of a table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for row in rows():
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
