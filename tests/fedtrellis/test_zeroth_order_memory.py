"""What a request for function values can cost: so many samples of so large a model.

A client computes them in parts, the same numbers as all at once.
"""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from clients import ZerothOrderRFLClient
from fedtrellis.manifolds import Sphere
from fedtrellis.objectives import LeastSquares

Array = NDArray[np.float64]
MEGABYTE = 2**20
SIZE, ROWS, SAMPLES = 20, 12, 33


def unit(size: int) -> Array:
    x = np.zeros(size)
    x[0] = 1.0
    return x


def peak(action: Callable[[], Any]) -> float:
    """Megabytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] / MEGABYTE
    finally:
        tracemalloc.stop()


def ask(size: int, rows: int, samples: int, **more: Any) -> None:
    """One request to a client, past the checks of its envelope."""
    loss = LeastSquares(np.ones((rows, size)), np.ones(rows))
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    client = ZerothOrderRFLClient(context, loss, Sphere((size,)))
    config = {
        "samples": samples,
        "smoothing": 1e-3,
        "step-size": 0.1,
        "server-step-size": 1.0,
        "local-steps": 1,
        "seed": 0,
        "server-round": 1,
        "scalars": True,
    }
    client.fit([unit(size)], {**config, **more})
    assert client.numbers is not None
    assert client.numbers.shape == (samples,)


@pytest.mark.parametrize(
    ("size", "rows", "samples", "more"),
    [
        (4_000, 3, 6_000, {}),  # 183 MB of points
        (4_000, 9, 6_000, {"batch-size": 2}),
        (3, 2_000, 12_000, {}),  # 183 MB of residuals
    ],
)
def test_a_request_costs_no_more_for_more_samples(
    size: int, rows: int, samples: int, more: dict[str, Any]
) -> None:
    largest = 8.0 * samples * max(size, rows) / MEGABYTE
    assert largest > 180.0
    # blocks of 8 MiB: u, x + μu, its projection, the part, what the loss makes of it
    assert peak(lambda: ask(size, rows, samples, **more)) < 60.0
