"""Whatever is lost, late, repeated, spoilt or forgotten: x̄ is the mean of the x_i."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.client import MethodClient
from fedtrellis.wire.local_grid import FAULTS
from strategies import FedFW, NaiveFrankWolfe
from tests.harness import Stop, contexts, grid_of, memory_of, only_for, play

P, ROWS, RADIUS, PENALTY, DUAL, SEED, BATCH = 15, 5, 2.5, 1.2, 0.3, 11, 2
EVERYTHING = {
    "request_loss": 0.3,
    "reply_loss": 0.3,
    "late_reply": 0.1,
    "state_loss": 0.1,
    "wipe": 0.05,
    "crash": 0.05,
    "garbage": 0.1,
    "duplicate": 0.1,
}
KEEPS_STATE = sorted(set(FAULTS) - {"wipe", "state_loss"})


class Counts(Callback):
    """Whoever was asked and not used was rejected with a reason."""

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        dropped = {name for name, _ in record.rejected}
        if not strategy.client_evaluate_every:  # its waves' losses are noted down too
            assert dropped == set(strategy.sampled) - set(strategy.used)


class Run:
    """A run under faults whose last round has none."""

    def __init__(
        self,
        variant: Any,
        faults: Mapping[str, Any],
        *,
        n: int = 10,
        rounds: int = 60,
        participation: float = 1.0,
        encode: bool = False,
        grid_seed: int = 0,
        **settings: Any,
    ) -> None:
        self.own = settings.get("step_count", "own") == "own"
        self.k = settings.get("local_steps", 1)
        rng = np.random.default_rng(n)
        self.A, self.b = (
            rng.standard_normal((n, ROWS, P)),
            rng.standard_normal((n, ROWS)),
        )
        self.objectives = [
            LeastSquares(a, b, weight=n) for a, b in zip(self.A, self.b, strict=True)
        ]
        self.n, self.participation, self.variant = n, participation, variant

        options = {"seed": grid_seed, "encode": encode, **faults}
        self.grid = grid_of(FedFWClient, self.objectives, L1Ball(RADIUS), **options)
        self.strategy = FedFW(
            L1Ball(RADIUS),
            penalty=settings.pop("penalty", PENALTY),
            variant=variant,
            participation=participation,
            **only_for(
                variant,
                dual_penalty=settings.pop("dual_penalty", DUAL),
                batch_size=BATCH,
            ),
            seed=SEED,
            callbacks=[Counts(), *settings.pop("callbacks", [])],
            max_failed_rounds=1000,
            **settings,
        )
        self.start = np.full(P, 0.1)
        run = play(self.strategy, self.grid, self.start, rounds, last_fault=rounds - 1)
        self.model, self.used = run.model, run.used

    def check_mean(self) -> None:
        names = self.strategy.clients
        iterates = [self.strategy._client_iterate(name) for name in names]
        assert len(names) == self.n
        assert np.abs(self.model - np.mean(iterates, axis=0)).max() < 1e-9

    def check_nodes(self) -> None:
        """What lies in the nodes' state is what the server thinks lies there."""
        last = self.strategy.history[-1]
        assert last.used == last.sampled
        assert not last.rejected
        in_step = set()
        for number, context in contexts(self.grid).items():
            name, memory = str(number), memory_of(self.strategy, context)
            used_round = self.strategy.conversation.client(name).used_round
            if used_round == memory.provisional.round:
                state = memory.provisional.arrays
            elif used_round == memory.committed.round:
                state = memory.committed.arrays
            else:
                continue  # it will ask to be restored
            in_step.add(name)
            x = decode(state["x"])
            assert np.abs(x - self.strategy._client_iterate(name)).max() < 1e-9
            if self.variant == "augmented":
                y = decode(state["y"])
                assert np.abs(y - self.strategy.half._duals[name]).max() < 1e-9
            else:
                assert "y" not in state
        assert in_step >= set(self.strategy.used)
        assert len(self.strategy.used) > 0

    def check_loop(self, sets: Sequence[Sequence[int]] | None = None) -> None:
        """The model is METHODS' in NumPy, §1 and §5.2, with the answers used."""
        x = np.tile(self.start, (self.n, 1))
        y, d, seen = np.zeros_like(x), np.zeros_like(x), set()
        x_bar, taken = self.start, np.zeros(self.n)
        p = self.participation
        penalty, dual = self.strategy.penalty, self.strategy.dual_penalty
        for t, S in enumerate(self.used if sets is None else sets, start=1):
            mean, norms = taken.mean(), []
            # λ_0 is found in the first round that is used, in which it does not matter
            unknown = penalty is None
            for i in S:
                rng = generator(SEED, "mini-batch", str(i), t)
                for j in range(1 if unknown else self.k):
                    own, common = taken[i], mean + j
                    if not self.own:
                        own = common = p * ((t - 1) * self.k + j)
                    eta = 2 / (own + 2)
                    lam = 0.0 if unknown else penalty * math.sqrt(common + 2)
                    dual_now = 0.0 if unknown else penalty if dual is None else dual
                    gradient = 2 * self.A[i].T @ (self.A[i] @ x[i] - self.b[i])
                    norms.append(np.linalg.norm(gradient))
                    if self.variant == "augmented":
                        if j == 0:
                            y[i] += dual_now * (x[i] - x_bar)
                        gradient += y[i]
                    if self.variant == "stochastic":
                        objective = self.objectives[i]
                        sample = objective.stochastic_gradient(x[i], rng, BATCH)
                        rho = min(1.0, 4 / (own + 8) ** (2 / 3))
                        weight = rho if i in seen else 1.0
                        seen.add(i)
                        d[i] = (1 - weight) * d[i] + weight * sample / self.n
                        gradient = d[i]
                    g = gradient + lam * (x[i] - x_bar)
                    j_max = np.argmax(np.abs(g))
                    x[i] *= 1 - eta
                    x[i, j_max] -= eta * RADIUS * np.sign(g[j_max])
                    taken[i] += 1
            if unknown and S:
                share = 0.12 if self.variant == "augmented" else 0.7
                penalty = share * np.median(norms) / (2 * RADIUS)
            x_bar = x.mean(axis=0)
        assert np.abs(self.model - x_bar).max() < 1e-10
        for i in range(self.n):
            assert np.abs(self.strategy._client_iterate(str(i)) - x[i]).max() < 1e-10


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_everything_at_once(variant: str, participation: float, encode: bool) -> None:
    run = Run(variant, EVERYTHING, participation=participation, encode=encode)
    assert all(run.grid.fault_counts.values())
    used = [len(S) for S in run.used]
    assert min(used) < max(used)
    run.check_mean()
    run.check_nodes()
    run.check_loop()


@pytest.mark.parametrize(
    "settings",
    [
        {"step_count": "round"},
        {"local_steps": 3},
        {"local_steps": 3, "step_count": "round"},
        {"penalty": None},
        {"penalty": None, "dual_penalty": None, "local_steps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_other_settings_under_everything(
    variant: str, settings: dict[str, Any]
) -> None:
    """The common clock, several steps an answer, λ_0 by what the clients say."""
    run = Run(variant, EVERYTHING, participation=0.6, rounds=40, **settings)
    run.check_mean()
    run.check_nodes()
    run.check_loop()


@pytest.mark.parametrize("grid_seed", range(1, 6))
def test_other_faults_of_the_same_kind(grid_seed: int) -> None:
    """With evaluations on the clients in between, which are lost and spoilt as well."""
    run = Run(
        "augmented", EVERYTHING, n=4, grid_seed=grid_seed, client_evaluate_every=2
    )
    run.check_mean()
    run.check_nodes()
    run.check_loop()


@pytest.mark.parametrize("variant", ["plain", "augmented"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone(fault: str, variant: str) -> None:
    run = Run(variant, {fault: 0.4}, n=4, rounds=25)
    assert run.grid.fault_counts[fault] > 10
    run.check_mean()
    run.check_nodes()
    run.check_loop()
    if fault in ("wipe", "state_loss", "duplicate"):
        # nothing that the server needs is lost: who lost its state gets it back at once
        assert all(record.used == 4 for record in run.strategy.history)
    else:
        assert any(record.used < 4 for record in run.strategy.history)


@pytest.mark.parametrize("fault", ["wipe", "state_loss"])
def test_nothing_remembered_at_all(fault: str) -> None:
    """Nodes that never keep anything take part as if they did: FedFW, FedFW+."""
    for variant in ("plain", "augmented"):
        run = Run(variant, {fault: 1.0}, n=4, rounds=20)
        assert all(record.used == 4 for record in run.strategy.history)
        run.check_loop()


@pytest.mark.parametrize("fault", KEEPS_STATE)
def test_gradient_average_rolls_back(fault: str) -> None:
    """FedFW-sto: d_i is that of the rounds used, while the node keeps its state."""
    run = Run("stochastic", {fault: 0.4}, n=4, rounds=25, participation=0.8)
    run.check_mean()
    run.check_nodes()
    run.check_loop()


def test_stochastic_with_everything() -> None:
    """What the server cannot give back (d_i) is lost, x_i is not."""
    run = Run("stochastic", EVERYTHING)
    run.check_mean()
    run.check_nodes()


def test_without_faults_the_sets_are_the_samples() -> None:
    run = Run("plain", {}, participation=0.5, n=6)
    sets = [[int(name) for name in run.strategy.sample(t)] for t in range(1, 61)]
    assert run.used == sets
    run.check_loop(sets)


def test_faults_do_not_decide_what_is_sampled() -> None:
    """The same seed samples the same clients, whatever happens to the messages."""
    calm = Run("plain", {}, participation=0.5, rounds=30)
    rough = Run("plain", EVERYTHING, participation=0.5, rounds=30, grid_seed=9)
    for t in range(1, 31):
        assert calm.strategy.sample(t) == rough.strategy.sample(t)


@pytest.mark.parametrize("variant", ["plain", "augmented", "stochastic"])
def test_resumed_run_is_the_same_run(variant: str, tmp_path: Path) -> None:
    """A run under faults, stopped in the middle and resumed from its checkpoint."""

    options: dict[str, Any] = {"n": 4, "rounds": 30, "participation": 0.8}
    whole = Run(variant, EVERYTHING, **options)
    path = tmp_path / "checkpoint"
    Run(variant, EVERYTHING, checkpoint=path, callbacks=[Stop(17)], **options)
    rest = Run(variant, EVERYTHING, resume=path, **options)
    assert rest.used == whole.used[17:]
    assert np.abs(rest.model - whole.model).max() < 1e-12
    rest.check_mean()
    rest.check_nodes()


@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_more_rounds_do_not_change_the_step_that_was_planned(
    method: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """η = (pT + 1)^(−2/3) with the T of the beginning, resumed once and again."""

    def start(rounds: int, **options: Any) -> float:
        def client(context: Context) -> MethodClient:
            objective = LeastSquares(np.eye(P), np.ones(P))
            domain = L1Ball(RADIUS)
            if method is FedFW:
                return FedFWClient(context, objective, domain)
            return NaiveFrankWolfeClient(context, objective, domain)

        options |= {"variant": "plain"} if method is FedFW else {}
        strategy = method(L1Ball(RADIUS), schedule="nonconvex", **options)
        grid = LocalGrid(client_app(client), 2)
        strategy.start(grid, ArrayRecord([np.zeros(P)]), rounds)
        assert len(strategy.history) == rounds
        half = strategy.half if method is FedFW else strategy
        return float(half._schedule.step(rounds))

    path = tmp_path / "checkpoint.npz"
    assert start(8, checkpoint=path) == 9.0 ** (-2 / 3)
    for rounds in (12, 20):
        caplog.clear()
        assert start(rounds, resume=path, checkpoint=path) == 9.0 ** (-2 / 3)
        assert "with T = 8," in caplog.text


def test_flowers_own_calls_restore_in_the_next_round() -> None:
    """configure_train and aggregate_train, one wave: a wiped node misses one round."""
    run = Run("augmented", {}, n=3, rounds=1)
    sets: list[list[int]] = [[0, 1, 2]]
    for t in range(2, 7):
        if t == 3:
            contexts(run.grid)[1].state = RecordDict()
        messages = run.strategy.configure_train(
            t, ArrayRecord(), ConfigRecord(), run.grid
        )
        replies = run.grid.send_and_receive(messages)
        arrays, _ = run.strategy.aggregate_train(t, replies)
        assert arrays is not None
        (run.model,) = arrays.to_numpy_ndarrays()
        sets.append([int(name) for name in run.strategy.used])
    assert sets == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    run.check_mean()
    run.check_loop(sets)


def test_a_checkpoint_of_many_clients_is_gone_through_once() -> None:
    run = Run("plain", {}, n=5, rounds=3)
    passes = [0]

    class Counting(dict[str, Any]):
        def items(self) -> Any:
            passes[0] += 1
            return super().items()

    run.strategy.load_state(Counting(run.strategy.state()))
    assert passes[0] == 1
    run.check_mean()
