"""FedGiA on real data and on many sparse features, against scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from clients import FedGiAClient
from fedtrellis import Callback, RoundRecord
from fedtrellis.admm.shifted_systems import make_system
from fedtrellis.admm.systems import ConjugateGradientSystem
from fedtrellis.objectives import Logistic
from strategies import FedGiA
from tasks import Task, make_task
from tests.harness import Array, grid_of, play


def played(
    task: Task, rounds: int, callbacks: Any = (), **settings: Any
) -> tuple[FedGiA, Array]:
    losses = [task.client_objective(i) for i in range(task.num_clients)]
    settings = task.suggestions(FedGiA.name) | settings
    strategy = FedGiA(callbacks=callbacks, **settings)
    (start,) = task.initial_point()
    run = play(strategy, grid_of(FedGiAClient, losses), start, rounds)
    return strategy, run.model


@pytest.mark.parametrize(
    ("hessian", "partition"),
    [
        ("diagonal", "labels"),
        pytest.param("diagonal", "iid", marks=pytest.mark.slow),
        pytest.param("gram", "labels", marks=pytest.mark.slow),
        pytest.param("gram", "iid", marks=pytest.mark.slow),
    ],
)
def test_breast_cancer_against_scikit_learn(hessian: str, partition: str) -> None:
    """Also with a single label on each client."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    config = {
        "logistic-regression.test-fraction": 0.0,
        "logistic-regression.partition": partition,
        "logistic-regression.l2": 0.01,
    }
    task = make_task("logistic-regression", config, 10, 0)
    strategy, x = played(task, 3000, hessian=hessian, tolerance=1e-14, sigma_scale=0.5)
    assert len(strategy.history) < 3000  # the stop rule ended it

    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    d = len(labels)
    model = LogisticRegression(
        C=1.0 / (d * 0.01), fit_intercept=False, tol=1e-14, max_iter=100_000
    )
    best = model.fit(features, labels).coef_[0]

    def value(x: Array) -> float:
        scores = features @ x
        loss = np.logaddexp(0.0, scores) - labels * scores
        return float(loss.mean() + 0.005 * x @ x)

    assert value(x) == pytest.approx(value(best), rel=1e-8)
    assert task.value(x) == pytest.approx(value(x), rel=1e-12)


def qsar() -> Path:
    folder = os.environ.get("FEDTRELLIS_DATA")
    name = "qsar_oral_toxicity/qsar_oral_toxicity.zip"
    path = Path(folder or "") / name
    if not folder or not path.is_file():
        pytest.skip(f"FEDTRELLIS_DATA names no folder with {name}")
    return path


@pytest.mark.parametrize(("hessian", "k0"), [("diagonal", 1), ("diagonal", 5)])
def test_qsar_oral_toxicity_on_unit_rows(hessian: str, k0: int) -> None:
    """The optimum 0.26466 within 20 rounds, 64 clients, s = 0.5."""
    config = {
        "logistic-regression.dataset": "qsar",
        "logistic-regression.path": str(qsar()),
        "logistic-regression.scaling": "unit-rows",
        "logistic-regression.test-fraction": 0.0,
        "logistic-regression.weighting": "clients",
    }
    task = make_task("logistic-regression", config, 64, 0)
    norms: list[float] = []

    class Watch(Callback):
        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            gradient = task.gradient(strategy.broadcast.model)
            norms.append(float(gradient @ gradient))

    _, x = played(task, 20, [Watch()], hessian=hessian, local_steps=k0, tolerance=0.0)
    # (30), ‖∇f‖² ≤ n · 10⁻⁹
    assert norms[-1] <= 1024e-9
    assert task.value(x) == pytest.approx(0.26466, abs=5e-4)
    assert min(norms) == norms[-1] or norms[-1] < 1e-7


def test_a_hundred_thousand_sparse_features() -> None:
    """Conjugate gradients inside: no factor is made, and the minimum is found."""
    n, rows, clients = 100_000, 700, 4
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(clients):
        A = scipy.sparse.random_array(
            (rows, n), density=20 / n, format="csr", rng=rng, data_sampler=None
        )
        b = (rng.random(rows) < 0.5).astype(float)
        parts.append(Logistic(A, b, l2=0.1))
    system = make_system(parts[0], "gram", weight=0.25, shift=0.1, steps=3)
    assert isinstance(system, ConjugateGradientSystem)

    strategy = FedGiA(hessian="gram", local_steps=3, tolerance=1e-22)
    x = play(strategy, grid_of(FedGiAClient, parts), np.zeros(n), 60).model
    gradient = np.mean([part.gradient(x) for part in parts], axis=0)
    start = np.mean([part.gradient(np.zeros(n)) for part in parts], axis=0)
    assert np.linalg.norm(gradient) < 1e-7 * np.linalg.norm(start)
