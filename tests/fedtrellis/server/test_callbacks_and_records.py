"""What a run leaves behind: its records, its progress, its picture."""

import io
import json
import logging
import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.client import NumPyClient
from flwr.common.logger import console_handler, log
from flwr.serverapp.strategy import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from fedtrellis import (
    EarlyStop,
    JsonLines,
    LocalGrid,
    Progress,
    RoundRecord,
    RoundStrategy,
    client_app,
)
from fedtrellis.files import replacing
from fedtrellis.server.callbacks import (
    Call,
    format_bytes,
    in_a_line,
    json_log,
    progress_of,
    summarise,
)
from fedtrellis.server.conversation import Answer
from fedtrellis.server.records import (
    RunRecord,
    append_lines,
    default_results_dir,
    plot_convergence,
    to_toml,
)
from fedtrellis.wire.arrays import Layout, encode

Config = dict[str, Any]


class Answering(NumPyClient):
    def fit(self, parameters: list[NDArray[Any]], config: Config) -> Any:
        return [], 1, {}


class Halving(RoundStrategy):
    stateful = False

    def setup(self, point: NDArray[np.float64], layout: Layout) -> None: ...

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        return {}

    def check(self, answer: Answer) -> Answer:
        return answer

    def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
        self.broadcast.replace(0.5 * self.broadcast.model)
        return {"gap": float(np.abs(self.broadcast.model).max())}


#: Σ a² = 14 + 1
MODEL: dict[str, NDArray[Any]] = {
    "conv.weight": np.arange(4, dtype=np.float32).reshape(2, 2),
    "scale": np.array(0.0),
    "half": np.ones(1, dtype=np.float16),
}


def check_model(model: ArrayRecord, factor: float) -> None:
    """A state_dict that goes in can be loaded from what comes out."""
    assert list(model) == list(MODEL)
    for name, array in MODEL.items():
        back = model[name].numpy()
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, factor * array)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    check_model(arrays, 0.5**server_round)
    loss = 3.0 + sum(float((a**2).sum()) for a in arrays.to_numpy_ndarrays())
    return MetricRecord({"loss": loss, "accuracy": 0.5})


def run(rounds: int = 4, **options: Any) -> tuple[Halving, Result]:
    layers = ArrayRecord({name: encode(array) for name, array in MODEL.items()})
    strategy = Halving(**options)
    grid = LocalGrid(client_app(lambda context: Answering()), 2)
    result = strategy.start(grid, layers, rounds, evaluate_fn=evaluate)
    assert np.array_equal(layers["scale"].numpy(), MODEL["scale"])  # it stays
    return strategy, result


# ------------------------------------------------------------------------- a record


def summary_of(path: Path) -> Any:
    return json.loads((path / "summary.json").read_text(encoding="utf-8"))


def history_of(path: Path) -> list[Any]:
    text = (path / "history.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


CONFIG: Config = {"method": "halving", "rounds": 4, "text": 'ẍ̄ "∑"\x7f', "step": 0.5}


def test_a_run_leaves_all_its_files(tmp_path: Path) -> None:
    """They are whole after every round."""
    path = tmp_path / "run"
    record = RunRecord(path, CONFIG, reference=3.0, title="Halving")
    seen: list[int] = []

    def look(round_record: RoundRecord) -> None:
        seen.append(history_of(path)[-1]["round"])
        assert summary_of(path)["status"] == "running"

    options: dict[str, Any] = {"callbacks": [record, Call(look)], "checkpoint_every": 2}
    strategy, result = run(checkpoint=record.checkpoint, **options)
    assert seen == [0, 1, 2, 3, 4]
    assert {file.name for file in path.iterdir()} == {
        *("config.toml", "resume.toml", "history.jsonl", "summary.json", "model.npz"),
        *("checkpoint.npz", "checkpoint.npz.history.jsonl", "convergence.png"),
    }
    for name, more in (("config", {}), ("resume", {"resume": str(record.directory)})):
        config = tomllib.loads((path / f"{name}.toml").read_text(encoding="utf-8"))
        assert same(config, {**CONFIG, **more})
    history = [RoundRecord.from_dict(line) for line in history_of(path)]
    assert history == strategy.history

    summary = summary_of(path)
    assert (summary["status"], summary["rounds"]) == ("round limit", 4)
    assert summary["metrics"]["loss"] == pytest.approx(3.0 + 15 / 4**4)
    assert summary["reference_optimum"] == 3.0
    assert summary["residual"] == pytest.approx(15 / 4**4)
    assert summary["bytes_up"] == sum(r.bytes_up for r in strategy.history) > 0
    assert summary["wall_seconds"] >= 0
    assert "error" not in summary

    with np.load(path / "model.npz") as model:
        check_model(result.arrays, 0.5**4)
        check_model(ArrayRecord({name: encode(model[name]) for name in MODEL}), 0.5**4)


def test_a_run_that_never_started_can_be_marked_as_failed(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, CONFIG)
    assert summary_of(tmp_path)["status"] == "running"
    record.on_failure(None, TimeoutError("no\nnodes"))
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert summary["error"] == "TimeoutError: no\nnodes"


def test_where_records_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the user's home; those of one second in directories of their own."""
    assert default_results_dir().is_relative_to(Path.home())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunRecord("~/runs/x", {}).directory == tmp_path.resolve() / "runs" / "x"
    records = [RunRecord.create(tmp_path / "new", "fedfw", CONFIG) for _ in range(4)]
    directories = {record.directory for record in records}
    assert len(directories) == 4
    assert all(directory.parent == tmp_path / "new" for directory in directories)
    assert all("-fedfw" in directory.name for directory in directories)


# ---------------------------------------------------------------------------- files


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before\n")

    def grow() -> None:
        with replacing(path) as file:
            file.write(bytes(10))
            file.write(bytes(10**6))

    with room_for(20):
        append_lines(path, ["a", "ü"], sync=True)
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            append_lines(path, ["123", "4567890"])
        assert path.read_text() == "before\na\nü\n"
        append_lines(path, ["1234567"])  # to the last byte
        assert path.read_text() == "before\na\nü\n1234567\n"
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            grow()
        assert path.read_text() == "before\na\nü\n1234567\n"
        assert [*tmp_path.iterdir()] == [path]  # and frees its room
        with replacing(path) as file:
            file.write(b"after")
    assert path.read_bytes() == b"after"


def same(left: Config, right: Config) -> bool:
    def typed(config: Config) -> Any:
        return {k: (type(v), v) for k, v in config.items()}

    return bool(typed(left) == typed(right))


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.text(),
        ),
    )
)
def test_any_config_comes_back_from_its_toml(config: Config) -> None:
    assert same(tomllib.loads(to_toml(config)), config)


# ------------------------------------------------------------------- what is summed up


HISTORY = [
    RoundRecord(0, evaluation={"loss": 9.0}),
    RoundRecord(1, 2, 2, [], 100, 1000, 0.5, {"gap": 4.0}, {}, {"loss": 5.0}),
    RoundRecord(2, 2, 1, [("1", "late")], 50, 500, 0.25, {"gap": 2.0}),
]


def test_summaries_have_totals_and_last_metrics() -> None:
    assert summarise(HISTORY) == {
        "rounds": 2,
        "metrics": {"loss": 5.0, "gap": 2.0},
        "bytes_up": 150,
        "bytes_down": 1500,
        "seconds": 0.75,
        "sampled": 4,
        "used": 3,
        "rejected": 1,
        "rejected_by_reason": {"late": 1},
    }
    assert summarise([])["rounds"] == 0
    assert in_a_line(HISTORY) == (
        "rounds 2  loss 5  gap 2  ↑ 150 B ↓ 1.5 kB  0.75 s  3 of 4 used  "
        "1 dropped, most often: late"
    )
    assert "dropped" not in in_a_line(HISTORY[:2])
    # 1/t: of the fall of 19/20 the rounds 19 and 20 bring 1/18 − 1/20
    falling = [RoundRecord(t, evaluation={"loss": 1 / max(1, t)}) for t in range(21)]
    assert progress_of(falling)["progress"] == pytest.approx(0.1 / 18 / 0.95)
    assert "last tenth of the rounds 0.58 % of the loss's fall" in in_a_line(falling)
    rising = [RoundRecord(t, evaluation={"loss": t}) for t in range(21)]
    assert progress_of(falling[:1]) == progress_of(rising) == {}


def test_of_metrics_of_one_name_the_servers_counts() -> None:
    both: dict[str, Any] = {
        "client_evaluation": {"loss": 2.0, "b": 2.0},
        "evaluation": {"loss": 3.0},
    }
    record = RoundRecord(1, train={"loss": 1.0, "a": 1.0}, **both)
    assert record.metrics == {"loss": 3.0, "a": 1.0, "b": 2.0}
    record.evaluation = {}
    assert record.metrics["loss"] == 2.0


def test_bytes_as_people_read_them() -> None:
    counts = (0, 999, 1000, 20_100_000, 3.2e9, 7.5e12)
    texts = ("0 B", "999 B", "1.0 kB", "20.1 MB", "3.2 GB", "7500.0 GB")
    assert tuple(map(format_bytes, counts)) == texts


@pytest.mark.parametrize(
    ("record", "stops"),
    [
        (RoundRecord(3, evaluation={"gap": 0.5}), True),
        (RoundRecord(3, train={"gap": 0.4}), True),
        (RoundRecord(3, evaluation={"gap": 0.51}), False),
        (RoundRecord(3, evaluation={"gap": float("nan")}), False),
        (RoundRecord(3, evaluation={"loss": 0.0}), False),
        (RoundRecord(0, evaluation={"gap": 0.0}), False),
    ],
)
def test_early_stop_compares_its_metric(record: RoundRecord, stops: bool) -> None:
    assert EarlyStop("gap", 0.5).on_round(None, record) is stops
    for tolerance in (np.nan, np.inf):
        with pytest.raises(ValueError, match="must be finite"):
            EarlyStop("gap", tolerance)


# -------------------------------------------------------------------------- progress


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=terminal, width=200), screen


def test_without_a_terminal_every_round_is_a_line(logged: list[str]) -> None:
    """With the metrics of its own round."""
    plain, screen = console(False)
    options: dict[str, Any] = {"callbacks": [Progress(console=plain)]}
    strategy, _ = run(rounds=40, evaluate_every=2, **options)
    lines = [line for line in logged if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == [f"{t}/40" for t in range(41)]
    for t, line in enumerate(lines):
        assert "↑" in line
        for name in (" loss ", " accuracy "):
            assert (name in line) == (t % 2 == 0)
        assert (" gap " in line) == (t > 0)  # the method's own, which every round has
    assert "  2 of 2 used  " in lines[1]
    assert f"  {strategy.history[1].seconds:.2f} s  " in lines[1]
    assert "0 s left" in lines[-1]
    assert screen.getvalue() == ""
    up = format_bytes(sum(record.bytes_up for record in strategy.history))
    assert logged[-1].startswith("total: rounds 40  loss 3  ")
    assert f"  ↑ {up} ↓ " in logged[-1]
    assert "  80 of 80 used  last tenth of the rounds 0 % of" in logged[-1]


def test_on_a_terminal_a_bar_is_drawn_and_nothing_logged(logged: list[str]) -> None:
    """It says of which round an older metric is; the cursor is back in the end."""
    terminal, screen = console(True)
    stop = Call(lambda record: record.round == 3)
    strategy, _ = run(callbacks=[Progress(console=terminal), stop], evaluate_every=2)
    text = screen.getvalue()
    loss = strategy.history[2].evaluation["loss"]
    for part in ("3/4", "accuracy 0.5", f"loss {loss:.4g} (round 2)"):
        assert part in text
    assert not [line for line in logged if line.startswith("round ")]
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1

    def fail(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    terminal, screen = console(True)
    with pytest.raises(KeyboardInterrupt):
        run(callbacks=[Progress(console=terminal), Call(fail)])
    assert screen.getvalue().count("\x1b[?25h") == 1


def test_lines_of_quick_rounds_time_left_and_what_was_dropped(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, strategy = [0.0], SimpleNamespace(history=list[RoundRecord]())
    monkeypatch.setattr("fedtrellis.server.callbacks.time.time", lambda: now[0])
    progress = Progress(lines=20, bar=False)
    progress.on_start(strategy, 1, 21)
    for number in range(22):
        progress.on_round(strategy, RoundRecord(number))
        now[0] += 0.25 if number < 16 else 3.0
    numbers = [int(line.split()[1].split("/")[0]) for line in logged]
    # four rounds a second, a line for each second; later each takes longer than that
    assert numbers == [0, 1, 5, 9, 13, 17, 18, 19, 20, 21]
    # a resumed run's own rounds: 5 in 20 s, 15 to go
    progress.on_start(strategy, 11, 30)
    now[0] += 20.0
    progress.on_round(strategy, RoundRecord(15))
    assert "60 s left" in logged[-1]
    progress.on_start(strategy, 1, 2)
    for record in HISTORY:
        progress.on_round(strategy, record)
    assert "1 of 2 used" in logged[-1]
    assert logged[-1].endswith("1 dropped")
    assert "↑ 150 B ↓ 1.5 kB" in logged[-1]
    assert "dropped" not in logged[-2]
    strategy.history = HISTORY
    progress.on_failure(strategy, RuntimeError())
    assert logged[-1] == f"total: {in_a_line(HISTORY)}"


# ------------------------------------------------------------------------------- JSON


def strictly(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_json_object_for_the_start_every_round_and_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = JsonLines({"settings": CONFIG}, {"record": "/a/b"})
    strategy, _ = run(rounds=3, callbacks=[lines])
    start, *rounds, end = map(strictly, capsys.readouterr().out.splitlines())
    assert (start["event"], start["strategy"]) == ("start", "Halving")
    assert (start["clients"], start["first_round"], start["rounds"]) == (2, 1, 3)
    assert start["settings"] == CONFIG
    for line, record in zip(rounds, strategy.history, strict=True):
        assert (line["event"], line["round"]) == ("round", record.round)
        assert line["metrics"] == record.metrics
        for name in ("seconds", "sampled", "used", "bytes_up", "round_trips"):
            assert line[name] == getattr(record, name)
    assert (end["event"], end["status"]) == ("end", "round limit")
    assert end["record"] == "/a/b"
    assert end["used"] == end["sampled"] == 6
    # with the reasons, and without NaN
    rejected = [("1", 'no\n"answer"'), ("ü", "late")]
    record = RoundRecord(3, rejected=rejected, train={"loss": np.nan, "gap": -np.inf})
    strategy.history[:] = [record]
    lines.on_round(strategy, record)
    lines.on_failure(strategy, ValueError("disk full"))
    line, end = map(strictly, capsys.readouterr().out.splitlines())
    pairs = [(one["client"], one["reason"]) for one in line["rejected"]]
    assert pairs == rejected
    assert line["metrics"] == {"loss": None, "gap": None}
    assert (end["status"], end["error"]) == ("failed", "ValueError: disk full")
    assert end["rejected_by_reason"] == {'no\n"answer"': 1, "late": 1}


def test_flowers_log_is_json_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(console_handler, "stream", stream)
    with json_log():
        log(logging.WARNING, "answer of client %s dropped: %s", 3, "not\nfinite")
        try:
            raise ValueError("why")
        except ValueError:
            log(logging.ERROR, "failed", exc_info=True)
    log(logging.WARNING, "as before")
    *lines, last = stream.getvalue().splitlines()
    first, second = map(json.loads, lines)
    assert (first["event"], first["level"]) == ("log", "WARNING")
    assert first["message"] == "answer of client 3 dropped: not\nfinite"
    assert second["traceback"].endswith("ValueError: why")
    assert last.endswith("as before")
    assert not last.startswith("{")


# --------------------------------------------------------------------------- pictures


# values near the end of what a float holds have no axis
DIVERGED = [
    RoundRecord(round=t, evaluation={"loss": v, "squared-gradient-norm": v})
    for t, v in enumerate([1.0, 1e80, 1e250, 1e308, np.inf, np.nan])
]


@pytest.mark.parametrize(
    ("runs", "reference"),
    [
        ({"one": HISTORY, "two": HISTORY[:2]}, 100.0),
        ({"one": DIVERGED}, 3.0),
        ({"none": []}, None),
        ({"nan": [RoundRecord(1, evaluation={"loss": np.nan, "gap": -1.0})]}, 3.0),
        ({"rmse": [RoundRecord(1, train={"rmse": 1.0})]}, None),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_picture_is_a_png(
    tmp_path: Path, runs: dict[str, list[RoundRecord]], reference: float | None
) -> None:
    path = tmp_path / "a.png"
    plot_convergence(runs, path, reference=reference)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 5000


def test_the_picture_has_the_panels_that_there_are_numbers_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[list[tuple[str, str]]] = []

    def keep(self: Figure, path: Any, **options: Any) -> None:
        drawn.append([(a.get_xlabel(), a.get_ylabel()) for a in self.axes])
        loss = self.axes[0].lines[0]
        assert list(cast(Any, loss.get_xdata())) == [0, 1]
        assert list(cast(Any, loss.get_ydata())) == [6.0, 2.0]  # 9 − 3 and 5 − 3
        megabytes = self.axes[-1].lines[0]
        assert list(cast(Any, megabytes.get_xdata())) == [0.0, 1100 / 1e6]

    monkeypatch.setattr(Figure, "savefig", keep)
    plot_convergence({"one": HISTORY}, tmp_path / "a.png", reference=3.0)
    by_round = ("round", "F(x̄) − F*")
    by_bytes = ("MB up and down, all nodes", "F(x̄) − F*")
    assert drawn == [[by_round, ("round", "Frank-Wolfe gap"), by_bytes]]
