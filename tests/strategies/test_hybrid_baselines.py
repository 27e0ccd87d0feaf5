"""HybridFedAvg and HyFEM against plain NumPy loops and closed forms."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array

from clients import HybridFedAvgClient, HyFEMClient
from fedtrellis import Answer, Callback
from fedtrellis.random import generator
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode
from strategies import HybridFedAvg, HyFEM
from tasks import HybridSVM
from tests.harness import Array, contexts, grid_of, memory_of, number_of, play

SEED, LAMBDA, ROUNDS, H, A, B, SMOOTHING, MU = 3, 0.05, 8, 7, 0.6, 1.5, 0.5, 0.8
METHODS: list[Any] = [HybridFedAvg, HyFEM]
LOSSES = ("hinge", "smoothed-hinge", "logistic", "squared")
LOSS_20 = {"request_loss": 0.1, "reply_loss": 0.1}
EVERYTHING = {
    "request_loss": 0.2,
    "reply_loss": 0.2,
    "late_reply": 0.1,
    "state_loss": 0.1,
    "wipe": 0.1,
    "crash": 0.05,
    "garbage": 0.1,
    "duplicate": 0.1,
}


@dataclass
class Data:
    """What one client holds; ``columns`` are those of the model's features."""

    features: Any
    columns: list[int]
    labels: Array | None
    loss: str | None = None

    @property
    def names(self) -> list[str]:
        return [f"feature {j}" for j in self.columns]

    def ids(self) -> list[str]:
        return [f"sample {i}" for i in range(self.features.shape[0])]


def block(rng: np.random.Generator, n: int, columns: Sequence[int]) -> Data:
    labels = np.where(rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return Data(rng.standard_normal((n, len(columns))), list(columns), labels)


def hybrid() -> list[Data]:
    """Six clients: features overlap, two are unsorted, 7 and 8 have one holder each."""
    rng = np.random.default_rng(0)
    held = [[0, 1, 2], [2, 1, 3], [3, 4, 5, 6], [0, 6], [5, 7], [8, 0]]
    data = [
        block(rng, n, columns)
        for n, columns in zip([9, 4, 12, 1, 6, 7], held, strict=True)
    ]
    labels = data[2].labels
    assert labels is not None
    labels[[0, 3, 7]] = np.nan
    return data


P = 9
START = np.linspace(-0.4, 0.5, P)


class Run:
    """A run on given data."""

    def __init__(
        self,
        method: Any,
        data: Sequence[Data],
        rounds: int = ROUNDS,
        *,
        start: Array = START,
        faults: Mapping[str, Any] | None = None,
        calm_from: int = 0,
        encode: bool = False,
        grid_seed: int = 1,
        callbacks: Sequence[Callback] = (),
        states: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> None:
        self.seen: list[tuple[int, Array]] = []
        seen = self.seen
        kind: Any = HyFEMClient if issubclass(method, HyFEM) else HybridFedAvgClient

        class Watched(kind):  # type: ignore[misc]
            def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
                seen.append((number_of(self.context), parameters[0].copy()))
                return super().fit(parameters, config)

        def client(context: Context, own: Data) -> Any:
            held = own.features, own.names, own.ids(), own.labels
            return Watched(context, *held, own.loss)

        options_of_grid = {"seed": grid_seed, "encode": encode, **(faults or {})}
        self.grid = grid_of(client, data, **options_of_grid)
        if states is not None:
            self.grid.load_client_states(states)
        settings = {
            "regularization": LAMBDA,
            "local_steps": H,
            "step_size": A,
            "step_offset": B,
            "smoothing": SMOOTHING,
            "seed": SEED,
            "max_failed_rounds": 1000,
            "feature_names": [f"feature {j}" for j in range(len(start))],
        }
        if issubclass(method, HyFEM):
            settings["matching"] = MU
        self.strategy = method(callbacks=callbacks, **settings | options)
        last_fault = calm_from - 1 if calm_from else None
        run = play(self.strategy, self.grid, start, rounds, last_fault=last_fault)
        self.model, self.watch = run.model, run.watch

    def check(self, data: Sequence[Data], **options: Any) -> None:
        """Every round's model is the plain loop's."""
        models, local = loop(self.strategy, data, self.watch.used, **options)
        assert len(models) == len(self.watch.models)
        for expected, model in zip(models, self.watch.models, strict=True):
            assert np.abs(model - expected).max() < 1e-10
        assert np.array_equal(self.model, self.watch.models[-1])
        if isinstance(self.strategy, HyFEM):
            for k, w_k in local.items():
                assert np.abs(self.strategy.local_model(str(k)) - w_k).max() < 1e-10


def slope(loss: str, z: float, y: float) -> float:
    """−l'(z; y), by the text of each loss."""
    if loss == "hinge":
        return y if y * z < 1.0 else 0.0
    if loss == "smoothed-hinge":
        return y * min(max((1.0 - y * z) / SMOOTHING, 0.0), 1.0)
    if loss == "logistic":
        return y / (1.0 + math.exp(y * z))
    return y - z


def dense(features: Any) -> Array:
    return np.asarray(
        features if isinstance(features, np.ndarray) else features.todense()
    )


def loop(
    strategy: HybridFedAvg,
    data: Sequence[Data],
    sets: Sequence[Sequence[int]],
    start: Array = START,
) -> tuple[list[Array], dict[int, Array]]:
    """The global model after every round, and the last local ones, by the text."""
    lam, mu = strategy.regularization, getattr(strategy, "matching", None)
    labelled = {
        k: [i for i, y in enumerate(own.labels) if not math.isnan(y)]
        for k, own in enumerate(data)
        if own.labels is not None
    }
    labelled = {k: rows for k, rows in labelled.items() if rows}
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
            X = dense(own.features)
            for i in [
                rows[j] for j in rng.integers(len(rows), size=strategy.local_steps)
            ]:
                u = slope(strategy.loss, float(X[i] @ w_k), float(own.labels[i]))
                w_k = w_k - gamma * (lam * w_k - u * X[i])
                if mu is not None:
                    w_k = (w_k + gamma * mu * w_bar) / (1.0 + gamma * mu)
            new[k] = w_k
        local.update(new)
        w = w.copy()
        for j in range(len(w)):
            counted = local if mu is not None else new
            values = [
                w_k[data[k].columns.index(j)]
                for k, w_k in counted.items()
                if j in data[k].columns
            ]
            if values and S:
                w[j] = np.mean(values)
        models.append(w)
    return models, local


# --------------------------------------------------------------------- the algorithm


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", METHODS)
def test_is_the_plain_loop(method: Any, loss: str) -> None:
    data = hybrid()
    run = Run(method, data, loss=loss)
    assert run.watch.used == [list(range(6))] * ROUNDS
    assert not np.allclose(run.model, START)
    run.check(data)


@pytest.mark.parametrize("sampling", ["bernoulli", "fixed"])
@pytest.mark.parametrize("method", METHODS)
def test_partial_participation(method: Any, sampling: str) -> None:
    data = hybrid()
    run = Run(method, data, 20, participation=0.4, sampling=sampling)
    assert len({tuple(S) for S in run.watch.used}) > 5
    run.check(data)


def test_what_nobody_answered_for_stays_in_fedavg_and_is_averaged_in_hyfem() -> None:
    data = hybrid()
    run = Run(HybridFedAvg, data, 20, participation=0.4)
    before, kept = START, 0
    for S, model in zip(run.watch.used, run.watch.models, strict=True):
        present = {j for k in S for j in data[k].columns}
        for j in range(P):
            assert (model[j] == before[j]) == (j not in present)
            kept += j not in present
        before = model
    assert kept > 20

    run = Run(HyFEM, data, 20, participation=0.4)
    for model in (run.model, run.watch.models[-1]):
        for j in range(P):
            own = [
                run.strategy.local_model(str(k))[data[k].columns.index(j)]
                for k in range(6)
                if j in data[k].columns
            ]
            assert model[j] == pytest.approx(np.mean(own), abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_overlaps_are_averaged_and_the_rest_is_put_together(method: Any) -> None:
    """One step of two clients with one sample each, by hand."""
    data = [
        Data(np.array([[2.0, 1.0]]), [0, 1], np.array([3.0])),
        Data(np.array([[1.0, 4.0]]), [2, 1], np.array([-2.0])),
    ]
    unmatched: dict[str, Any] = {"matching": 0.0} if method is HyFEM else {}
    run = Run(
        method,
        data,
        1,
        start=np.zeros(3),
        loss="squared",
        local_steps=1,
        step_size=0.2,
        step_offset=1.0,
        **unmatched,
    )
    # γ_1 = 0.1: w_1 = 0.1 · 3 · (2, 1) and w_2 = 0.1 · (−2) · (1, 4)
    assert run.model == pytest.approx([0.6, (0.3 - 0.8) / 2, -0.2], abs=1e-15)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("method", METHODS)
def test_a_robust_rule_is_by_feature(method: Any, rule: str) -> None:
    rng = np.random.default_rng(2)
    held = [[0, 1], [1, 0], [0, 2, 1], [2, 0], [2, 3], [3, 2], [3, 1], [0, 1]]
    data = [block(rng, 5, columns) for columns in held]
    start = np.linspace(-1.0, 1.0, 4)
    if method is HyFEM:
        run = Run(method, data, 6, start=start, aggregation=rule, participation=0.6)
        local = {k: run.strategy.local_model(str(k)) for k in range(len(held))}
        for j in range(4):
            own = sorted(
                local[k][columns.index(j)]
                for k, columns in enumerate(held)
                if j in columns
            )
            # ⌈0.2 · 3⌉ = ⌈0.2 · 5⌉ = 1, and of 5 the median leaves 1
            cut = 1 if rule == "trimmed-mean" else (len(own) - 1) // 2
            middle = own[cut : len(own) - cut]
            assert run.model[j] == pytest.approx(np.mean(middle), abs=1e-12)
    # fewer than three answers for a feature: it keeps its weight
    run = Run(HybridFedAvg, data, 6, start=start, aggregation=rule, participation=0.4)
    before, kept = start, 0
    for S, model in zip(run.watch.used, run.watch.models, strict=True):
        answers = np.array([sum(j in data[k].columns for k in S) for j in range(4)])
        assert ((model == before) == (answers < 3)).all()
        kept += int((answers < 3).sum())
        before = model
    assert 0 < kept < 24


@pytest.mark.parametrize("method", METHODS)
def test_a_robust_rule_needs_three_holders_of_each_feature(method: Any) -> None:
    message = "needs at least 3 clients with labels for each feature; 8 of 9"
    refused(message, lambda: Run(method, hybrid(), aggregation="median"))
    with pytest.raises(SettingsError, match="'clipping' does not apply to hy"):
        Run(method, hybrid(), aggregation="clipping")


@pytest.mark.parametrize("method", METHODS)
def test_sparse_features_give_the_same(method: Any) -> None:
    data = hybrid()
    rng = np.random.default_rng(4)
    for own in data:
        own.features[rng.random(own.features.shape) < 0.5] = 0.0
        own.features[0] = 0.0
    expected = Run(method, data).model
    for kind in (csr_array, csc_array, coo_array):
        sparse = [replace(own, features=kind(own.features)) for own in data]
        run = Run(method, sparse)
        run.check(data)
        assert np.abs(run.model - expected).max() < 1e-12
    # entries that are there twice count as their sum
    twice = csr_array(([1.0, 2.0, 5.0], [1, 1, 0], [0, 2, 3]), shape=(2, 2))
    own = Data(twice, [0, 1], np.array([1.0, -1.0]))
    run = Run(method, [own], start=np.zeros(2))
    run.check([own], start=np.zeros(2))
    assert twice.nnz == 3


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_counts_and_the_nodes_order_does_not(method: Any) -> None:
    data = hybrid()
    model = Run(method, data, participation=0.6).model
    again = Run(method, data, participation=0.6, grid_seed=9, encode=True).model
    assert np.array_equal(model, again)
    assert not np.allclose(model, Run(method, data, participation=0.6, seed=4).model)


@pytest.mark.parametrize("method", METHODS)
def test_features_come_in_the_order_of_the_clients_by_default(method: Any) -> None:
    data = hybrid()
    run = Run(method, data, feature_names=None)
    order = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert run.strategy.alignment.feature_names == [f"feature {j}" for j in order]
    shifted = [data[5], *data[:5]]
    run = Run(method, shifted, 1, feature_names=None)
    first = [8, 0, 1, 2, 3, 4, 5, 6, 7]
    assert run.strategy.alignment.feature_names == [f"feature {j}" for j in first]
    own = [replace(d, columns=[first.index(j) for j in d.columns]) for d in shifted]
    run.check(own)


# ---------------------------------------------------------------- the special cases


def one_sample_each(columns: Sequence[Sequence[int]]) -> list[Data]:
    """Clients with one sample, so that SGD is gradient descent."""
    rng = np.random.default_rng(8)
    return [
        Data(rng.standard_normal((1, len(own))), list(own), rng.standard_normal(1))
        for own in columns
    ]


STEADY: dict[str, Any] = {"loss": "squared", "regularization": 0.3, "step_offset": 1e9}


def ridge(data: Sequence[Data], p: int) -> Array:
    """The minimum of (λ/2)‖w‖² + (1/N) Σ ½(x_iᵀw − y_i)²."""
    X = np.zeros((len(data), p))
    for row, own in zip(X, data, strict=True):
        row[own.columns] = own.features[0]
    y = np.array([own.labels[0] for own in data if own.labels is not None])
    N = len(data)
    return np.linalg.solve(X.T @ X / N + 0.3 * np.eye(p), X.T @ y / N)


def test_horizontal_fedavg_is_gradient_descent_on_p() -> None:
    """All features everywhere, one step a round: the central optimum."""
    data = one_sample_each([range(4)] * 5)
    run = Run(
        HybridFedAvg,
        data,
        400,
        start=np.zeros(4),
        local_steps=1,
        step_size=0.2e9,
        **STEADY,
    )
    assert run.strategy.alignment.horizontal
    assert np.abs(run.model - ridge(data, 4)).max() < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_vertical_clients_learn_alone(method: Any) -> None:
    """Disjoint features: the model is what each finds by itself, put together."""
    rng = np.random.default_rng(2)
    y = np.where(rng.standard_normal(20) > 0, 1.0, -1.0)
    blocks = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    data = [Data(rng.standard_normal((20, len(c))), list(c), y) for c in blocks]
    run = Run(method, data)
    run.check(data)
    # the first client's run without the others: its own name is 0 in both
    alone = Data(data[0].features, [0, 1, 2], y)
    start = START[:3]
    assert np.abs(Run(method, [alone], start=start).model - run.model[:3]).max() < 1e-12
    # not the optimum: for that the clients would have to know each other's scores
    single = one_sample_each([[0, 1], [2, 3]])
    settled = Run(
        HybridFedAvg,
        single,
        400,
        start=np.zeros(4),
        local_steps=1,
        step_size=0.2e9,
        **STEADY,
    )
    own = np.concatenate(
        [ridge([Data(d.features, [0, 1], d.labels)], 2) for d in single]
    )
    assert np.abs(settled.model - own).max() < 1e-9


@pytest.mark.parametrize(("mu", "rounds"), [(0.01, 60), (1.0, 100), (10.0, 600)])
def test_hyfem_settles_at_the_minimum_of_its_own_objective(
    mu: float, rounds: int
) -> None:
    data = one_sample_each([[0, 1, 2], [2, 1], [2, 3]])
    run = Run(
        HyFEM,
        data,
        rounds,
        start=np.zeros(4),
        matching=mu,
        local_steps=10,
        step_size=0.2e9,
        **STEADY,
    )
    # unknowns: the three w_k, one after the other, and w
    sizes = [3, 2, 2]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    M, c = np.zeros((11, 11)), np.zeros(11)
    for k, own in enumerate(data):
        assert own.labels is not None
        x = own.features[0]
        at = np.arange(offsets[k], offsets[k + 1])
        M[np.ix_(at, at)] += np.outer(x, x) + 0.3 * np.eye(len(x))
        c[at] += own.labels[0] * x
        for i, j in zip(at, own.columns, strict=True):
            M[i, i] += mu
            M[7 + j, 7 + j] += mu
            M[i, 7 + j] -= mu
            M[7 + j, i] -= mu
    best = np.linalg.solve(M, c)
    assert np.abs(run.model - best[7:]).max() < 1e-8
    for k in range(3):
        w_k = best[offsets[k] : offsets[k + 1]]
        assert np.abs(run.strategy.local_model(str(k)) - w_k).max() < 1e-8


def test_without_matching_local_models_are_independent() -> None:
    data = hybrid()
    run = Run(HyFEM, data, matching=0.0)
    run.check(data)
    for k, own in enumerate(data):
        # a run in which everybody else's data is other data
        rng = np.random.default_rng(50)
        others = [
            own if i == k else block(rng, d.features.shape[0], d.columns)
            for i, d in enumerate(data)
        ]
        other = Run(HyFEM, others, matching=0.0)
        name = str(k)
        assert np.array_equal(
            run.strategy.local_model(name), other.strategy.local_model(name)
        )
        assert np.abs(other.model - run.model).max() > 1e-3


def test_much_matching_makes_local_models_agree() -> None:
    data = hybrid()
    apart = []
    for mu in (0.0, 1.0, 1e2, 1e4, 1e8):
        run = Run(HyFEM, data, 30, matching=mu)
        metric = run.watch.metrics[-1]["disagreement"]
        distances = [
            run.strategy.local_model(str(k)) - run.model[own.columns]
            for k, own in enumerate(data)
        ]
        assert metric == pytest.approx(sum(float(d @ d) for d in distances), rel=1e-9)
        apart.append(metric)
    assert apart == sorted(apart, reverse=True)
    assert apart[0] > 0.1
    assert apart[-1] < 1e-12


# ---------------------------------------------------------- losses and wiped clients


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize(
    "faults", [LOSS_20, {"wipe": 0.3}, {"state_loss": 0.3}, EVERYTHING]
)
@pytest.mark.parametrize("method", METHODS)
def test_under_faults_it_is_the_loop_over_the_answers_used(
    method: Any, faults: Mapping[str, float], encode: bool
) -> None:
    data = hybrid()
    run = Run(
        method, data, 30, faults=faults, calm_from=30, participation=0.8, encode=encode
    )
    counts = run.grid.fault_counts
    assert all(counts[name] > 3 for name in faults)
    if "reply_loss" in faults:
        assert any(len(S) < 5 for S in run.watch.used)
    run.check(data)
    if method is HyFEM:
        check_nodes(run)
    # one wave a round; clients out of step are asked again in the same round
    waves = {record.round_trips for record in run.strategy.history[1:]}
    assert waves <= ({1, 2} if method is HyFEM else {1})


def check_nodes(run: Run) -> None:
    """The w_k of those in the last round, which had no faults, are the server's."""
    assert run.watch.used[-1]
    checked = 0
    for number, context in contexts(run.grid).items():
        if number not in run.watch.used[-1]:
            continue
        name, memory = str(number), memory_of(run.strategy, context)
        assert memory.provisional.round == len(run.watch.used)
        assert np.array_equal(
            decode(memory.provisional.arrays["w"]), run.strategy.local_model(name)
        )
        checked += 1
    assert checked == len(run.watch.used[-1])


def test_hyfem_sends_its_clients_their_own_model_only_if_they_lost_it() -> None:
    data = hybrid()
    calm = Run(HyFEM, data, 6, encode=True).strategy.history
    wiped = Run(HyFEM, data, 6, encode=True, faults={"wipe": 1.0}).strategy.history
    # the first round restores everybody in both, and the others in one of them
    assert calm[2].round_trips == calm[5].round_trips == 1
    assert wiped[2].round_trips == wiped[5].round_trips == 2
    assert all(record.used == 6 for record in wiped[1:])


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    method: Any, tmp_path: Path
) -> None:
    data = hybrid()
    labels = data[4].labels
    data[4].labels = None
    whole = Run(method, data, 12, participation=0.6)
    path = tmp_path / "checkpoint"
    for keep in (True, False):  # whether the clients live on
        first = Run(
            method, data, 6, participation=0.6, checkpoint=path, checkpoint_every=1
        )
        states = first.grid.client_states() if keep else None
        again = Run(method, data, 12, participation=0.6, resume=path, states=states)
        assert np.array_equal(again.model, whole.model)
        assert all(4 not in S for S in again.watch.used)
    assert labels is not None


# ---------------------------------------------------------------------------- labels


@pytest.mark.parametrize("method", METHODS)
def test_clients_without_labels_are_left_out(
    method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = hybrid()
    data[0].labels = None
    data[4].labels = np.full(6, np.nan)  # the only one with feature 7
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        run = Run(method, data)
    finally:
        logger.removeHandler(caplog.handler)
    assert run.watch.used == [[1, 2, 3, 5]] * ROUNDS
    assert {k for k, _ in run.seen} == {1, 2, 3, 5}
    assert run.model[7] == START[7]
    assert (run.model != START).sum() == P - 1
    run.check(data)
    assert "1 of 9 features are held by clients without labels only" in caplog.text


@pytest.mark.parametrize("method", METHODS)
def test_samples_without_labels_are_skipped(method: Any) -> None:
    data = hybrid()
    own = data[2]
    assert own.labels is not None
    kept = ~np.isnan(own.labels)
    assert 0 < kept.sum() < len(kept)
    less = [*data]
    less[2] = Data(own.features[kept], own.columns, own.labels[kept])
    assert np.array_equal(Run(method, data).model, Run(method, less).model)


# ---------------------------------------------------------------- what is sent to whom


@pytest.mark.parametrize("method", METHODS)
def test_clients_get_the_weights_of_their_features_and_send_no_ids(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hybrid()
    sent: list[list[NDArray[Any]]] = []
    read = Conversation._open

    def spy(self: Conversation, *given: Any) -> Any:
        answer = read(self, *given)
        if isinstance(answer, Answer) and answer.server_round == 0:
            sent.append([*answer.arrays])
        return answer

    monkeypatch.setattr(Conversation, "_open", spy)
    rounds = 3
    run = Run(method, data, rounds)
    models = [START, *run.watch.models]
    for t in range(rounds):
        for k, rows in run.seen[6 * t : 6 * (t + 1)]:
            assert np.array_equal(rows, models[t][None, data[k].columns])
    assert len(sent) == 6
    for (names, labelled), own in zip(sent, data, strict=True):
        assert names.tobytes().decode().split("\n") == own.names
        assert labelled.tolist() == [1]


# ------------------------------------------------------------------------ bad settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinges"}, "loss = 'hinges' is not known"),
        ({"regularization": 0.0}, "regularization = 0.0 must be greater than 0"),
        ({"regularization": math.nan}, "regularization = nan must be greater than 0"),
        ({"local_steps": 0}, "local_steps = 0 must be at least 1"),
        ({"local_steps": 2.5}, "local_steps = 2.5 must be a whole number"),
        ({"step_size": 0.0}, "step_size = 0.0 must be greater than 0"),
        ({"step_size": math.inf}, "step_size = inf must be greater than 0"),
        ({"step_offset": -0.1}, "step_offset = -0.1 must be at least 0"),
        ({"smoothing": -1.0}, "smoothing = -1.0 must be greater than 0"),
        ({"participation": 0.0}, "participation = 0.0 must be greater than 0"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_settings(method: Any, options: dict[str, Any], message: str) -> None:
    refused(message, lambda: method(**options))


@pytest.mark.parametrize("matching", [-0.5, math.inf, math.nan])
def test_bad_matching(matching: float) -> None:
    refused(
        f"matching = {matching} must be at least 0", lambda: HyFEM(matching=matching)
    )


def refused(message: str, make: Callable[[], Any]) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


def _with(k: int, **changes: Any) -> list[Data]:
    data = hybrid()
    data[k] = replace(data[k], **changes)
    return data


def _unlabelled() -> list[Data]:
    return [replace(own, labels=None) for own in hybrid()]


BAD_DATA: list[tuple[Callable[[], list[Data]], dict[str, Any], str]] = [
    (_unlabelled, {}, "no client has a label to learn from"),
    (lambda: _with(1, columns=[2, 1]), {}, "client 1: features of shape (4, 3)"),
    (lambda: _with(1, columns=[2, 1, 1]), {}, "client 1 names a feature twice"),
    (lambda: _with(1, columns=[2, 1, 9]), {}, "client 1 has feature 'feature 9'"),
    (lambda: _with(4, columns=[5, 6]), {}, "feature 'feature 7' of the model"),
    (lambda: _with(3, labels=np.array([0.5])), {}, "client 3: label 0 is 0.5"),
    (lambda: _with(3, labels=np.ones(2)), {}, "client 3: labels have shape (2,)"),
    (lambda: _with(3, loss="squared"), {}, "client 3: loss = 'hinge' on the server"),
    (
        lambda: _with(3, features=np.array([[1.0, np.nan]])),
        {},
        "client 3: the features are not finite",
    ),
    (
        lambda: _with(3, features=csr_array(np.array([[1.0, np.inf]]))),
        {},
        "client 3: the features are not finite",
    ),
    (hybrid, {"feature_names": ["a"]}, "the model has 9 weights, but feature_names"),
    (hybrid, {"start": np.zeros((3, 3))}, "learns one vector of weights"),
    (
        hybrid,
        {"start": np.zeros(8), "feature_names": None},
        "the model has 8 weights, but the clients hold 9 features",
    ),
]


@pytest.mark.parametrize(
    ("make", "options", "message"), BAD_DATA, ids=[bad[2] for bad in BAD_DATA]
)
@pytest.mark.parametrize("method", METHODS)
def test_bad_data(
    method: Any,
    make: Callable[[], list[Data]],
    options: dict[str, Any],
    message: str,
) -> None:
    refused(message, lambda: Run(method, make(), **options))


@pytest.mark.parametrize("method", METHODS)
def test_steps_that_diverge_say_so(method: Any) -> None:
    options: dict[str, Any] = {"step_size": 1e100, "max_failed_rounds": 2}
    if method is HyFEM:
        # the penalty's proximal map keeps the steps in bounds, however long they are
        assert np.isfinite(Run(HyFEM, hybrid(), **options).model).all()
        options["matching"] = 0.0
    with pytest.raises(RuntimeError, match="step-size = 1e\\+100 is too long"):
        Run(method, hybrid(), **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_malformed_answer_is_as_if_lost(method: Any) -> None:
    run = Run(method, hybrid(), 20, faults={"garbage": 0.4})
    reasons = [why for r in run.strategy.history for _, why in r.rejected]
    assert any("expected (3,) and float64" in why for why in reasons)
    run.check(hybrid())


# --------------------------------------------------------------------- the comparison


@pytest.mark.parametrize(
    "scaling", ["none", pytest.param("unit", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("method", METHODS)
def test_neither_reaches_the_central_optimum_of_digits(
    method: Any, scaling: str
) -> None:
    """4 × 4 groups, λ = 10⁻³: no step size, number of steps or μ comes within 5 %."""
    task = HybridSVM(16, 0, test_fraction=0.0, row_scaling=scaling)
    objective = task.objective()
    p = objective.shape[0]
    optimum = task.optimum().value
    names = task.feature_names()
    index = {name: j for j, name in enumerate(names)}
    data = []
    for k in range(16):
        own = task.client_data(k)
        columns = [index[name] for name in own.feature_names]
        data.append(Data(own.features, columns, own.labels))
    # the best of a random search over 150 settings, and some of their neighbours
    settings: list[dict[str, Any]] = [
        {"local_steps": steps, "step_size": a, "step_offset": b}
        for steps, a, b in [
            (10, 0.5, 0.1),
            (100, 0.1, 0.1),
            (10, 1.5, 3.0),
            (40, 0.4, 0.01),
            (80, 0.25, 0.75),
            (10, 10.0, 20.0),
        ]
    ]
    if method is HyFEM:
        settings = [own | {"matching": 0.05} for own in settings]
        settings += [own | {"matching": 10.0} for own in settings[-1:]]
    gaps = []
    for options in settings:
        run = Run(
            method,
            data,
            40,
            start=np.zeros(p),
            loss="hinge",
            regularization=task.regularization,
            **options,
        )
        # the best model of the whole run, not only its last
        values = [objective.value(model) for model in run.watch.models]
        gaps.append(min(values) / optimum - 1.0)
    assert min(gaps) > 0.05
    # they have learnt all the same
    assert min(gaps) < 0.5 * (objective.value(np.zeros(p)) / optimum - 1.0)
