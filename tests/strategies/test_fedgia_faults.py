"""FedGiA when answers are lost, late, repeated or spoilt, and clients forget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from clients import FedGiAClient
from fedtrellis import Callback, RoundRecord
from fedtrellis.objectives import LeastSquares
from strategies import FedGiA
from tests.harness import Array, contexts, grid_of, play

M, N, ROWS, K0, SCALE = 8, 10, 14, 3, 1.0
EVERYTHING = {
    "request_loss": 0.2,
    "reply_loss": 0.2,
    "late_reply": 0.1,
    "state_loss": 0.1,
    "wipe": 0.05,
    "crash": 0.05,
    "garbage": 0.1,
    "duplicate": 0.1,
}


class Run:
    """A run that notes down whose answers were used and who had lost its state."""

    def __init__(
        self,
        faults: Mapping[str, Any],
        rounds: int = 60,
        *,
        grid_seed: int = 0,
        encode: bool = False,
        wipe_in: Mapping[int, int] | None = None,
        **options: Any,
    ) -> None:
        rng = np.random.default_rng(0)
        self.A = rng.standard_normal((M, ROWS, N))
        self.b = rng.standard_normal((M, ROWS))
        objectives = [
            LeastSquares(A, b, scale="half-mean")
            for A, b in zip(self.A, self.b, strict=True)
        ]
        self.lost: set[tuple[int, int]] = set()  # (round, client)
        outer = self

        class Watched(FedGiAClient):
            def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
                if "pi" not in self.state and config["used-round"] > 0:
                    outer.lost.add((config["server-round"], int(self.client_id)))
                return super().fit(parameters, config)

        class Watch(Callback):
            def on_round(self, strategy: Any, record: RoundRecord) -> None:
                for index, context in contexts(outer.grid).items():
                    if (wipe_in or {}).get(record.round + 1) == index:
                        context.state = RecordDict()

        self.grid = grid_of(
            Watched, objectives, seed=grid_seed, encode=encode, **dict(faults)
        )
        callbacks = [Watch(), *options.pop("callbacks", [])]
        settings = {"tolerance": 0.0, "max_failed_rounds": 1000} | options
        self.strategy = FedGiA(
            hessian="gram",
            sigma_scale=SCALE,
            local_steps=K0,
            seed=3,
            callbacks=callbacks,
            **settings,
        )
        run = play(self.strategy, self.grid, np.zeros(N), rounds)
        self.model, self.used = run.model, run.used

    def gradient(self, i: int, x: Array) -> Array:
        gradient: Array = self.A[i].T @ (self.A[i] @ x - self.b[i]) / ROWS
        return gradient

    @property
    def optimum(self) -> Array:
        A, b = self.A.reshape(-1, N), self.b.reshape(-1)
        return np.asarray(np.linalg.lstsq(A, b)[0], dtype=np.float64)

    def check_loop(self) -> None:
        """Algorithm 1 on the answers that were used; z_i of the others stay."""
        sigma = self.strategy.settled_sigma
        inverse = [
            np.linalg.inv(A.T @ A / ROWS / M + sigma * np.eye(N)) for A in self.A
        ]
        Z, pi, x = np.zeros((M, N)), np.zeros((M, N)), np.zeros(N)
        for t, used in enumerate(self.used, start=1):
            C = self.strategy.selected(t)
            for i in used:
                g = self.gradient(i, x) / M
                if str(i) in C and (t, i) not in self.lost:
                    for _ in range(K0):
                        x_i = x - inverse[i] @ (g + pi[i])
                        pi[i] = pi[i] + sigma * (x_i - x)
                    Z[i] = x_i + pi[i] / sigma
                else:
                    pi[i] = -g
                    Z[i] = x - g / sigma
            x = Z.mean(axis=0)
        assert np.abs(x - self.model).max() < 1e-9
        for i in range(M):
            assert np.abs(self.strategy.client_point(str(i)) - Z[i]).max() < 1e-9


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("grid_seed", [0, 1, 2])
def test_everything_at_once(grid_seed: int, encode: bool) -> None:
    run = Run(EVERYTHING, grid_seed=grid_seed, encode=encode)
    assert all(run.grid.fault_counts.values())
    assert run.lost
    used = [len(names) for names in run.used]
    assert min(used) < max(used)
    run.check_loop()


def test_a_fifth_of_the_replies_lost_ends_at_the_same_point() -> None:
    calm, rough = Run({}, rounds=150), Run({"reply_loss": 0.2}, rounds=150)
    assert rough.grid.fault_counts["reply_loss"] > 150
    assert np.abs(calm.model - calm.optimum).max() < 1e-10
    assert np.abs(rough.model - calm.optimum).max() < 1e-8


def test_a_client_restarted_without_state_ends_at_the_same_point() -> None:
    run = Run({}, rounds=150, wipe_in={5: 2})
    assert run.lost == {(5, 2)}
    assert all(record.used == M for record in run.strategy.history)
    run.check_loop()
    assert np.abs(run.model - run.optimum).max() < 1e-10


def test_the_stop_rule_waits_for_those_who_are_silent() -> None:
    """A change that was not heard of is not a change of zero."""
    run = Run({"reply_loss": 0.2}, rounds=400, tolerance=1e-9)
    rounds = len(run.used)
    assert rounds < 400
    gradient = np.mean([run.gradient(i, run.model) for i in range(M)], axis=0)
    assert float(gradient @ gradient) <= N * 1e-9
    # one that has never answered keeps the run going
    with pytest.raises(RuntimeError, match="no usable answer in all of the 6 rounds"):
        Run({"reply_loss": 1.0}, rounds=6, tolerance=1e9)
