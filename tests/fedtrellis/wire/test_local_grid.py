"""The grid in this process: the same messages, and faults that do what they say."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from clients import FedAvgGDClient, FedGiAClient
from fedtrellis import LocalGrid, RoundRecord, SettingsError
from fedtrellis.objectives import LeastSquares
from fedtrellis.server.callbacks import Call
from fedtrellis.signals import Interrupted, signals_interrupt
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.local_grid import FAULTS
from strategies import FedAvgGD, FedGiA
from tests.harness import Played, Stop, contexts, grid_of, play


def counting_app() -> ClientApp:
    """Answers with how many messages its state has seen."""
    app = ClientApp()

    def count(message: Message, context: Context) -> Message:
        if "count" not in context.state:
            context.state["count"] = ConfigRecord({"n": 0})
        counted: Any = context.state["count"]
        counted["n"] += 1  # in place
        content: dict[str, Any] = {
            "status": ConfigRecord({"n": counted["n"], "server-round": 1}),
            "arrays": ArrayRecord([np.arange(5.0), np.arange(4, dtype=np.uint8)]),
        }
        return Message(RecordDict(content), reply_to=message)

    for register in (app.train(), app.evaluate(), app.query("hello")):
        register(count)
    return app


def send(grid: LocalGrid, kind: str = "train") -> list[Message]:
    """Send every node a message."""
    wave = [Message(RecordDict(), node_id, kind) for node_id in grid.get_node_ids()]
    return grid.send_and_receive(wave)


def seen(grid: LocalGrid) -> list[int]:
    """How many messages each node's state has seen."""
    states: list[Any] = [context.state for context in contexts(grid).values()]
    return [state["count"]["n"] if "count" in state else 0 for state in states]


def told(reply: Message) -> Any:
    return "error" if reply.has_error() else cast(Any, reply.content["status"])["n"]


#: By fault: what three messages are answered with (``told``, or an error), one list a
#: wave, and how many the node's state has seen after each.
FATES: dict[str, tuple[list[list[Any]], list[int]]] = {
    "none": ([[1], [2], [3]], [1, 2, 3]),
    "request_loss": ([[], [], []], [0, 0, 0]),
    "wipe": ([[1], [1], [1]], [1, 1, 1]),
    "crash": ([["error"], ["error"], ["error"]], [1, 2, 3]),
    "state_loss": ([[1], [1], [1]], [0, 0, 0]),
    "reply_loss": ([[], [], []], [1, 2, 3]),
    "late_reply": ([[], [1], [2]], [1, 2, 3]),
    "duplicate": ([[1, 1], [2, 2], [3, 3]], [1, 2, 3]),
}


@pytest.mark.parametrize("fault", FATES)
def test_a_fault_does_what_it_says(fault: str) -> None:
    """And spares introductions."""
    chances: Any = {fault: 1.0} if fault in FAULTS else {}
    grid = LocalGrid(counting_app(), 1, **chances)
    for number, (expected, state) in enumerate(zip(*FATES[fault], strict=True), 1):
        replies = send(grid)
        assert list(map(told, replies)) == expected
        assert seen(grid) == [state]
        for reply in replies:
            late = fault == "late_reply"
            assert int(reply.metadata.reply_to_message_id) == number - late
            if reply.has_error():
                assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                assert "injected" in str(reply.error.reason)
        assert grid.fault_counts.get(fault, 0) == number * (fault in FAULTS)
    assert len(send(LocalGrid(counting_app(), 1, **chances), "query.hello")) == 1


def test_garbage_always_has_something_wrong() -> None:
    grid, kinds = LocalGrid(counting_app(), 1, garbage=1.0), set()
    for number in range(1, 41):
        (reply,) = send(grid, "evaluate" if number % 2 else "train")
        content: Any = reply.content
        sizes = [v.size for v in record_arrays(content["arrays"])] if content else []
        if not content:
            kinds.add("empty")
        elif content["status"]["server-round"] != 1:
            kinds.add("round")
        elif np.isnan(record_arrays(content["arrays"])[0]).all():
            kinds.add("nan")
            assert sizes[1] == 3
        else:
            kinds.add("cut")
            assert sizes == [4, 3]
        assert seen(grid) == [number]  # the node itself is well
    assert kinds == {"empty", "round", "nan", "cut"}


def test_faults_strike_about_as_often_as_asked_and_depend_on_the_seed() -> None:
    chances = dict(zip(FAULTS, np.linspace(0.1, 0.8, len(FAULTS)), strict=True))
    grids = [LocalGrid(counting_app(), 1, seed=s, **chances) for s in (0, 0, 1)]
    struck = [[len(send(grid)) for _ in range(400)] for grid in grids]
    assert struck[0] == struck[1] != struck[2]
    for fault, chance in chances.items():
        # five standard deviations
        spread = 5 * np.sqrt(400 * chance * (1 - chance))
        assert abs(grids[0].fault_counts[fault] - 400 * chance) < spread


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_nodes": 0}, "num_nodes = 0 must be at least 1"),
        ({"delay": 2.0}, "delay = 2.0 must be a callable"),
        ({"node_configs": [{}]}, "node_configs has 1 entries for 2 nodes"),
        ({"reply_los": 0.1}, "'reply_los' is no fault; allowed: request_loss"),
        ({"reply_loss": 1.5}, "reply_loss = 1.5 must be at least 0 and at most 1"),
        ({"wipe": float("nan")}, "wipe = nan"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=f"^{words}.*$"):
        LocalGrid(counting_app(), **{"num_nodes": 2, **options})


_rng = np.random.default_rng(2)
LOSSES = [LeastSquares(_rng.random((6, 4)) - 0.5, _rng.random(6)) for _ in range(5)]


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


def test_processes_change_nothing_under_loss(grids: Callable[..., LocalGrid]) -> None:
    faults: Any = dict.fromkeys(FAULTS, 0.1)
    one = run(alone := grids(**faults))
    two = run(grid := grids(workers=2, **faults))
    np.testing.assert_array_equal(two.models, one.models)
    for a, b in zip(one.strategy.history, two.strategy.history, strict=True):
        assert (a.sampled, a.rejected, a.used) == (b.sampled, b.rejected, b.used)
        assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
    assert grid.fault_counts == alone.fault_counts


def test_a_run_goes_on_with_another_number_of_workers(
    grids: Callable[..., LocalGrid], tmp_path: Path
) -> None:
    whole = run(grids())
    for first, second in ((1, 3), (3, 2)):
        path = tmp_path / f"{first}"
        until: Any = {"checkpoint": path, "checkpoint_every": 1}
        run(grids(workers=first), callbacks=[Stop(3)], **until)
        rest = run(grids(workers=second), resume=path)
        np.testing.assert_array_equal(rest.models[-1], whole.models[-1])


def pids(grid: LocalGrid) -> list[int]:
    return [process.pid for process in grid._nodes._processes]  # type: ignore


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


class Slow(FedAvgGDClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        time.sleep(0.3)
        return super().fit(parameters, config)


class Raising(FedAvgGDClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        if self.client_id == "3":
            raise ArithmeticError("not today")
        return super().fit(parameters, config)


class Dying(FedAvgGDClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        os._exit(7)


def test_a_client_that_raises_is_an_error(grids: Callable[..., LocalGrid]) -> None:
    played = play(FedAvgGD(), grids(Raising, workers=2), np.zeros(4), rounds=2)
    for record in played.strategy.history:
        assert record.rejected == [("3", "error 2: ArithmeticError: not today")]


def test_a_dead_process_ends_the_whole_run(grids: Callable[..., LocalGrid]) -> None:
    grid = grids(Dying, workers=2)
    with pytest.raises(RuntimeError, match="a worker ended with exit code 7"):
        play(FedAvgGD(), grid, np.zeros(4), rounds=2)
    assert all(gone(pid) for pid in pids(grid))


def test_an_interruption_leaves_a_checkpoint_and_no_processes(
    grids: Callable[..., LocalGrid], tmp_path: Path
) -> None:
    path, grid = tmp_path / "checkpoint", grids(Slow, workers=2)

    def alarm(number: int, frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def wind_up(record: RoundRecord) -> None:
        if record.round == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.signal(signal.SIGALRM, alarm)
    callbacks = [Call(wind_up)]
    strategy = FedAvgGD(checkpoint=path, checkpoint_every=100, callbacks=callbacks)
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


def test_a_process_that_does_not_end_is_killed(
    grids: Callable[..., LocalGrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = grids(workers=2)
    grid.client_states()
    with pytest.raises(RuntimeError, match="have started with another app"):
        grid.client_app = grid.client_app
    stopped = pids(grid)[0]
    os.kill(stopped, signal.SIGSTOP)  # it hears nothing more, and ends by SIGKILL alone
    monkeypatch.setattr("fedtrellis.wire.workers._PATIENCE", 0.1)
    grid.close()
    assert gone(stopped)


def test_processes_end_with_their_grid() -> None:
    grid = grid_of(FedAvgGDClient, LOSSES, workers=2)
    grid.client_states()
    workers = pids(grid)
    del grid
    gc.collect()
    assert all(gone(pid) for pid in workers)
