"""λ_0 that nobody has chosen: what is asked for, when it is settled, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.schedules import Schedule
from fedtrellis.server.callbacks import Callback, RoundRecord
from fedtrellis.wire.protocol import CONFIG, STATUS
from strategies import FedFW
from tests.harness import Array, Played, Recorder, Stop, app_of, play

N, P, RADIUS = 5, 8, 2.0
BALL = L1Ball(RADIUS)
rng = np.random.default_rng(4)
A, B = rng.standard_normal((N, 6, P)), rng.standard_normal((N, 6))
# unequal clients
LOSSES = [
    LeastSquares(3.0**i * a, b) for i, (a, b) in enumerate(zip(A, B, strict=True))
]
START = np.full(P, 0.1)
NORMS = [float(np.linalg.norm(loss.gradient(START))) / N for loss in LOSSES]
#: What stands before G/D, by schedule; for FedFW+ it is 0.12.
MULTIPLES = {"convex": 0.7, "nonconvex": 1.4, "stochastic": 0.35, "constant": 7.0}


def expected(clients: list[int], multiple: float = 0.7) -> float:
    """Half of the clients say less, half of them more; the ball is 2 · RADIUS wide."""
    return multiple * float(np.median([NORMS[i] for i in clients])) / (2 * RADIUS)


def asked(grid: Recorder) -> dict[tuple[int, int], dict[str, Any]]:
    """What each client was told, by round and client."""
    found: Any = {
        where: sent[0].content[CONFIG] for where, sent in grid.requests.items()
    }
    return {where: dict(config) for where, config in found.items()}


def told(grid: Recorder) -> dict[tuple[int, int], int]:
    """How many bytes of scalars each client sent."""
    found: Any = {
        where: sent[0].content[STATUS] for where, sent in grid.answers.items()
    }
    return {where: len(status.get("numbers", b"")) for where, status in found.items()}


def run(
    strategy: FedFW,
    rounds: int = 6,
    *,
    losses: Any = LOSSES,
    start: Array = START,
    lost: Any = (),
    client: Any = FedFWClient,
) -> tuple[Played[FedFW], Recorder]:
    grid = Recorder(app_of(client, losses, strategy.domain), N)
    grid.missed = set(lost)
    return play(strategy, grid, start, rounds), grid


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("variant", ["plain", "augmented"])
def test_it_is_a_multiple_of_the_median_gradient(variant: Any, schedule: Any) -> None:
    strategy = FedFW(BALL, variant=variant, schedule=schedule)
    played, grid = run(strategy)
    multiple = 0.12 if variant == "augmented" else MULTIPLES[schedule]
    penalty = expected([0, 1, 2, 3, 4], multiple)
    assert strategy.half.penalty == pytest.approx(penalty, rel=1e-12)
    assert strategy.half.penalty is not None
    # from round 2 on the run is that of whoever sets this number
    given = FedFW(
        BALL, variant=variant, schedule=schedule, penalty=strategy.half.penalty
    )
    assert np.array_equal(played.model, run(given)[0].model)
    # one number of 8 bytes, once
    assert told(grid) == {
        (t, i): 8 if t == 1 else 0 for t in range(1, 7) for i in range(N)
    }
    for (t, _), config in asked(grid).items():
        assert ("gradient-norm" in config) == (t == 1)


def test_one_client_of_several_cannot_choose_it() -> None:
    class Boastful(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            answer = super().fit(parameters, config)
            if self.client_id == "4" and self.numbers is not None:
                self.numbers = np.array([1e90])
            return answer

    strategy = FedFW(BALL, variant="plain")
    run(strategy, client=Boastful)
    assert strategy.half.penalty == pytest.approx(expected([0, 1, 2, 3, 4]))


def test_it_is_settled_by_the_first_round_that_is_used() -> None:
    lost = [(t, i) for t in (1, 2) for i in range(N)] + [(3, 1), (3, 2)]
    strategy = FedFW(BALL, variant="augmented", local_steps=3)
    _, grid = run(strategy, lost=lost)
    assert strategy.half.penalty == pytest.approx(expected([0, 3, 4], 0.12))
    # who comes later is not asked any more
    assert {where for where, size in told(grid).items() if size} == {
        (3, 0),
        (3, 3),
        (3, 4),
    }
    # a step or two more would need λ
    assert isinstance(asked(grid)[3, 0]["step-size"], float)
    assert len(asked(grid)[4, 1]["step-size"]) == 3


class Settled(Callback):
    """The first two rounds, in which all answers get lost, settle nothing."""

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        assert (strategy.half.penalty is None) == (record.round < 3)


@pytest.mark.parametrize("stopped", [2, 4])
def test_it_is_in_the_checkpoint(stopped: int, tmp_path: Path) -> None:
    """Also one of a run in which nobody had answered yet."""
    lost = [(t, i) for t in (1, 2) for i in range(N)]
    path = tmp_path / "checkpoint"

    def strategy(**options: Any) -> FedFW:
        # a round without an answer is one that is gone on from as well
        return FedFW(BALL, variant="plain", local_steps=2, **options)

    whole, _ = run(strategy(callbacks=[Settled()]), 8, lost=lost)
    if stopped == 2:
        with pytest.raises(RuntimeError, match="no usable answer"):
            run(strategy(checkpoint=path, callbacks=[Stop(2)]), 8, lost=lost)
    else:
        run(strategy(checkpoint=path, callbacks=[Stop(stopped)]), 8, lost=lost)
    rest, _ = run(strategy(resume=path), 8, lost=lost)
    assert rest.strategy.half.penalty == whole.strategy.half.penalty
    assert np.array_equal(rest.model, whole.model)


def test_clients_that_stand_still_at_first_are_asked_again() -> None:
    """At a saddle point no gradient says anything."""

    class Saddle:
        num_examples = 1

        def __init__(self, sign: float) -> None:
            self.sign = sign

        def gradient(self, x: Array) -> Array:
            return self.sign * x

    losses = [Saddle(s) for s in (-1.0, -2.0, -3.0, -4.0, 5.0)]
    strategy = FedFW(BALL, variant="augmented", local_steps=2)
    _, grid = run(strategy, losses=losses, start=np.zeros(P))
    assert {t for (t, _), size in told(grid).items() if size} == {1, 2}
    # all are at the ball's first vertex by then: ‖∇f_i/n‖ is 2, 4, 6, 8, 10 over n
    assert strategy.half.penalty == pytest.approx(0.12 * 6.0 / N / (2 * RADIUS))


def test_a_client_that_does_not_say_it_is_not_used() -> None:
    class Foreign(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            answer = super().fit(parameters, config)
            if self.client_id == "1":
                self.numbers = None
            return answer

    played, _ = run(FedFW(BALL, variant="plain"), client=Foreign)
    (client, reason), *_ = played.strategy.history[0].rejected
    assert client == "1"
    assert "no norm of the client's gradient" in reason
    # afterwards nothing is missing
    assert played.used[1:] == [[0, 1, 2, 3, 4]] * 5
