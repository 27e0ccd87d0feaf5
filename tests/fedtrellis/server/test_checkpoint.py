"""A run that was interrupted and goes on is the run that was not interrupted.

``test_contracts.py`` says so of each method, whose state is all there; here a run dies
at any moment, and files are spoilt.
"""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from fedtrellis import LocalGrid, LoopStrategy, RoundRecord, client_app
from fedtrellis.server.callbacks import Call
from tests.fedtrellis.server.steps import SIZE, StepClient, Steps
from tests.harness import refused

Config = dict[str, Any]

ROUNDS = 14


class PowerCutError(Exception):
    pass


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    (model,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"loss": float(model @ model)})


def grid_of(clients: int = 4) -> LocalGrid:
    return LocalGrid(client_app(StepClient), clients, seed=5)


def run(strategy: Steps, grid: LocalGrid | None = None) -> Result:
    model = ArrayRecord([np.zeros(SIZE)])
    return strategy.start(grid or grid_of(), model, ROUNDS, evaluate_fn=evaluate)


def steps(**options: Any) -> Steps:
    options = {"participation": 0.6, "seed": 2, "client_evaluate_every": 3, **options}
    return Steps(**options)


def interrupted(path: Path) -> None:
    """Dies after round 8; a checkpoint is that of the last round of three."""

    def fail(record: RoundRecord) -> None:
        if record.round == 8:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        run(steps(checkpoint=path, checkpoint_every=3, callbacks=[Call(fail)]))


def story(strategy: Steps, result: Result) -> Any:
    """All that two runs have in common."""
    return (
        [array.tolist() for array in result.arrays.to_numpy_ndarrays()],
        dict(result.train_metrics_clientapp),
        [(r.round, r.sampled, r.used, r.rejected, r.metrics) for r in strategy.history],
    )


@pytest.fixture(scope="module")
def whole() -> Any:
    """A run in which nothing happens."""
    strategy = steps()
    return story(strategy, run(strategy))


def check_goes_on(whole: Any, path: Path, **options: Any) -> Steps:
    """From a checkpoint to the same end, to the last bit."""
    again = steps(resume=path, **options)
    assert story(again, run(again)) == whole
    return again


def test_a_crash_between_history_and_checkpoint_is_survived(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, history = tmp_path / "c.npz", tmp_path / "c.npz.history.jsonl"
    calls = 0

    def crash(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        # the new history, rounds 2 and 4 are saved; the history already has 5 and 6
        if calls == 4:
            raise PowerCutError
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr("fedtrellis.files.os.replace", crash)
        with pytest.raises(PowerCutError):
            run(steps(checkpoint=path, checkpoint_every=2))

    def rounds() -> list[int]:
        return [json.loads(line)["round"] for line in history.read_text().splitlines()]

    assert rounds()[-1] == 6
    with history.open("a") as file:
        file.write('{"round": 7, "sampl')  # cut off
    check_goes_on(whole, path, checkpoint=path, checkpoint_every=2)
    assert rounds() == list(range(ROUNDS + 1))


def test_a_crash_while_a_file_is_written_leaves_the_one_before(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.npz"
    interrupted(path)
    before = path.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"PK half of it")
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("fedtrellis.server.records.np.savez", half)
        with pytest.raises(PowerCutError):
            run(steps(checkpoint=path, checkpoint_every=3, resume=path))
    assert path.read_bytes() == before
    check_goes_on(whole, path)


def refuses(why: str, strategy: Steps, grid: LocalGrid | None = None) -> None:
    refused(re.escape(why), lambda: run(strategy, grid))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil, and its history."""
    interrupted(tmp_path / "saved.npz")
    return tmp_path / "saved.npz"


def rewrite(path: Path, change: Callable[[Config, Config], Any]) -> None:
    """Change what a checkpoint says of itself, and its arrays."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(arrays["meta"].tobytes())
    change(meta, arrays)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


def test_another_run_s_checkpoint_is_refused(saved: Path) -> None:
    here = steps(resume=saved)
    other = type("Other", (Steps,), {})
    refuses("strategy is Steps, this run's is Other", other(resume=saved, seed=2))
    refuses("seed is 2, this run's is 3", steps(resume=saved, seed=3))
    refuses("number of clients is 4, this run's is 5", here, grid_of(5))
    rewrite(saved, lambda meta, arrays: arrays.pop("model"))
    refuses("it has no entry 'model'", here)


def test_a_stateful_method_says_what_a_checkpoint_holds(saved: Path) -> None:
    """Else its server would start from nothing beside clients that do not."""

    class Forgetful(Steps):
        state = LoopStrategy.state
        load_state = LoopStrategy.load_state

    message = " does not apply to Forgetful, whose clients keep state"
    refuses(message, Forgetful(resume=saved))
    # where they keep none there is nothing to be out of step with
    Forgetful.stateful = False
    refuses("its strategy is Steps", Forgetful(resume=saved))


def test_other_files_are_no_checkpoints_and_missing_ones_are_named(saved: Path) -> None:
    good = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        at = archive.getinfo("model.npy").header_offset + 180
    other_bit = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    for data in (b"some text\n" * 100, good[:-9], other_bit):
        saved.write_bytes(data)
        refuses("is no checkpoint", steps(resume=saved))
    np.savez(saved, meta=np.frombuffer(b"[1, 2]", dtype=np.uint8))
    refuses("is no checkpoint", steps(resume=saved))
    path = saved.with_name("nothing.npz")
    missing = f"resume = {str(path)!r}: there is no such checkpoint"
    refuses(missing, steps(resume=path))
    saved.write_bytes(good)
    history = saved.with_name(saved.name + ".history.jsonl")
    lines = history.read_text().splitlines(keepends=True)
    for text in (lines[:4], [*lines[:4], lines[4][:10]], None):
        history.unlink() if text is None else history.write_text("".join(text))
        refuses("its history cannot be read", steps(resume=saved))
