"""Runs on files that lie on the nodes give the models of the built-in data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.settings import SettingsError
from tasks import LogisticRegression, make_task
from tasks.data.task import data_of
from tests.harness import history_of, model_of, run_app
from tests.tasks.data.node_files import write_csv, write_libsvm

pytestmark = pytest.mark.usefixtures("no_pictures")

N = 3


def run(
    folder: Path, config: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> Path:
    return run_app(config, len(nodes), folder, node_configs=nodes)


def breast_cancer(folder: Path, ending: str) -> list[dict[str, Any]]:
    task = make_task("logistic-regression", {}, N, 0)
    assert isinstance(task, LogisticRegression)
    data = data_of(task)
    configs = []
    for i in range(N):
        rows, labels = data.share(i)
        path = folder / f"{i}{ending}"
        if ending == ".csv":
            # another column order on every node, with the label somewhere within
            order = np.roll(np.arange(30), i)
            header = [*(f"x{j}" for j in order[:7]), "label"]
            header += [f"x{j}" for j in order[7:]]
            body = np.column_stack([rows[:, order[:7]], labels, rows[:, order[7:]]])
            write_csv(path, header, body.tolist())
        elif ending == ".npz":
            np.savez(path, features=rows, labels=labels)
        else:
            write_libsvm(path, labels.tolist(), rows)
        # no partition: a name and a file are all that a node needs
        configs.append({"client-id": str(i), "data": str(path)})
    return configs


# as the files stand: the built-in data is scaled already
OWN = {
    "logistic-regression.dataset": "nodes",
    "min-nodes": N,
    "data.prepare": False,
}
NAMES = ",".join(f"x{j}" for j in range(30))


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        *(("fedfw", ".csv"), ("fedgia", ".csv"), ("fedfw", ".npz"), ("fedgia", ".svm")),
        ("zeroth-order-sgd", ".csv"),
    ],
)
def test_files_cut_from_breast_cancer_give_its_model(
    tmp_path: Path, method: str, ending: str
) -> None:
    config = {"task": "logistic-regression", "method": method, "rounds": 8}
    config |= {"fedgia.sigma-scale": 0.02} if method == "fedgia" else {}
    expected = run(tmp_path, config, [{}] * N)
    total = make_task("logistic-regression", {}, N, 0).num_examples()
    columns = {"data.feature-names": NAMES} if ending == ".csv" else {}
    own = {**config, **OWN, **columns, "data.examples": total}
    own |= {} if columns else {"data.features": 30}
    record = run(tmp_path, own, breast_cancer(tmp_path, ending))
    np.testing.assert_allclose(model_of(record), model_of(expected), rtol=0, atol=1e-9)
    # the clients' evaluation is F, which the server measures with the built-in data
    for line, other in zip(history_of(record), history_of(expected), strict=True):
        loss = line["client_evaluation"]["loss"]
        assert loss == pytest.approx(other["evaluation"]["loss"], rel=1e-9)
        assert not line["evaluation"]


def test_nodes_that_do_not_go_together_stop_the_run(tmp_path: Path) -> None:
    configs = breast_cancer(tmp_path, ".csv")
    config: dict[str, Any] = {"task": "logistic-regression", "rounds": 1, **OWN}
    # by their number, columns have to be in one order
    with pytest.raises(SettingsError, match="clients 0 and 1 have other feature"):
        run(tmp_path, config | {"data.features": 30}, configs)
    named = config | {"data.feature-names": NAMES}
    with pytest.raises(
        SettingsError, match=r"data\.examples = 400 does not fit min-nodes"
    ):
        run(tmp_path, named | {"data.examples": 400}, configs)
    with pytest.raises(SettingsError, match="min-nodes = 2: 3 nodes"):
        run(tmp_path, named | {"data.examples": 455, "min-nodes": 2}, configs)
    # one bad file: the run says whose, and does not go on without it
    (tmp_path / "1.csv").write_text("nothing\n")
    with pytest.raises(SettingsError, match=r"2 nodes can be used: .*1\.csv"):
        run(tmp_path, config | named, configs)


def test_a_node_without_a_name_or_a_file_is_refused(tmp_path: Path) -> None:
    config = {"task": "logistic-regression", **OWN, "data.features": 30}
    for node, match in (
        ({}, "node config: data is missing"),
        ({"data": "here.csv"}, "must be an absolute path"),
        ({"data": str(tmp_path / "no.csv")}, "there is none"),
    ):
        with pytest.raises(RuntimeError, match=match):
            run(tmp_path, config, [node] * N)


def test_files_can_be_tried_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        write_csv(tmp_path / f"part-{number}.csv", ["x", "label"], [[number, 3.0]])
    config = (
        'task="linear-regression" linear-regression.dataset="nodes" data.features=1 '
        'method="fedavg-gd" rounds=2 evaluate-every=2 min-nodes=2'
    )
    arguments = ["--nodes", "2", "--out", str(tmp_path / "runs"), "-c", config]
    entry = f'data="{tmp_path}/part-{{partition}}.csv"'
    assert sim.app.command_line([*arguments, "--node-config", entry]) == 0
    (record,) = (tmp_path / "runs").iterdir()
    evaluated = [bool(line["client_evaluation"]) for line in history_of(record)]
    assert evaluated == [True, False, True]
    assert sim.app.command_line(arguments) == 1
    assert "node config: data is missing" in capsys.readouterr().err
    # a node may have a file, and a run not ask for it
    other = ["--nodes", "2", "--out", str(tmp_path / "other")]
    other += ["--node-config", entry, "-c", 'task="lasso" rounds=1']
    assert sim.app.command_line(other) == 0
