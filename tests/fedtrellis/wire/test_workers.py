"""A grid's nodes in worker processes: the same runs, and orderly ends."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import FedAvgGDClient, FedGiAClient
from fedtrellis import LocalGrid, SettingsError
from fedtrellis.objectives import LeastSquares
from fedtrellis.signals import Interrupted, signals_interrupt
from strategies import FedAvgGD, FedGiA
from tests.harness import Played, Stop, grid_of, play

NODES = 5
FAULTS = {
    "request_loss": 0.1,
    "wipe": 0.1,
    "crash": 0.1,
    "state_loss": 0.1,
    "reply_loss": 0.1,
    "late_reply": 0.1,
    "garbage": 0.1,
    "duplicate": 0.1,
}


def losses() -> list[Any]:
    rng = np.random.default_rng(2)
    return [
        LeastSquares(rng.standard_normal((6, 4)), rng.standard_normal(6))
        for _ in range(NODES)
    ]


LOSSES = losses()


@pytest.fixture
def grids() -> Iterator[Callable[..., LocalGrid]]:
    made: list[LocalGrid] = []

    def make(client: Any = FedGiAClient, **options: Any) -> LocalGrid:
        made.append(grid_of(client, LOSSES, seed=4, **options))
        return made[-1]

    yield make
    for grid in made:
        grid.close()


def run(grid: LocalGrid, rounds: int = 6, **settings: Any) -> Played[Any]:
    method = FedGiA(sigma=20.0, tolerance=0.0, participation=0.7, **settings)
    return play(method, grid, np.zeros(4), rounds=rounds)


def pids(grid: LocalGrid) -> list[int]:
    return [process.pid for process in grid._nodes._processes]  # type: ignore


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["calm", "faults"])
def test_workers_change_nothing(
    grids: Callable[..., LocalGrid], faults: dict[str, float], batched: bool
) -> None:
    one = run(alone := grids(batched=batched, encode=True, **faults))
    two = run(grid := grids(batched=batched, encode=True, workers=2, **faults))
    assert two.used == one.used
    # a cohort may be split otherwise, and its numbers rounded otherwise
    np.testing.assert_allclose(two.models, one.models, atol=1e-14 * batched, rtol=0.0)
    for a, b in zip(one.strategy.history, two.strategy.history, strict=True):
        assert (a.rejected, a.bytes_up, a.bytes_down, a.used) == (
            b.rejected,
            b.bytes_up,
            b.bytes_down,
            b.used,
        )
    assert grid.fault_counts == alone.fault_counts
    assert (grid.bytes_up, grid.bytes_down) == (alone.bytes_up, alone.bytes_down)
    assert grid.client_states().keys() == alone.client_states().keys()
    # the states are the processes' own
    assert not any(context.state for context in grid._contexts.values())


def test_a_run_goes_on_with_another_number_of_workers(
    grids: Callable[..., LocalGrid], tmp_path: Path
) -> None:
    whole = run(grids())
    for first, second in ((1, 3), (2, 1), (3, 2)):
        path = tmp_path / f"{first}"
        run(
            grids(workers=first),
            checkpoint=path,
            checkpoint_every=1,
            callbacks=[Stop(3)],
        )
        rest = run(grids(workers=second), resume=path)
        np.testing.assert_array_equal(rest.models[-1], whole.models[-1])


class Slow(FedAvgGDClient):
    """Takes its time, longer for the first of a process."""

    def fit(self, parameters: Any, config: Any) -> Any:
        time.sleep(0.3)
        return super().fit(parameters, config)


class Dying(FedAvgGDClient):
    """Client 3 takes its process with it."""

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.client_id == "3":
            os._exit(7)
        return super().fit(parameters, config)


class Raising(FedAvgGDClient):
    """Client 3 raises."""

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.client_id == "3":
            raise ArithmeticError("not today")
        return super().fit(parameters, config)


def test_a_client_that_raises_is_an_error_reply(
    grids: Callable[..., LocalGrid],
) -> None:
    played = play(FedAvgGD(), grids(Raising, workers=2), np.zeros(4), rounds=2)
    for record in played.strategy.history:
        assert record.rejected == [("3", "error 2: ArithmeticError: not today")]


def test_a_process_that_dies_ends_the_run_and_the_others(
    grids: Callable[..., LocalGrid],
) -> None:
    grid = grids(Dying, workers=2)
    with pytest.raises(RuntimeError, match="worker 1 of 2 ended with exit code 7"):
        play(FedAvgGD(), grid, np.zeros(4), rounds=2)
    assert all(gone(pid) for pid in pids(grid))


def test_an_interruption_leaves_a_checkpoint_and_no_processes(
    grids: Callable[..., LocalGrid], tmp_path: Path
) -> None:
    path, grid = tmp_path / "checkpoint", grids(Slow, workers=2)

    class Alarm(Stop):
        def on_round(self, strategy: Any, record: Any) -> bool:
            if record.round == 2:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            return False

    def alarm(number: int, frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, alarm)
    strategy = FedAvgGD(checkpoint=path, checkpoint_every=100, callbacks=[Alarm(0)])
    try:
        with pytest.raises(Interrupted), signals_interrupt():
            play(strategy, grid, np.zeros(4), rounds=50)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(strategy.history) == 2
    # the processes were asked for their nodes' states for it, and end with the grid
    rest = FedAvgGD(resume=path)
    assert len(play(rest, grids(FedAvgGDClient), np.zeros(4), rounds=4).models) == 2
    workers = pids(grid)
    assert not any(gone(pid) for pid in workers)
    grid.close()
    assert all(gone(pid) for pid in workers)


def test_processes_end_with_their_grid() -> None:
    grid = grid_of(FedAvgGDClient, LOSSES, workers=2)
    grid.client_states()
    workers = pids(grid)
    del grid
    gc.collect()
    assert all(gone(pid) for pid in workers)


def test_a_number_below_one_is_refused() -> None:
    with pytest.raises(SettingsError, match="workers = 0 must be at least 1"):
        grid_of(FedAvgGDClient, LOSSES, workers=0)
