"""Every engine that is installed everywhere does the same job, or is not listed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.engines import bare, comparison, flower
from benchmarks.engines.comparison import Size
from benchmarks.engines.job import Job, Run
from fedtrellis.objectives import MultinomialLogistic

SIZE = Size(clients=12, cohort=4, rounds=5, repetitions=2, ray_repetitions=0)


@pytest.fixture(scope="module")
def job() -> Job:
    return comparison.digits(SIZE)


@pytest.fixture(scope="module")
def expected(job: Job) -> np.ndarray:
    """FedAvg by fedtrellis' gradient, which tests of its own hold to be right."""
    clients = [
        MultinomialLogistic(A, y, 10)
        for A, y in zip(job.features, job.labels, strict=True)
    ]
    x = job.start
    for cohort in job.cohorts:
        ends = []
        for client in cohort:
            w = x
            for _ in range(5):
                w = w - 0.5 * clients[client].gradient(w)
            ends.append(w)
        x = np.mean(ends, axis=0)
    return x


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (bare.numpy_loop, 1e-12),
        (bare.numpy_cohort, 1e-12),
        (bare.torch_loop, 1e-5),
        (flower.batched, 1e-12),
        (flower.one_by_one, 1e-12),
        (flower.encoded, 1e-12),
        (flower.batched_encoded, 1e-12),
        (flower.fedavg, 1e-12),
        (flower.torch_one_by_one, 1e-5),
        (flower.torch_batched, 1e-5),
    ],
)
def test_an_engine_does_the_job(
    job: Job,
    expected: np.ndarray,
    make: Callable[[Job], Callable[[], Run]],
    tolerance: float,
) -> None:
    play = make(job)
    for _ in range(2):  # each time from the start
        run = play()
        assert np.abs(run.model - expected).max() <= tolerance
    assert run.cpu > 0.0
    assert run.wall > 0.0
