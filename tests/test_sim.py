"""The command line, the settings, and what a run leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.app.command_line import read_config
from fedtrellis.wire.local_grid import LocalGrid
from tasks import TASKS, HybridTask

ROOT = Path(__file__).resolve().parents[1]
# so few nodes have features and samples for two holders only
ACCEPT = 'hyfdca.exposed="accept" '
HYBRID = f'method="hyfdca" task="hybrid-svm" {ACCEPT}'


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest) -> None:
    if request.node.name != "test_a_run_leaves_a_complete_record":
        request.getfixturevalue("no_pictures")


def run(tmp_path: Path, *configs: str, nodes: int = 4) -> tuple[int, Path | None]:
    """Run in this process; the exit status and the record's directory."""
    arguments = ["--nodes", str(nodes), "--out", str(tmp_path)]
    for config in configs:
        arguments += ["-c", config]
    status = sim.app.command_line(arguments)
    records = sorted(tmp_path.iterdir()) if tmp_path.exists() else []
    return status, records[-1] if records else None


def history(record: Path) -> list[dict[str, Any]]:
    text = (record / "history.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_leaves_a_complete_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, record = run(tmp_path, "rounds=12 evaluate-every=5")
    assert status == 0
    assert record is not None
    assert {path.name for path in record.iterdir()} >= {
        "config.toml",
        "resume.toml",
        "history.jsonl",
        "summary.json",
        "model.npz",
        "checkpoint.npz",
        "convergence.png",
    }
    lines = history(record)
    assert [line["round"] for line in lines] == list(range(13))
    assert [line["round"] for line in lines if line["evaluation"]] == [0, 5, 10, 12]
    assert all(line["bytes_up"] > 0 for line in lines[1:])
    summary = json.loads((record / "summary.json").read_text())
    assert summary["status"] == "round limit"
    assert summary["metrics"]["loss"] == lines[-1]["evaluation"]["loss"]
    assert np.load(record / "model.npz")["0"].shape == (65, 10)
    out = capsys.readouterr().out
    assert f"Record: {record}" in out.splitlines()


def test_with_format_json_every_line_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--nodes", "3", "--out", str(tmp_path), "-c", "rounds=2"]
    assert sim.app.command_line([*arguments, "--format", "json"]) == 0
    (record,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    start, *rounds, end = (line for line in lines if line["event"] != "log")
    assert (start["event"], start["settings"]["log-format"]) == ("start", "json")
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert (end["event"], end["record"]) == ("end", str(record))
    written = [json.loads(x) for x in (record / "history.jsonl").open()]
    assert [line["bytes_up"] for line in rounds] == [r["bytes_up"] for r in written]

    # what the run cannot do is JSON as well, on both ways out
    assert (
        sim.app.command_line([*arguments, "-c", 'log-format="json" fedfw.penalty=-0.5'])
        == 1
    )
    caught = capsys.readouterr()
    for text in (caught.out, caught.err):
        last = json.loads(text.splitlines()[-1])
        assert last["event"] == "error"
        assert "fedfw.penalty = -0.5 must be" in last["error"]
    assert sim.app.command_line([*arguments, "--format", "json", "-c", "a=1"]) == 1
    last = json.loads(capsys.readouterr().err)
    assert "'a' is not known" in last["error"]


@pytest.mark.parametrize(
    "config",
    [
        'domain="box" box.lower=-0.5 box.upper=0.5',
        'domain="simplex" radius=5',
        'domain="k-support-ball" radius=5 k-support-ball.k=3',
        'domain="group-l1-ball" radius=5 group-l1-ball.groups=10',
        'domain="nuclear-norm-ball"',
        'domain="spectral-norm-ball"',
        'domain="non-negative-l1-ball" radius=5',
        'domain="capped-simplex" radius=5 capped-simplex.cap=0.5',
        'domain="weighted-l1-ball" radius=5 weighted-l1-ball.weights=0.1',
        'domain="sorted-l1-ball" radius=5 sorted-l1-ball.weights=0.2',
        'domain="sparse-group-ball" radius=5 sparse-group-ball.share=0.2',
        'domain="total-variation-ball" radius=5',
        'domain="permutahedron" permutahedron.vector=0.3',
        'task="quadratic-assignment"',
        'task="matrix-completion"',
        'task="classification"',
        'task="classification" classification.model="dnn"',
        'task="classification" classification.model="dnn" layers="product"',
    ],
)
def test_every_set_and_task_runs(tmp_path: Path, config: str) -> None:
    status, record = run(tmp_path, f"{config} rounds=3")
    assert status == 0
    assert record is not None
    assert len(history(record)) == 4


def test_scores_of_new_samples_stay_on_the_nodes(tmp_path: Path) -> None:
    config = sim.app.default_config() | read_config(
        [HYBRID + 'hyfdca.encryption="none" rounds=30 client-evaluate-every=30']
    )
    config["results-dir"] = str(tmp_path / "runs")
    nodes = [{"scores-file": str(tmp_path / f"{i}.csv")} for i in range(4)]
    grid = LocalGrid(sim.client_app, 4, run_config=config, node_configs=nodes)
    record = sim.app.run(grid, config)
    w = np.load(record / "model.npz")["0"]
    setup = sim.app.experiment(config, 4)
    assert isinstance(setup.task, HybridTask)
    scores: dict[str, float] = {}
    for i in range(4):
        lines = (tmp_path / f"{i}.csv").read_text().splitlines()
        assert lines[0] == "id,score,predicted,probability,calibrated"
        for name, score, predicted, probability, calibrated in (
            line.split(",") for line in lines[1:]
        ):
            assert float(predicted) == (1.0 if float(score) >= 0.0 else -1.0)
            # the hinge loss says no probability; what is known of some labels does
            assert not probability
            assert 0.0 < float(calibrated) < 1.0
            # all holders of a sample are given the same score
            assert scores.setdefault(name, float(score)) == float(score)
    names = list(setup.task.feature_names())
    expected = dict.fromkeys(scores, 0.0)
    for i in range(4):
        data = setup.task.test_client_data(i)
        own = w[[names.index(name) for name in data.feature_names]]
        for name, part in zip(data.sample_ids, data.features @ own, strict=True):
            expected[name] += part
    assert len(scores) == 360
    for name, value in scores.items():
        assert value == pytest.approx(expected[name], abs=1e-9)


# what the command line itself has to say; of run configs see tests/recorded/runs.json
BAD = [
    ('method="fedfww"', "method = 'fedfww' is not known (did you mean 'fedfw'?)"),
    ("roundz=3", "-c key = 'roundz' is not known (did you mean 'rounds'?)"),
    # a setting without its owner
    ("penalty=0.1", "-c key = 'penalty' is not known (did you mean 'fedfw.penalty'?)"),
    ('method="fedprox" local-steps=3', "(did you mean 'fedprox.local-steps'?)"),
    ("k=3", "-c key = 'k' is not known (did you mean 'k-support-ball.k'?)"),
    ("rounds", "'rounds' is no key=value"),
    ("rounds=3 5", "'5' is no key=value"),
    ("rounds=3 method=fedgia", "all of it in single ones: 'method=\"fedgia\"'"),
    ('resume="nowhere"', "nowhere' is not the record of a run"),
    ("nowhere.toml", "No such file"),
    # whole numbers are numbers
    ('method="fedgia" radius=2', "radius = 2.0: whole-space has none; allowed: 0"),
]


@pytest.mark.parametrize(("config", "message"), BAD)
def test_a_bad_setting_stops_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, message: str
) -> None:
    status, record = run(tmp_path / "out", config)
    captured = capsys.readouterr()
    assert status == 1
    assert record is None, "nothing has started, so nothing is recorded"
    assert message in captured.err
    assert captured.err.startswith("sim.py: error: ")
    assert captured.err.count("\n") == 1


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.app.command_line(["--list"]) == 0
    out = capsys.readouterr().out
    for name in (*sim.app.registry.methods, *TASKS, "l1-ball", "k-support-ball"):
        assert name in out
    # names alone: on one screen
    assert len(out.splitlines()) <= 50
    for group in sim.app.registry.groups:
        assert sim.app.command_line(["--list", group.owner or "run"]) == 0
        told = capsys.readouterr().out
        for key in group.fields:
            assert key in told
            assert group.owner or key in out
    for name in sim.app.registry.domains:
        assert sim.app.command_line(["--list", name]) == 0
        assert f"{name}: " in capsys.readouterr().out


@pytest.mark.parametrize("variant", ["plain", "augmented", "stochastic"])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, variant: str) -> None:
    config = (
        f'task="lasso" fedfw.variant="{variant}" rounds=300 participation=0.7 '
        "checkpoint-every=10 evaluate-every=50 fedfw.penalty=1.0"
    )
    whole, killed, resumed = (tmp_path / name for name in ("whole", "killed", "again"))
    status, reference = run(whole, config, nodes=10)
    assert status == 0
    assert reference is not None

    process = subprocess.Popen(
        [sys.executable, "sim.py", "--out", str(killed), "-c", config],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(killed.glob("*/checkpoint.npz")):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (left,) = killed.iterdir()
    assert json.loads((left / "summary.json").read_text())["status"] == "running"
    assert [line["round"] for line in history(left)] == list(range(len(history(left))))

    status, record = run(resumed, f'resume="{left}"', nodes=10)
    assert status == 0
    assert record is not None
    model, expected = (np.load(r / "model.npz")["0"] for r in (record, reference))
    np.testing.assert_allclose(model, expected, rtol=0, atol=1e-12)
    assert [line["round"] for line in history(record)] == list(range(301))


@pytest.mark.parametrize("gone", [False, True])
def test_hyfdca_goes_on_with_its_own_key_or_says_that_it_is_gone(
    gone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    config = (
        f'{HYBRID} hybrid-svm.dataset="breast-cancer" hybrid-svm.partition="vertical" '
        # what is mixed at random depends on the key, too
        "hyfdca.tolerance=0.0 hyfdca.secure-sum=false"
    )
    _, whole = run(tmp_path / "whole", config + " rounds=6", nodes=2)
    _, first = run(tmp_path / "first", config + " rounds=3", nodes=2)
    assert whole is not None
    # in a process of its own nothing would be remembered
    monkeypatch.setattr("fedtrellis.encryption.node_secrets._run_keys", {})
    if gone:
        for key in temporary.rglob("*.key"):
            key.unlink()
    capsys.readouterr()
    status, rest = run(tmp_path / "rest", f'resume="{first}" rounds=6', nodes=2)
    if gone:
        assert status == 1
        error = capsys.readouterr().err
        assert "sim.py: error: client 0: the key that this run's clients made" in error
        assert not list(temporary.rglob("*.key"))
        return
    assert status == 0
    assert rest is not None
    assert [line["round"] for line in history(rest)] == list(range(7))
    difference = np.load(rest / "model.npz")["0"] - np.load(whole / "model.npz")["0"]
    # by its key each run puts the samples in an order of its own, and rounds by that
    assert np.abs(difference).max() < 1e-9
