"""HybridFedAvg and HyFEM against plain NumPy loops and closed forms."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from scipy.sparse import coo_array, csr_array

from clients import HybridFedAvgClient, HyFEMClient
from fedtrellis.objectives.losses import make_loss
from fedtrellis.random import generator
from strategies import HybridFedAvg, HyFEM
from tests.harness import Array, Played, grid_of, play, refused

ROUNDS = 8
METHODS: list[Any] = [HybridFedAvg, HyFEM]
LOSSES = ("hinge", "smoothed-hinge", "logistic", "squared")
BOTH = pytest.mark.parametrize("method", METHODS)


@dataclass
class Data:
    """What one client holds; ``columns`` are those of the model's features."""

    features: Any
    columns: list[int]
    labels: Array | None
    loss: str | None = None


def block(rng: np.random.Generator, n: int, columns: Sequence[int]) -> Data:
    labels = np.where(rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return Data(rng.standard_normal((n, len(columns))), list(columns), labels)


def hybrid() -> list[Data]:
    """Six clients: features overlap, two are unsorted, 7 and 8 have one holder each."""
    rng = np.random.default_rng(0)
    held = [[0, 1, 2], [2, 1, 3], [3, 4, 5, 6], [0, 6], [5, 7], [8, 0]]
    data = [block(rng, n, c) for n, c in zip([9, 4, 12, 1, 6, 7], held, strict=True)]
    assert data[2].labels is not None
    data[2].labels[[0, 3, 7]] = np.nan
    return data


P = 9
START = np.linspace(-0.4, 0.5, P)


def run_of(
    method: Any,
    data: Sequence[Data],
    rounds: int = ROUNDS,
    *,
    start: Array = START,
    **options: Any,
) -> Played[Any]:
    kind: Any = HyFEMClient if method is HyFEM else HybridFedAvgClient

    def client(context: Context, own: Data) -> Any:
        names = [f"feature {j}" for j in own.columns]
        ids = [f"sample {i}" for i in range(own.features.shape[0])]
        return kind(context, own.features, names, ids, own.labels, own.loss)

    settings = {
        **{"regularization": 0.05, "local_steps": 7, "step_size": 0.6, "seed": 3},
        **{"step_offset": 1.5, "smoothing": 0.5},
        "feature_names": [f"feature {j}" for j in range(len(start))],
        **({"matching": 0.8} if method is HyFEM else {}),
    }
    return play(method(**settings | options), grid_of(client, data), start, rounds)


def check(run: Played[Any], data: Sequence[Data], **options: Any) -> None:
    models, local = loop(run.strategy, data, run.used, **options)
    assert np.abs(np.array(models) - run.models).max() < 1e-10
    assert np.array_equal(run.model, run.models[-1])
    if isinstance(run.strategy, HyFEM):
        distances = []
        for k, w_k in local.items():
            assert np.abs(run.strategy._local[str(k)] - w_k).max() < 1e-10
            distances.append(w_k - run.model[data[k].columns])
        told = run.watch.metrics[-1]["disagreement"]
        assert told == pytest.approx(sum(float(d @ d) for d in distances))


def loop(
    strategy: HybridFedAvg,
    data: Sequence[Data],
    sets: Sequence[Sequence[int]],
    start: Array = START,
) -> tuple[list[Array], dict[int, Array]]:
    """The global model after every round, and the last local ones, by the text."""
    lam, mu = strategy.regularization, getattr(strategy, "matching", None)
    loss = make_loss(strategy.loss, strategy.smoothing)
    labelled = {}
    for k, own in enumerate(data):
        if own.labels is not None and not np.isnan(own.labels).all():
            labelled[k] = np.flatnonzero(~np.isnan(own.labels))
    w, models = start.copy(), []
    local = {k: start[data[k].columns] for k in labelled}
    for t, S in enumerate(sets, start=1):
        gamma = strategy.step_size / (strategy.step_offset + math.sqrt(t))
        new = {}
        for k in S:
            own, rows = data[k], labelled[k]
            assert own.labels is not None
            rng = generator(strategy.seed, "mini-batch", str(k), t)
            w_bar = w[own.columns]
            w_k = w_bar if mu is None else local[k]
            X = csr_array(own.features).toarray()
            for i in rows[rng.integers(len(rows), size=strategy.local_steps)]:
                u = loss.dual_point(np.atleast_1d(X[i] @ w_k), own.labels[[i]])
                w_k = w_k - gamma * (lam * w_k - u * X[i])
                if mu is not None:
                    w_k = (w_k + gamma * mu * w_bar) / (1.0 + gamma * mu)
            new[k] = w_k
        local.update(new)
        w = w.copy()
        counted = local if mu is not None else new
        for j in range(len(w)):
            held = [k for k in counted if j in data[k].columns and S]
            if held:
                w[j] = np.mean([counted[k][data[k].columns.index(j)] for k in held])
        models.append(w)
    return models, local


@pytest.mark.parametrize("loss", LOSSES)
@BOTH
def test_is_the_plain_loop(method: Any, loss: str) -> None:
    data = hybrid()
    run = run_of(method, data, 16, loss=loss, participation=0.4)
    assert not np.allclose(run.model, START)
    check(run, data)
    if method is HyFEM:
        check(run_of(method, data, loss=loss, matching=0.0), data)


@pytest.mark.parametrize("kind", [csr_array, coo_array])
def test_sparse_features_give_the_same(kind: Any) -> None:
    data, rng = hybrid(), np.random.default_rng(4)
    for own in data:
        own.features[rng.random(own.features.shape) < 0.5] = 0.0
        own.features[0] = 0.0
    sparse = [replace(own, features=kind(own.features)) for own in data]
    check(run_of(HyFEM, sparse), data)
    # entries that are there twice count as their sum
    twice = csr_array(([1.0, 2.0, 5.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2))
    doubled = Data(kind(twice), [0, 1], np.array([1.0, -1.0]))
    start = np.zeros(2)
    check(run_of(HyFEM, [doubled], start=start), [doubled], start=start)


@BOTH
def test_clients_without_labels_are_left_out(method: Any, logged: list[str]) -> None:
    data = hybrid()
    data[0].labels = None
    data[4].labels = np.full(6, np.nan)  # the only one with feature 7
    run = run_of(method, data)
    assert run.used == [[1, 2, 3, 5]] * ROUNDS
    check(run, data)
    why = "1 of 9 features are held by clients without labels only"
    assert any(why in line for line in logged)


INFINITE = csr_array(np.array([[1.0, np.inf]]))
#: What a client has instead, the run's options, and what is said.
BAD_DATA: list[tuple[dict[int, dict[str, Any]], dict[str, Any], str]] = [
    ({k: {"labels": None} for k in range(6)}, {}, "no client has a label to learn"),
    ({1: {"columns": [2, 1]}}, {}, "client 1: features of shape (4, 3)"),
    ({1: {"columns": [2, 1, 1]}}, {}, "client 1 names a feature twice"),
    ({1: {"columns": [2, 1, 9]}}, {}, "client 1 has feature 'feature 9'"),
    ({4: {"columns": [5, 6]}}, {}, "feature 'feature 7' of the model"),
    ({3: {"labels": np.array([0.5])}}, {}, "client 3: label 0 is not allowed"),
    ({3: {"labels": np.ones(2)}}, {}, "client 3: labels have shape (2,)"),
    ({3: {"loss": "squared"}}, {}, "client 3: loss = 'hinge' on the server"),
    ({3: {"features": INFINITE}}, {}, "client 3: the features are not finite"),
    ({}, {"feature_names": ["a"]}, "the model has 9 weights, but feature_names"),
    ({}, {"start": np.zeros((3, 3))}, "learns one vector of weights"),
    ({}, {"start": np.zeros(8), "feature_names": None}, "but the clients hold 9 fe"),
]


@pytest.mark.parametrize(("changes", "options", "message"), BAD_DATA)
def test_bad_data(
    changes: dict[int, dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    data = [replace(own, **changes.get(k, {})) for k, own in enumerate(hybrid())]
    refused(re.escape(message), lambda: run_of(HyFEM, data, **options))


def test_steps_that_diverge_say_so() -> None:
    options: dict[str, Any] = {"step_size": 1e100, "max_failed_rounds": 2}
    # the penalty's proximal map keeps the steps in bounds, however long they are
    assert np.isfinite(run_of(HyFEM, hybrid(), **options).model).all()
    why = "step-size = 1e\\+100 is too long"
    refused(why, lambda: run_of(HybridFedAvg, hybrid(), **options), RuntimeError)
