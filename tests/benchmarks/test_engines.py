"""Every engine that is installed everywhere does the same job, or is not listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines import bare, comparison, flower
from benchmarks.engines.comparison import ENGINES, Engine, Size
from benchmarks.engines.job import Job, Run
from benchmarks.report import Spread
from fedtrellis.objectives import MultinomialLogistic

SIZE = Size(clients=12, cohort=4, rounds=5, repetitions=2, ray_repetitions=0)
BARE = [engine for engine in ENGINES if engine.function.startswith("bare:numpy")]


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


def test_the_rows_are_measured_in_processes_of_their_own() -> None:
    absent = Engine("another", "others:pfl", 32, "an environment that is not there")
    on_ray = next(engine for engine in ENGINES if engine.ray)
    result = comparison.compare(SIZE, [*BARE, absent, on_ray])
    loop, cohort, missing, left_out = result.rows
    ratio = cohort["CPU / NumPy, a bare loop"]
    assert isinstance(ratio, Spread)
    assert len(ratio.values) == SIZE.repetitions
    assert loop["difference"] == "0e+00"
    assert "not installed" in str(missing["CPU"])
    assert "left out" in str(left_out["CPU"])


def test_another_model_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(job: Job) -> Callable[[], Run]:
        return bare.numpy_loop(replace(job, cohorts=job.cohorts[::-1]))

    monkeypatch.setattr(comparison, "numpy_loop", another)
    with pytest.raises(AssertionError, match=r"bare loop ends .* from the bare loop's"):
        comparison.compare(SIZE, BARE)


def test_an_engine_that_fails_says_why(tmp_path: Path, job: Job) -> None:
    job.save(tmp_path / "job.npz")
    engine = Engine("nobody's", "bare:nothing")
    with pytest.raises(RuntimeError, match=r"nobody's failed:[\s\S]*nothing"):
        comparison.Worker(
            engine,
            comparison._python(engine),
            tmp_path / "job.npz",
            tmp_path / "home",
        )
