"""What a run leaves behind: its records, its progress, its picture."""

import io
import json
import logging
import tomllib
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
    default_results_dir,
    plot_convergence,
    to_toml,
)
from fedtrellis.wire.arrays import Layout, encode

Config = dict[str, Any]
# for callbacks that look at no more than this
STRATEGY = cast(RoundStrategy, SimpleNamespace(history=[]))


class Answering(NumPyClient):
    def fit(
        self, parameters: list[NDArray[Any]], config: Config
    ) -> tuple[list[NDArray[Any]], int, Config]:
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


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    loss = 3.0 + sum(float((a**2).sum()) for a in arrays.to_numpy_ndarrays())
    return MetricRecord({"loss": loss, "accuracy": 0.5})


def run(rounds: int = 4, **options: Any) -> tuple[Halving, Result]:
    arrays = ArrayRecord(
        {
            "layer.weight": encode(np.arange(4.0).reshape(2, 2)),
            "layer.bias": encode(np.ones(1, dtype=np.float32)),
        }
    )
    strategy = Halving(**options)
    grid = LocalGrid(client_app(lambda context: Answering()), 2)
    result = strategy.start(grid, arrays, rounds, evaluate_fn=evaluate)
    return strategy, result


# ------------------------------------------------------------------------- a record


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


CONFIG: Config = {"method": "halving", "rounds": 4, "lasso.rows": 200, "step": 0.5}


def test_a_run_leaves_all_its_files(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "run", CONFIG, reference=3.0, title="Halving")
    strategy, result = run(
        callbacks=[record], checkpoint=record.checkpoint, checkpoint_every=2
    )
    names = {path.name for path in record.directory.iterdir()}
    assert names == {
        "config.toml",
        "resume.toml",
        "history.jsonl",
        "summary.json",
        "model.npz",
        "checkpoint.npz",
        "checkpoint.npz.history.jsonl",
        "convergence.png",
    }
    assert record.directory.is_absolute()

    lines = (record.directory / "history.jsonl").read_text().splitlines()
    assert [RoundRecord(**json.loads(line)) for line in lines] == strategy.history
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3, 4]

    summary = read_json(record.directory / "summary.json")
    # 0² + 1² + 2² + 3² = 14 and 1² of the bias; each round halves all of it
    assert summary["status"] == "round limit"
    assert summary["rounds"] == 4
    assert summary["metrics"]["loss"] == pytest.approx(3.0 + 15 / 4**4)
    assert summary["reference_optimum"] == 3.0
    assert summary["residual"] == pytest.approx(15 / 4**4)
    assert summary["bytes_up"] == sum(r.bytes_up for r in strategy.history) > 0
    assert summary["wall_seconds"] >= 0
    assert "error" not in summary

    with np.load(record.directory / "model.npz") as model:
        assert set(model.files) == {"layer.weight", "layer.bias"}
        for name in model.files:
            assert np.array_equal(model[name], result.arrays[name].numpy())
            assert model[name].dtype == result.arrays[name].numpy().dtype


def test_the_files_are_whole_after_every_round(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, CONFIG)
    seen: list[int] = []

    def look(round_record: RoundRecord) -> None:
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        seen.append(json.loads(lines[-1])["round"])
        assert read_json(tmp_path / "summary.json")["status"] == "running"

    run(callbacks=[record, Call(look)])
    assert seen == [0, 1, 2, 3, 4]


def test_a_failed_run_says_so_and_why(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, CONFIG)

    def fail(round_record: RoundRecord) -> None:
        if round_record.round == 2:
            raise ValueError('disk "full"\nafter a while')

    with pytest.raises(ValueError, match="full"):
        run(callbacks=[record, Call(fail)])
    summary = read_json(tmp_path / "summary.json")
    assert summary["status"] == "failed"
    assert summary["error"] == 'ValueError: disk "full"\nafter a while'
    assert summary["rounds"] == 2
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]
    assert not (tmp_path / "model.npz").exists()


def test_a_run_that_never_started_can_be_marked_as_failed(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, CONFIG)
    assert read_json(tmp_path / "summary.json")["status"] == "running"
    record.on_failure(None, TimeoutError("no nodes"))
    summary = read_json(tmp_path / "summary.json")
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert summary["error"] == "TimeoutError: no nodes"


def test_a_resumed_runs_history_begins_with_the_rounds_before(tmp_path: Path) -> None:
    first = RunRecord(tmp_path / "a", CONFIG)
    stop = EarlyStop("gap", 0.4)  # 3 · 2^(−3) = 0.375
    run(callbacks=[first, stop], checkpoint=first.checkpoint)
    second = RunRecord(tmp_path / "b", CONFIG)
    run(rounds=6, callbacks=[second], resume=first.checkpoint)
    lines = (tmp_path / "b" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(7))
    before = (tmp_path / "a" / "history.jsonl").read_text().splitlines()
    assert lines[:4] == before


def test_records_made_in_one_second_have_directories_of_their_own(
    tmp_path: Path,
) -> None:
    records = [RunRecord.create(tmp_path / "new", "fedfw", CONFIG) for _ in range(4)]
    directories = {record.directory for record in records}
    assert len(directories) == 4
    assert all(directory.parent == tmp_path / "new" for directory in directories)
    assert all("-fedfw" in directory.name for directory in directories)


def test_by_default_records_are_under_the_users_home() -> None:
    assert default_results_dir().is_absolute()
    assert default_results_dir().is_relative_to(Path.home())


def test_the_home_directory_may_be_written_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunRecord("~/runs/x", {}).directory == tmp_path.resolve() / "runs" / "x"


# --------------------------------------------------------------------------- TOML


def flat(table: Config, prefix: str = "") -> Config:
    result: Config = {}
    for key, value in table.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def same(left: Config, right: Config) -> bool:
    return {k: (type(v), v) for k, v in left.items()} == {
        k: (type(v), v) for k, v in right.items()
    }


@pytest.mark.parametrize(
    "config",
    [
        {"a": 'with "quotes"', "b": r"C:\new\table", "c": "’ẍ̄ ∑ 🙂", "d": ""},
        {"a": "line\nbreak\ttab\rreturn", "b": "\x00\x1f\x7f\x80\u2028"},
        {"a": True, "b": False, "c": 1, "d": -(2**40), "e": 0},
        {"a": 1.0, "b": 1e-05, "c": 1e22, "d": -0.1, "e": 1 / 3, "f": 5e-324},
        {"lasso.rows": 3, "lasso.alpha": 0.5, "rounds": 2},
        {},
    ],
)
def test_a_config_comes_back_from_its_toml(config: Config, tmp_path: Path) -> None:
    assert same(flat(tomllib.loads(to_toml(config))), config)
    record = RunRecord(tmp_path, config)
    text = (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert same(flat(tomllib.loads(text)), config)
    again = flat(tomllib.loads((tmp_path / "resume.toml").read_text(encoding="utf-8")))
    assert same(again, {**config, "resume": str(record.directory)})


@settings(deadline=None)
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
    record = RoundRecord(
        1, train={"loss": 1.0, "a": 1.0}, client_evaluation={"loss": 2.0, "b": 2.0}
    )
    assert record.metrics == {"loss": 2.0, "a": 1.0, "b": 2.0}
    record.evaluation = {"loss": 3.0}
    assert record.metrics["loss"] == 3.0


def test_records_survive_json() -> None:
    for record in HISTORY:
        back = RoundRecord(**json.loads(json.dumps(record.to_dict())))
        back.rejected = [(who, why) for who, why in back.rejected]
        assert back == record


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1500, "1.5 kB"),
        (20_100_000, "20.1 MB"),
        (3.2e9, "3.2 GB"),
        (7.5e12, "7500.0 GB"),
    ],
)
def test_bytes_as_people_read_them(count: float, text: str) -> None:
    assert format_bytes(count) == text


# -------------------------------------------------------------------------- stopping


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
    assert EarlyStop("gap", 0.5).on_round(STRATEGY, record) is stops


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf")])
def test_early_stop_needs_a_finite_tolerance(tolerance: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        EarlyStop("gap", tolerance)


def test_a_function_can_stop_a_run() -> None:
    strategy, _ = run(
        rounds=50, callbacks=[Call(lambda record: record.round == 3), Call(print)]
    )
    assert strategy.history[-1].round == 3


# -------------------------------------------------------------------------- progress


def test_without_a_terminal_every_round_is_a_line(logged: list[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=False)
    strategy, _ = run(rounds=40, callbacks=[Progress(console=console)])
    lines = [line for line in logged if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == [f"{t}/40" for t in range(41)]
    assert all("loss " in line and "↑" in line and "↓" in line for line in lines)
    assert "  2 of 2 used  " in lines[1]
    assert f"  {strategy.history[1].seconds:.2f} s  " in lines[1]
    assert "gap" in lines[-1]
    assert "0 s left" in lines[-1]
    assert screen.getvalue() == ""
    up = format_bytes(sum(record.bytes_up for record in strategy.history))
    assert logged[-1].startswith("total: rounds 40  loss 3  ")
    assert f"  ↑ {up} ↓ " in logged[-1]
    assert "  80 of 80 used  last tenth of the rounds 0 % of" in logged[-1]


def test_a_line_has_the_metrics_of_its_own_round(logged: list[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    run(rounds=5, callbacks=[Progress(console=console)], evaluate_every=2)
    lines = {line.split()[1][0]: line for line in logged if line.startswith("round ")}
    assert [t for t, line in lines.items() if " loss " in line] == ["0", "2", "4", "5"]
    assert [t for t, line in lines.items() if " accuracy " in line] == [*"0245"]
    # the method's own, which every round has
    assert [t for t, line in lines.items() if " gap " in line] == [*"12345"]


def test_the_bar_says_of_which_round_an_older_metric_is() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200)
    strategy, _ = run(
        rounds=4,
        callbacks=[Progress(console=console), Call(lambda record: record.round == 3)],
        evaluate_every=2,
    )
    loss = strategy.history[2].evaluation["loss"]
    assert f"loss {loss:.4g} (round 2)" in screen.getvalue()


def test_many_quick_rounds_are_a_line_a_second(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedtrellis.server.callbacks.time.time", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=False)
    progress = Progress(lines=20, console=console)
    progress.on_start(STRATEGY, 1, 21)
    for number in range(22):
        progress.on_round(STRATEGY, RoundRecord(number))
        now[0] += 0.25 if number < 16 else 3.0
    numbers = [int(line.split()[1].split("/")[0]) for line in logged]
    # four rounds a second; later each takes longer than that
    assert numbers == [0, 1, 5, 9, 13, 17, 18, 19, 20, 21]


def test_on_a_terminal_a_bar_is_drawn_and_nothing_logged(logged: list[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    progress = Progress(console=console)
    run(rounds=7, callbacks=[progress])
    text = screen.getvalue()
    assert "7/7" in text
    assert "loss 3" in text
    assert "accuracy 0.5" in text
    assert not [line for line in logged if line.startswith("round ")]
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back


def test_after_a_failure_the_terminal_is_in_order() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)

    def fail(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(callbacks=[Progress(console=console), Call(fail)])
    assert screen.getvalue().count("\x1b[?25h") == 1


def test_dropped_answers_are_shown(logged: list[str]) -> None:
    progress = Progress(console=Console(file=io.StringIO(), force_terminal=False))
    strategy = cast(RoundStrategy, SimpleNamespace(history=[]))
    progress.on_start(strategy, 1, 2)
    for record in HISTORY:
        progress.on_round(strategy, record)
    assert "1 of 2 used" in logged[-1]
    assert logged[-1].endswith("1 dropped")
    assert "↑ 150 B ↓ 1.5 kB" in logged[-1]
    assert "dropped" not in logged[0]
    strategy.history = HISTORY
    progress.on_failure(strategy, RuntimeError())
    assert logged[-1] == f"total: {in_a_line(HISTORY)}"


def test_a_resumed_runs_time_left_counts_its_own_rounds(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("fedtrellis.server.callbacks.time.time", lambda: now[0])
    progress = Progress(console=Console(file=io.StringIO(), force_terminal=False))
    progress.on_start(STRATEGY, 91, 100)
    now[0] += 20.0
    progress.on_round(STRATEGY, RoundRecord(100 - 10 + 4))
    progress.on_round(STRATEGY, RoundRecord(100 - 10 + 10))
    assert "0 s left" in logged[-1]
    now[0] = 1000.0
    logged.clear()
    progress.on_start(STRATEGY, 11, 30)
    now[0] += 20.0
    progress.on_round(STRATEGY, RoundRecord(15))
    # 5 rounds in 20 s, 15 to go
    assert "60 s left" in logged[-1]


# ------------------------------------------------------------------------------- JSON


def test_a_json_object_for_the_start_every_round_and_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategy, _ = run(
        rounds=3, callbacks=[JsonLines({"settings": CONFIG}, {"record": "/a/b"})]
    )
    start, *rounds, end = map(json.loads, capsys.readouterr().out.splitlines())
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
    assert end["rejected_by_reason"] == {}


def test_json_has_the_reasons_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = JsonLines()
    strategy = cast(RoundStrategy, SimpleNamespace(history=HISTORY, num_clients=2))
    lines.on_start(strategy, 1, 3)
    rejected = [("1", 'no\n"answer"'), ("ü", "late")]
    record = RoundRecord(3, rejected=rejected, train={"loss": np.nan, "gap": -np.inf})
    lines.on_round(strategy, record)
    lines.on_failure(strategy, ValueError("disk full"))

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    _, line, end = (
        json.loads(text, parse_constant=strict)
        for text in capsys.readouterr().out.splitlines()
    )
    assert line["rejected"] == [
        {"client": "1", "reason": 'no\n"answer"'},
        {"client": "ü", "reason": "late"},
    ]
    assert line["metrics"] == {"loss": None, "gap": None}
    assert (end["status"], end["error"]) == ("failed", "ValueError: disk full")
    assert end["rejected_by_reason"] == {"late": 1}


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


@pytest.mark.parametrize("reference", [None, 3.0, 100.0])
@pytest.mark.parametrize(
    "runs",
    [
        {"one": HISTORY, "two": HISTORY[:2]},
        {"one": DIVERGED},
        {"none": []},
        {"start": [RoundRecord(0)]},
        {"nan": [RoundRecord(1, evaluation={"loss": float("nan"), "gap": -1.0})]},
        {"rmse": [RoundRecord(1, train={"rmse": 1.0})]},
    ],
    ids=lambda runs: next(iter(runs)),
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
