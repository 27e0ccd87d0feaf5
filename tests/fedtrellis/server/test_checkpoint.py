"""A run that was interrupted and goes on is the run that was not interrupted."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis import (
    Callback,
    LocalGrid,
    LoopStrategy,
    RoundRecord,
    RoundStrategy,
    SettingsError,
    StatefulClient,
    client_app,
)
from fedtrellis.domains.atoms import DenseAtom
from fedtrellis.random import generator
from fedtrellis.server.conversation import Answer
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.broadcast import Step

Arrays = list[NDArray[Any]]
Config = dict[str, Any]
Point = NDArray[np.float64]

SIZE, ROUNDS = 40, 14


class DriftClient(StatefulClient):
    """x_i goes half the way to x̄ and takes a random step of its own."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        server_round = config["server-round"]
        rng = generator(config["seed"], "drift", self.client_id, server_round)
        x = 0.5 * (self.state["x"] + parameters[0]) + rng.standard_normal(SIZE)
        self.state["x"] = x
        return [x], 1, {}

    def evaluate(
        self, parameters: Arrays, config: Config
    ) -> tuple[float, int, dict[str, Any]]:
        return float(np.abs(parameters[0]).sum()), int(self.client_id) + 1, {}


class Drift(RoundStrategy):
    def setup(self, point: Point, layout: Layout) -> None:
        self.x = {name: point.copy() for name in self.clients}
        self.count = 0

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {"seed": self.seed}

    def check(self, answer: Answer) -> Point:
        if [array.shape for array in answer.arrays] != [(SIZE,)]:
            raise ValueError("wrong arrays")
        return answer.arrays[0]

    def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
        for name, x in answers.items():
            self.x[name] = x
        self.count += len(answers)
        mean = np.mean(list(self.x.values()), axis=0)
        if server_round % 2:
            self.broadcast.replace(mean)
        else:
            self.broadcast.advance(Step(0.0, 1.0, (DenseAtom(mean),)))
        return {"count": float(self.count)}

    def client_state(self, client: str) -> dict[str, Point]:
        return {"x": self.x[client]}

    def state(self) -> dict[str, NDArray[Any]]:
        return {**self.x, "count": np.array(self.count)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.x = {name: np.array(state[name]) for name in self.clients}
        self.count = int(state["count"])


class OtherDrift(Drift):
    pass


class PowerCutError(Exception):
    pass


class Interrupt(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
        if record.round == self.at:
            raise PowerCutError


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    (model,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"loss": float(model @ model)})


def grid_of(clients: int = 4, **faults: Any) -> LocalGrid:
    return LocalGrid(client_app(DriftClient), clients, seed=5, **faults)


START = np.random.default_rng(0).standard_normal(SIZE)


def run(
    strategy: RoundStrategy, grid: LocalGrid | None = None, rounds: int = ROUNDS
) -> Result:
    return strategy.start(
        grid or grid_of(), ArrayRecord([START]), rounds, evaluate_fn=evaluate
    )


def drift(**options: Any) -> Drift:
    options = {"participation": 0.6, "seed": 2, "client_evaluate_every": 3, **options}
    return Drift(**options)


def interrupted(path: Path, at: int, every: int, **faults: Any) -> None:
    strategy = drift(checkpoint=path, checkpoint_every=every, callbacks=[Interrupt(at)])
    with pytest.raises(PowerCutError):
        run(strategy, grid_of(**faults))


def assert_close(left: Any, right: Any) -> None:
    if isinstance(left, Mapping):
        assert list(left) == list(right)
        for key in left:
            assert_close(left[key], right[key])
    else:
        assert left == pytest.approx(right, rel=1e-12, abs=0.0)


def assert_same_run(
    strategies: tuple[RoundStrategy, RoundStrategy], results: tuple[Result, Result]
) -> None:
    left, right = results
    for a, b in zip(
        left.arrays.to_numpy_ndarrays(), right.arrays.to_numpy_ndarrays(), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    for name in (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    ):
        assert_close(getattr(left, name), getattr(right, name))
    histories = [s.history for s in strategies]
    assert [r.round for r in histories[0]] == [r.round for r in histories[1]]
    for one, other in zip(*histories, strict=True):
        assert (one.sampled, one.used, one.rejected) == (
            other.sampled,
            other.used,
            other.rejected,
        )
        assert_close(one.train, other.train)
        assert_close(one.client_evaluation, other.client_evaluation)
        assert_close(one.evaluation, other.evaluation)


FAULTS: Config = {"request_loss": 0.1, "wipe": 0.1, "crash": 0.1, "state_loss": 0.1,
          "reply_loss": 0.1, "garbage": 0.1}  # fmt: skip


@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["well", "faulty"])
@pytest.mark.parametrize(("at", "every"), [(8, 3), (2, 1), (13, 6), (7, 5)])
def test_an_interrupted_run_goes_on_to_the_same_end(
    tmp_path: Path, faults: Config, at: int, every: int
) -> None:
    whole = drift()
    result = run(whole, grid_of(**faults))
    path = tmp_path / "new-directory" / "checkpoint.npz"
    interrupted(path, at, every, **faults)
    again = drift(resume=path)
    resumed = run(again, grid_of(**faults))
    assert_same_run((whole, again), (result, resumed))
    last = (at - 1) // every * every
    for one, other in zip(whole.history[: last + 1], again.history, strict=False):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


def test_a_run_interrupted_again_and_again_goes_on_to_the_same_end(
    tmp_path: Path,
) -> None:
    whole = drift()
    result = run(whole)
    path = tmp_path / "c.npz"
    interrupted(path, 4, 2)
    for at in (7, 8, 12):
        strategy = drift(
            checkpoint=path,
            checkpoint_every=2,
            resume=path,
            callbacks=[Interrupt(at)],
        )
        with pytest.raises(PowerCutError):
            run(strategy)
    again = drift(checkpoint=path, resume=path)
    assert_same_run((whole, again), (result, run(again)))
    # the last round is always saved: this one has nothing left to do
    done = drift(resume=path)
    assert_same_run((whole, done), (result, run(done)))


def test_callbacks_are_told_where_a_resumed_run_begins(tmp_path: Path) -> None:
    heard: list[tuple[int, int, int]] = []

    class Listen(Callback):
        def on_start(
            self, strategy: LoopStrategy, first_round: int, num_rounds: int
        ) -> None:
            heard.append((first_round, num_rounds, len(strategy.history)))

    path = tmp_path / "c.npz"
    interrupted(path, 8, 3)
    run(drift(resume=path, callbacks=[Listen()]))
    assert heard == [(7, ROUNDS, 7)]  # rounds 0 to 6


def test_clients_elsewhere_are_given_back_what_the_server_can_replay(
    tmp_path: Path,
) -> None:
    class Elsewhere(LocalGrid):
        """Keeps its clients' states to itself, as nodes on other machines do."""

        client_states = None  # type: ignore[assignment]
        load_client_states = None  # type: ignore[assignment]

    whole = drift()
    result = run(whole)
    path = tmp_path / "c.npz"
    grid = Elsewhere(client_app(DriftClient), 4, seed=5)
    strategy = drift(checkpoint=path, checkpoint_every=3, callbacks=[Interrupt(8)])
    with pytest.raises(PowerCutError):
        run(strategy, grid)
    again = drift(resume=path)
    # the same nodes go on: two of their rounds are ahead of the checkpoint
    assert_same_run((whole, again), (result, run(again, grid)))
    # and so do nodes that lost everything
    fresh = drift(resume=path)
    nodes = Elsewhere(client_app(DriftClient), 4, seed=5)
    assert_same_run((whole, fresh), (result, run(fresh, nodes)))


# --------------------------------------------------------------- crashes while saving


def test_a_crash_between_history_and_checkpoint_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drift()
    result = run(whole)
    path = tmp_path / "c.npz"
    calls = 0

    def crash(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        # the new history, rounds 2 and 4 are saved; the history already has 5 and 6
        if calls == 4:
            raise PowerCutError
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr("fedtrellis.server.records.os.replace", crash)
        with pytest.raises(PowerCutError):
            run(drift(checkpoint=path, checkpoint_every=2))
    lines = (tmp_path / "c.npz.history.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["round"] == 6
    again = drift(checkpoint=path, checkpoint_every=2, resume=path)
    assert_same_run((whole, again), (result, run(again)))
    lines = (tmp_path / "c.npz.history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(ROUNDS + 1))


def test_a_crash_while_the_history_is_written_is_survived(tmp_path: Path) -> None:
    whole = drift()
    result = run(whole)
    path = tmp_path / "c.npz"
    interrupted(path, 8, 3)
    with (tmp_path / "c.npz.history.jsonl").open("a") as file:
        file.write('{"round": 7, "sampl')  # cut off
    again = drift(checkpoint=path, checkpoint_every=3, resume=path)
    assert_same_run((whole, again), (result, run(again)))


def test_a_crash_while_the_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.npz"
    interrupted(path, 8, 3)
    before = path.read_bytes()

    def crash(file: Any, **arrays: Any) -> None:
        file.write(b"PK half of it")
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("fedtrellis.server.records.np.savez", crash)
        with pytest.raises(PowerCutError):
            run(drift(checkpoint=path, checkpoint_every=3, resume=path))
    assert path.read_bytes() == before
    whole, again = drift(), drift(resume=path)
    assert_same_run((whole, again), (run(whole), run(again)))


@pytest.mark.parametrize("record", [1, 4, 8])
def test_a_resumed_run_that_crashes_at_its_first_save_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: int
) -> None:
    path = tmp_path / "c.npz"
    interrupted(path, 8, 3)
    real, calls = json.dumps, 0

    def crash(value: Any) -> str:
        nonlocal calls
        calls += "rejected" in value
        if calls == record:
            raise PowerCutError
        return real(value)

    with monkeypatch.context() as patch:
        patch.setattr("fedtrellis.server.records.json.dumps", crash)
        with pytest.raises(PowerCutError):
            run(drift(checkpoint=path, checkpoint_every=3, resume=path))
    whole, again = drift(), drift(resume=path)
    assert_same_run((whole, again), (run(whole), run(again)))


# ----------------------------------------------------------------- what does not fit


def error_of(strategy: RoundStrategy, grid: LocalGrid | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        run(strategy, grid)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.npz"
    interrupted(path, 8, 3)
    return path


def test_another_strategy_seed_shape_or_set_of_clients_is_refused(saved: Path) -> None:
    assert "strategy is Drift, this run's is OtherDrift" in error_of(
        OtherDrift(resume=saved, seed=2)
    )
    assert "seed is 2, this run's is 3" in error_of(drift(resume=saved, seed=3))
    assert "number of clients is 4, this run's is 5; start as many nodes" in error_of(
        drift(resume=saved), grid_of(5)
    )
    with pytest.raises(SettingsError, match=r"model shapes is \(\(40,\),\)"):
        drift(resume=saved).start(grid_of(), ArrayRecord([np.zeros(41)]), ROUNDS)


def rewrite(path: Path, change: Callable[[Config, Config], None]) -> None:
    """Change what a checkpoint says of itself, and its arrays."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays["meta"].tobytes())
    change(meta, arrays)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    path.write_bytes(npz(**arrays))


@pytest.mark.parametrize("name", ["model", "state/count", "state/2"])
def test_a_missing_entry_is_refused(saved: Path, name: str) -> None:
    run(drift(resume=saved))
    rewrite(saved, lambda meta, arrays: arrays.pop(name))
    refused = error_of(drift(resume=saved))
    assert str(saved) in refused
    assert name.removeprefix("state/") in refused


@pytest.mark.parametrize(
    "name",
    [
        *("format", "round", "session", "epoch", "seed", "version", "layout", "dtype"),
        *("planned-rounds", "clients"),
    ],
)
def test_what_a_checkpoint_has_to_say_of_itself(saved: Path, name: str) -> None:
    rewrite(saved, lambda meta, arrays: meta.pop(name))
    assert f"{name!r}" in error_of(drift(resume=saved))


def test_a_checkpoint_of_another_version_of_the_strategy_is_refused(
    saved: Path,
) -> None:
    class Bound(Drift):
        _state_settings = ("half",)
        half = 0.5

    Bound.__name__ = "Drift"
    run(Bound(resume=saved, participation=0.6, seed=2))  # it did not say yet
    path = saved.with_name("bound.npz")
    run(Bound(checkpoint=path))
    Bound.half = 0.25
    assert "its half is 0.5, this run's is 0.25" in error_of(Bound(resume=path))
    rewrite(saved, lambda meta, arrays: arrays.update({"state/more": np.zeros(2)}))
    assert "it has an entry 'state/more' too many" in error_of(drift(resume=saved))


def test_a_stateful_method_says_what_a_checkpoint_holds(saved: Path) -> None:
    """Else its server would start from nothing beside clients that do not."""

    class Forgetful(Drift):
        state = LoopStrategy.state
        load_state = LoopStrategy.load_state

    message = r"resume = .* does not apply to Forgetful, whose clients keep state"
    with pytest.raises(SettingsError, match=message):
        run(Forgetful(resume=saved))
    # where they keep none there is nothing to be out of step with
    Forgetful.stateful = False
    with pytest.raises(SettingsError, match="its strategy is Drift"):
        run(Forgetful(resume=saved))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing.npz"
    message = error_of(drift(resume=path))
    assert message == f"resume = {str(path)!r}: there is no such checkpoint"
    assert "there is no such checkpoint" in error_of(drift(resume=tmp_path))


@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_file_is_no_checkpoint(saved: Path, part: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(part * len(data))])
    assert "is no checkpoint" in error_of(drift(resume=saved))


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"some text\n" * 100,
        npy(np.arange(3.0)),
        npz(model=np.zeros(3)),
        npz(meta=np.frombuffer(b"{not json", dtype=np.uint8)),
        npz(meta=np.zeros(3), model=np.zeros(3)),
        npz(meta=np.frombuffer(b"{}", dtype=np.uint8)),
        npz(meta=np.frombuffer(b"[1, 2]", dtype=np.uint8)),
    ],
    ids=["text", "npy", "model", "json", "binary", "empty-meta", "list-meta"],
)
def test_other_files_are_no_checkpoints(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(data)
    assert "is no checkpoint" in error_of(drift(resume=path))


def test_a_flipped_bit_is_noticed(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        info = archive.getinfo("model.npy")
    data = bytearray(saved.read_bytes())
    data[info.header_offset + 300] ^= 1
    saved.write_bytes(bytes(data))
    assert "is no checkpoint" in error_of(drift(resume=saved))


def test_a_history_that_is_missing_or_too_short_is_named(saved: Path) -> None:
    history = saved.with_name(saved.name + ".history.jsonl")
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join(lines[:4]))
    assert "its history cannot be read" in error_of(drift(resume=saved))
    history.write_text("".join(lines[:4]) + lines[4][:10])
    assert "its history cannot be read" in error_of(drift(resume=saved))
    history.unlink()
    assert "its history cannot be read" in error_of(drift(resume=saved))
