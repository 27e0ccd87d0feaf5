"""The command line, the settings, and what a run leaves behind."""

import csv
import json
from pathlib import Path

import pytest

import sim
from fedtrellis.app.command_line import read_config
from tasks import TASKS, HybridTask
from tests.harness import history_of, model_of, run_app

# so few nodes have features and samples for two holders only
HYBRID = 'method="hyfdca" task="hybrid-svm" hyfdca.exposed="accept" '


pytestmark = pytest.mark.usefixtures("no_pictures")


def run(tmp_path: Path, *configs: str, nodes: int = 4) -> tuple[int, Path | None]:
    """Run in this process; the exit status and the record's directory."""
    arguments = ["--nodes", str(nodes), "--out", str(tmp_path)]
    for config in configs:
        arguments += ["-c", config]
    status = sim.app.command_line(arguments)
    records = sorted(tmp_path.iterdir()) if tmp_path.exists() else []
    return status, records[-1] if records else None


def test_json_on_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--nodes", "3", "--out", str(tmp_path), "--format", "json"]
    assert sim.app.command_line([*arguments, "-c", "rounds=2"]) == 0
    (record,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    start, *rounds, end = lines
    assert (start["event"], start["settings"]["log-format"]) == ("start", "json")
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert (end["event"], end["record"]) == ("end", str(record))
    written = history_of(record)
    assert [line["bytes_up"] for line in rounds] == [r["bytes_up"] for r in written]


#: Those of which no run is recorded.
SETS = (
    "capped-simplex non-negative-l1-ball weighted-l1-ball sorted-l1-ball "
    "sparse-group-ball total-variation-ball permutahedron"
)


@pytest.mark.parametrize("name", SETS.split())
def test_every_set_runs(tmp_path: Path, name: str) -> None:
    radius = 0 if name == "permutahedron" else 5
    status, record = run(tmp_path, f'domain="{name}" radius={radius} rounds=2')
    assert status == 0
    assert record is not None
    assert len(history_of(record)) == 3


def test_scores_of_new_samples_stay_on_the_nodes(tmp_path: Path) -> None:
    config = sim.app.default_config() | read_config(
        [HYBRID + 'hyfdca.encryption="none" rounds=30 client-evaluate-every=30']
    )
    nodes = [{"scores-file": str(tmp_path / f"{i}.csv")} for i in range(4)]
    record = run_app(config, 4, tmp_path / "runs", node_configs=nodes)
    w, task = model_of(record), sim.app.experiment(config, 4).task
    assert isinstance(task, HybridTask)
    names = list(task.feature_names())
    scores: dict[str, float] = {}
    expected: dict[str, float] = {}
    for i in range(4):
        with (tmp_path / f"{i}.csv").open() as file:
            for row in csv.DictReader(file):
                score = float(row["score"])
                assert float(row["predicted"]) == (1.0 if score >= 0.0 else -1.0)
                # the hinge loss says no probability
                assert not row["probability"]
                # all holders of a sample are given the same score
                assert scores.setdefault(row["id"], score) == score
        data = task.test_client_data(i)
        own = w[[names.index(name) for name in data.feature_names]]
        for name, part in zip(data.sample_ids, data.features @ own, strict=True):
            expected[name] = expected.get(name, 0.0) + part
    assert len(scores) == 360
    assert scores == pytest.approx(expected, abs=1e-9)


def test_a_bad_setting_stops_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of tests/wrong_inputs.toml, by this command's name."""
    assert run(tmp_path / "out", 'method="fedprox" lr=1') == (1, None)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("sim.py: error: ")
    assert said.endswith("; python sim.py --list NAME prints those of a method or task")


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*names: str) -> str:
        assert sim.app.command_line(["--list", *names]) == 0
        return capsys.readouterr().out

    out = shown()
    for name in (*sim.app.registry.methods, *TASKS, *sim.app.registry.domains):
        assert name in out
    # names alone: on one screen
    assert len(out.splitlines()) <= 50
    for group in sim.app.registry.groups:
        assert all(key in shown(group.owner or "run") for key in group.fields)
