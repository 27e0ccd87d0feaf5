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
from fedtrellis.wire.protocol import CONFIG, STATUS
from strategies import FedFW
from tests.harness import Played, Recorder, Stop, app_of, play

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
    strategy: FedFW, *, lost: Any = (), client: Any = FedFWClient
) -> tuple[Played[FedFW], Recorder]:
    grid = Recorder(app_of(client, LOSSES, strategy.domain), N)
    grid.missed = set(lost)
    return play(strategy, grid, START, 6), grid


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


@pytest.mark.parametrize("number", [1e90, None])
def test_one_client_of_several_cannot_choose_it(number: float | None) -> None:
    """Nor is one used that does not say its norm, before it is settled."""

    class Odd(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            answer = super().fit(parameters, config)
            if self.client_id == "4" and self.numbers is not None:
                self.numbers = None if number is None else np.array([number])
            return answer

    played, _ = run(FedFW(BALL, variant="plain"), client=Odd)
    others = [0, 1, 2, 3] if number is None else [0, 1, 2, 3, 4]
    assert played.strategy.half.penalty == pytest.approx(expected(others))
    assert played.used == [others, *[[0, 1, 2, 3, 4]] * 5]
    if number is None:
        ((client, reason),) = played.strategy.history[0].rejected
        assert client == "4"
        assert "no norm of the client's gradient" in reason


def test_before_it_is_settled_it_is_in_the_checkpoint_as_well(tmp_path: Path) -> None:
    lost = [(t, i) for t in (1, 2) for i in range(N)]
    path, own = tmp_path / "checkpoint", {"variant": "plain", "local_steps": 2}
    whole, _ = run(FedFW(BALL, **own), lost=lost)  # type: ignore[arg-type]
    stopped = FedFW(BALL, checkpoint=path, callbacks=[Stop(2)], **own)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no usable answer"):
        run(stopped, lost=lost)
    rest, _ = run(FedFW(BALL, resume=path, **own), lost=lost)  # type: ignore[arg-type]
    assert rest.strategy.half.penalty == whole.strategy.half.penalty is not None
    assert np.array_equal(rest.model, whole.model)
