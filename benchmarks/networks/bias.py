"""Where the mean of local LMO steps fails: by the classes that a client has.

    python -m benchmarks.networks.bias

Digits by the perceptron of :mod:`.comparison`, one seed, a step size of 0.03 for all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from .comparison import BATCH, DIGITS, NODES, Contender, run

__all__ = ["rows"]

_ROUNDS = (10, 20, 60)
#: Variant, classes of a client, local steps, momentum.
_WAYS = (
    *(("local", classes, 5, 0.9) for classes in (2, 3, 5, 10)),
    *(("local", 2, steps, mu) for steps, mu in ((5, 0.0), (1, 0.9), (1, 0.0))),
    *((variant, 2, 5, 0.9) for variant in ("averaged", "corrected", "server")),
)


def rows() -> Iterable[tuple[Any, ...]]:
    """The ways, and accuracy and loss after 10, 20 and 60 rounds."""
    for variant, classes, steps, mu in _WAYS:
        own = {"variant": variant, "local-steps": steps, "momentum": mu}
        contender = Contender("fedlmo", 0.03, ("constant", "linear"), own)
        config = {
            **DIGITS,
            "classification.labels-per-client": classes,
            "seed": 1,
            **contender.config(0.03, "linear", _ROUNDS[-1], BATCH),
        }
        curve = run(config)
        assert curve is not None
        told = [curve.rounds[t - 1] for t in _ROUNDS]
        yield variant, classes, steps, mu, *(f"{a:.3f} / {f:.3f}" for a, f, _ in told)


def main() -> None:
    """Print the rows of a table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"{NODES} clients; accuracy / training loss after {_ROUNDS} rounds")
    for row in rows():
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
