"""What a run leaves behind: its records, its progress, its picture."""

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clients import FedAvgGDClient
from fedtrellis import EarlyStop, JsonLines, Progress, RoundRecord
from fedtrellis.server.callbacks import Call, format_bytes, in_a_line, summarise
from fedtrellis.server.records import RunRecord, plot_convergence, read_history, to_toml
from fedtrellis.wire.arrays import encode
from strategies import FedAvgGD
from tests.harness import Distance, grid_of, history_of, refused

Config = dict[str, Any]


def test_sizes_are_as_people_read_them() -> None:
    sizes = {999: "999 B", 1949: "1.9 kB", 999_950: "1.0 MB", 20.1e9: "20.1 GB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


def test_a_long_run_logs_at_most_a_line_a_second(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedtrellis.server.callbacks.time.time", lambda: now[0])
    progress = Progress()
    progress.on_start(SimpleNamespace(history=[]), 1, 2000)
    for number in range(1, 9):
        now[0] += 0.4
        progress.on_round(None, RoundRecord(number))
    assert [line.split("/")[0] for line in logged] == ["round 1", "round 4", "round 7"]


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


def run(rounds: int = 4, **options: Any) -> tuple[FedAvgGD, Result]:
    """Each round halves the model."""
    loss = Distance(*map(np.zeros_like, MODEL.values()))
    steps: Config = {"local_steps": 1, "step_size": 0.5, "step_schedule": "constant"}
    strategy = FedAvgGD(**steps, **options)
    layers = ArrayRecord({name: encode(array) for name, array in MODEL.items()})
    grid = grid_of(FedAvgGDClient, [loss] * 2)
    return strategy, strategy.start(grid, layers, rounds, evaluate_fn=evaluate)


CONFIG: Config = {"method": "halving", "rounds": 4, "text": 'ẍ̄ "∑"\x7f', "step": 0.5}


def test_a_run_leaves_all_its_files(tmp_path: Path) -> None:
    """They are whole after every round."""
    path = tmp_path / "run"
    record = RunRecord(path, CONFIG, reference=3.0, title="Halving")
    seen: list[int] = []

    def summary() -> Any:
        return json.loads((path / "summary.json").read_text(encoding="utf-8"))

    def look(round_record: RoundRecord) -> None:
        seen.append(history_of(path)[-1]["round"])
        assert summary()["status"] == "running"

    options: Config = {"callbacks": [record, Call(look)], "checkpoint_every": 2}
    strategy, result = run(checkpoint=record.checkpoint, **options)
    assert seen == [0, 1, 2, 3, 4]
    assert {file.name for file in path.iterdir()} == {
        *("config.toml", "resume.toml", "history.jsonl", "summary.json", "model.npz"),
        *("checkpoint.npz", "convergence.png"),
    }
    for name, more in (("config", {}), ("resume", {"resume": str(record.directory)})):
        config = tomllib.loads((path / f"{name}.toml").read_text(encoding="utf-8"))
        assert same(config, {**CONFIG, **more})
    assert [RoundRecord.from_dict(x) for x in history_of(path)] == strategy.history
    made = summary()
    assert (made["status"], made["rounds"]) == ("round limit", 4)
    assert made["residual"] == pytest.approx(15 / 4**4)
    with np.load(path / "model.npz") as model:
        check_model(result.arrays, 0.5**4)
        check_model(ArrayRecord({name: encode(model[name]) for name in MODEL}), 0.5**4)


def test_without_matplotlib_a_record_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run(1, callbacks=[RunRecord(tmp_path, CONFIG)])
    assert '"round limit"' in (tmp_path / "summary.json").read_text()


def same(left: Config, right: Config) -> bool:
    def typed(config: Config) -> Any:
        return {k: (type(v), v) for k, v in config.items()}

    return bool(typed(left) == typed(right))


SCALARS = (st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text())
KEYS = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(KEYS, st.one_of(*SCALARS, st.floats(allow_nan=False))))
def test_any_config_comes_back_from_its_toml(config: Config) -> None:
    assert same(tomllib.loads(to_toml(config)), config)
    arrays = {
        k: v if isinstance(v, str) else np.array(v)[()] for k, v in config.items()
    }
    assert to_toml(arrays) == to_toml(config)
    assert to_toml({"rounds": None}) == 'rounds = "auto"\n'


def test_a_history_has_what_is_evaluated_after_a_stop(tmp_path: Path) -> None:
    late: Config = {"evaluate_every": 10, "callbacks": [RunRecord(tmp_path, CONFIG)]}
    late["callbacks"].append(Call(lambda record: record.round == 3))
    strategy, _ = run(9, **late)
    assert strategy.history[-1].evaluation
    assert history_of(tmp_path)[-1] == strategy.history[-1].to_dict()


def test_a_folder_that_is_a_dangling_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted" / "runs")
    with pytest.raises(FileExistsError):
        RunRecord.create(tmp_path / "runs", "a-run", {})


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
    assert in_a_line(HISTORY) == (
        "rounds 2  loss 5  gap 2  ↑ 150 B ↓ 1.5 kB  0.75 s  3 of 4 used  "
        "1 dropped, most often: late"
    )
    # of metrics of one name the server's counts
    both: Config = {"client_evaluation": {"loss": 2.0, "b": 2.0}}
    record = RoundRecord(1, train={"loss": 1.0}, evaluation={"loss": 3.0}, **both)
    assert record.metrics == {"loss": 3.0, "b": 2.0}


def test_a_history_may_end_within_a_line_and_not_earlier() -> None:
    whole = json.dumps(HISTORY[1].to_dict())
    assert read_history(f"{whole}\n{whole[:9]}") == HISTORY[1:2]
    refused("Expecting", lambda: read_history(f"{whole[:9]}\n{whole}\n"), ValueError)


def test_early_stop_compares_its_metric() -> None:
    stop = EarlyStop("gap", 0.5)
    assert stop.on_round(None, RoundRecord(3, evaluation={"gap": 0.5}))
    for record in (
        RoundRecord(3, evaluation={"gap": 0.51, "loss": 0.0}),
        RoundRecord(3, train={"gap": np.nan}),
        RoundRecord(0, evaluation={"gap": 0.0}),  # what a run starts from
    ):
        assert not stop.on_round(None, record)
    rising = EarlyStop("accuracy", 0.9)
    rounds = [
        RoundRecord(1, evaluation=m)
        for m in ({"accuracy": 0.89}, {}, {"accuracy": 0.9})
    ]
    assert [rising.on_round(None, one) for one in rounds] == [False, False, True]


def test_json_lines_have_reasons_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the events of a run that goes well see ``test_sim.py``."""
    lines = JsonLines({"settings": CONFIG}, {"record": "/a/b"})
    strategy, _ = run(1, callbacks=[lines])
    rejected = [("1", 'no\n"answer"'), ("ü", "late")]
    record = RoundRecord(3, rejected=rejected, train={"loss": np.nan, "gap": -np.inf})
    strategy.history[:] = [record]
    lines.on_round(strategy, record)
    lines.on_failure(strategy, ValueError("disk full"))
    *_, line, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(x["client"], x["reason"]) for x in line["rejected"]] == rejected
    assert line["metrics"] == {"loss": None, "gap": None}
    assert (end["status"], end["error"]) == ("failed", "ValueError: disk full")
    assert end["rejected_by_reason"] == {'no\n"answer"': 1, "late": 1}


@pytest.mark.filterwarnings("error")
def test_the_picture_of_whatever_numbers_is_a_png(tmp_path: Path) -> None:
    # values near the end of what a float holds have no axis
    numbers = [1.0, 1e80, 1e250, 1e308, np.inf, np.nan]
    diverged = [RoundRecord(t, evaluation={"loss": v}) for t, v in enumerate(numbers)]
    for history in [], diverged, diverged[-1:]:
        path = tmp_path / "a.png"
        plot_convergence({"one": [(history, 3.0)]}, path)
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


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
    plot_convergence({"one": [(HISTORY, 3.0)]}, tmp_path / "a.png")
    by_round = ("round", "F(x̄) − F*")
    by_bytes = ("MB up and down, all nodes", "F(x̄) − F*")
    assert drawn == [[by_round, ("round", "Frank-Wolfe gap"), by_bytes]]
