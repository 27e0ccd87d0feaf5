"""What trackers write, read back by the libraries that it is written for."""

import re
import socket
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from clients import FedAvgGDClient
from fedtrellis import Callback
from fedtrellis.objectives import LeastSquares
from fedtrellis.trackers import MLflow, OpenMetrics, TensorBoard, make_trackers
from strategies import FedAvgGD
from tests.harness import grid_of, refused, run_app

ROUNDS = 3
RNG = np.random.default_rng(0)
LOSSES = [LeastSquares(RNG.normal(size=(6, 4)), RNG.normal(size=6)) for _ in range(3)]


def mean_loss(_: int, arrays: ArrayRecord) -> MetricRecord:
    x = arrays.to_numpy_ndarrays()[0]
    return MetricRecord({"loss": sum(f.value(x) for f in LOSSES) / len(LOSSES)})


def play(
    *callbacks: Callback, rounds: int = ROUNDS, **options: Any
) -> tuple[FedAvgGD, dict[int, float]]:
    """The strategy after its run, and the losses by round."""
    strategy = FedAvgGD(callbacks=callbacks, **{"step_size": 0.01, **options})
    grid, start = grid_of(FedAvgGDClient, LOSSES), ArrayRecord([np.zeros(4)])
    strategy.start(grid, start, num_rounds=rounds, evaluate_fn=mean_loss)
    return strategy, {r.round: r.metrics["loss"] for r in strategy.history}


def test_tensorboard_reads_its_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    strategy, losses = play(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()

    def scalars(name: str) -> dict[int, float]:
        return {e.step: e.tensor_proto.float_val[0] for e in events.Tensors(name)}

    assert scalars("loss") == pytest.approx(losses, rel=1e-6)
    sent = {r.round: r.bytes_up for r in strategy.history if r.round}
    assert scalars("round/bytes-up") == pytest.approx(sent)


@pytest.mark.slow  # its library takes ten seconds to load
def test_mlflow_reads_its_database(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    address = f"sqlite:///{tmp_path}/runs.db"
    callback = MLflow("first", tracking_uri=address)
    _, losses = play(callback, step_size=0.02)
    client = MlflowClient(address)
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["strategy"] == "FedAvgGD"
    assert float(run.data.params["step-size"]) == 0.02
    history = client.get_metric_history(callback.run_id, "loss")
    assert {m.step: m.value for m in history} == losses


def samples(path: Path) -> dict[tuple[str, str], float]:
    """A file's samples by name and by the label that is not the strategy."""
    parser: Any = import_module("prometheus_client.openmetrics.parser")
    found = {}
    for family in parser.text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            name = sample.name.removeprefix("fedtrellis_")
            labels = dict(sample.labels)
            assert labels.pop("strategy") == "FedAvgGD"
            found[name, "".join(labels.values())] = sample.value
    return found


def test_prometheus_reads_its_file_and_a_resumed_run_counts_on(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    path, checkpoint = tmp_path / "run.prom", tmp_path / "checkpoint.npz"
    strategy, losses = play(OpenMetrics(path), checkpoint=checkpoint)
    found = samples(path)
    assert found["round", ""] == found["rounds_planned", ""] == ROUNDS
    assert found["answers_total", "used"] == ROUNDS * len(LOSSES)
    assert found["metric", "loss"] == losses[ROUNDS]
    assert found["run_status", "round limit"] == 1
    assert found["run_status", "running"] == 0
    longer, _ = play(OpenMetrics(path), rounds=2 * ROUNDS, resume=checkpoint)
    for run, now in ((strategy, found), (longer, samples(path))):
        assert now["round", ""] == run.history[-1].round
        assert now["bytes_total", "up"] == sum(r.bytes_up for r in run.history)


def test_a_run_serves_its_metrics_until_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, path = f"http://127.0.0.1:{port}/metrics", tmp_path / "run.prom"
    served: list[str] = []

    class Scrape(OpenMetrics):
        def write(self, step: int, values: Any) -> None:
            super().write(step, values)
            with urlopen(address, timeout=10) as answer:
                served.append(answer.read().decode())

    play(Scrape(path, port=port))
    rounds = [re.findall(r"^fedtrellis_round{.*} (.*)$", page, re.M) for page in served]
    assert rounds == [[f"{float(t)}"] for t in range(ROUNDS + 1)]
    with pytest.raises(URLError):
        urlopen(address, timeout=10)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = OpenMetrics(tmp_path / "other", port=taken.getsockname()[1])
        begun = Scrape(path, port=port), other
        refused("OpenMetrics cannot start", lambda: play(*begun))
    assert not (tmp_path / "other").exists()
    with pytest.raises(URLError):  # nor the one that had begun
        urlopen(address, timeout=10)


def test_a_tool_that_fails_costs_a_warning_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    steps = []

    def write(self: Any, step: int, values: Any) -> None:
        steps.append(step)
        if step == 1:
            raise OSError("the server is gone")

    monkeypatch.setattr(OpenMetrics, "write", write)
    strategy, _ = play(OpenMetrics(tmp_path / "run.prom"))
    assert len(strategy.history) == ROUNDS + 1
    assert steps == [0, 1]


def test_a_run_config_names_trackers(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    settings = {"task": "lasso", "rounds": 2, "track": "openmetrics,"}
    path = run_app(settings, 2, tmp_path) / "metrics.prom"
    assert "fedtrellis_round" in path.read_text()
    refused("a port that is none", lambda: make_trackers("mlflow:1", tmp_path))
    refused("a port that is none", lambda: make_trackers("openmetrics:x", tmp_path))
    (tracker,) = make_trackers("openmetrics:9100", tmp_path)
    assert (tracker.name, vars(tracker)["port"]) == ("openmetrics", 9100)
    wrong = "track = 'prometheus' is not known"
    refused(wrong, lambda: make_trackers("prometheus", tmp_path))
