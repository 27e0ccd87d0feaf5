"""Runs on files that lie on the nodes give the models of the built-in data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sim
from fedtrellis.settings import SettingsError
from tasks import LogisticRegression, make_task
from tasks.data.task import data_of
from tests.harness import run_app
from tests.tasks.data.node_files import write_csv, write_libsvm

pytestmark = pytest.mark.usefixtures("no_pictures")

N = 3


def run(
    folder: Path, config: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> Path:
    return run_app(config, len(nodes), folder, node_configs=nodes)


def model(record: Path) -> NDArray[np.float64]:
    with np.load(record / "model.npz") as arrays:
        return np.concatenate([arrays[name].ravel() for name in arrays.files])


def history(record: Path) -> list[dict[str, Any]]:
    lines = (record / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


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
            write_csv(
                path,
                header,
                (
                    [*r[order[:7]], int(b), *r[order[7:]]]
                    for r, b in zip(rows, labels, strict=True)
                ),
            )
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
    np.testing.assert_allclose(model(record), model(expected), rtol=0, atol=1e-9)
    # the clients' evaluation is F, which the server measures with the built-in data
    for line, other in zip(history(record), history(expected), strict=True):
        loss = line["client_evaluation"]["loss"]
        assert loss == pytest.approx(other["evaluation"]["loss"], rel=1e-9)
        assert not line["evaluation"]


@pytest.mark.parametrize(
    "constant", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_hyfdca_on_raw_files_is_one_model_however_they_are_split(
    constant: bool, tmp_path: Path
) -> None:
    """Encrypted, with columns as they are: areas of 2 500 beside roughnesses of 0.01.

    By their means and deviations it is scikit-learn's model, with a constant column;
    without one columns are not shifted.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression as Central

    data = load_breast_cancer()
    X = np.hstack([data.data, np.ones((len(data.data), 1))])[:, : 30 + constant]
    n, p = X.shape
    names = [str(name).replace(" ", "-") for name in data.feature_names] + ["one"]
    models = []
    for samples, features in ((3, 1), (1, 2), (2, 2)):
        configs = []
        for s in range(samples):
            for f in range(features):
                path = tmp_path / f"{samples}-{features}-{s}-{f}.csv"
                rows = range(s, n, samples)
                columns = np.array_split(np.arange(p), features)[f].tolist()
                head = ["id", *(names[m] for m in columns), *["label"] * (f == 0)]
                y = [[int(data.target[i])] if f == 0 else [] for i in rows]
                body = [
                    [f"patient-{i}", *X[i, columns], *own]
                    for i, own in zip(rows, y, strict=True)
                ]
                write_csv(path, head, body)
                name = f"{s}-{f}"
                configs.append({"client-id": name, "data": str(path)})
        config = {
            "task": "hybrid-logistic",
            "method": "hyfdca",
            "rounds": 150,
            "hybrid-logistic.dataset": "nodes",
            "hybrid-logistic.bias": 0.0,
            "hybrid-logistic.regularization": 0.1,
            "hyfdca.exposed": "accept",
            "hyfdca.tolerance": 1e-13,
            "data.feature-names": ",".join(names[:p]),
            "data.labels": "0,1",
            "min-nodes": len(configs),
        }
        models.append(model(run(tmp_path, config, configs)))
    m, s = X.mean(axis=0), X.std(axis=0)
    if constant:
        s[-1] = 1.0
    else:
        m, s = np.zeros(p), np.sqrt(np.square(X).mean(axis=0))
    Z = (X - m) / s
    if constant:
        Z[:, -1] = 1.0
    central = Central(
        C=1.0 / (0.1 * n), fit_intercept=False, tol=1e-12, solver="newton-cholesky"
    ).fit(Z, data.target)
    right = Z @ central.coef_[0]
    for found in models:
        # standardised weights, and scores of all samples
        assert np.abs((found * s - central.coef_[0])[:30]).max() < 1e-6
        assert np.abs(X @ found - right).max() < 1e-6 * np.abs(right).max()
        assert np.abs(((found - models[0]) * s)[:30]).max() < 1e-6


def test_nodes_that_do_not_go_together_stop_the_run(tmp_path: Path) -> None:
    configs = breast_cancer(tmp_path, ".csv")
    config = {"task": "logistic-regression", "rounds": 1, **OWN}
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
        run(tmp_path, named, configs)


def test_a_node_without_a_name_or_a_file_is_refused(tmp_path: Path) -> None:
    config = {"task": "logistic-regression", **OWN, "data.features": 30}
    with pytest.raises(RuntimeError, match="node config: data is missing"):
        run(tmp_path, config, [{}] * N)
    with pytest.raises(RuntimeError, match="must be an absolute path"):
        run(tmp_path, config, [{"data": "here.csv"}] * N)
    with pytest.raises(RuntimeError, match="there is none"):
        run(tmp_path, config, [{"data": str(tmp_path / "no.csv")}] * N)


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
    evaluated = [bool(line["client_evaluation"]) for line in history(record)]
    assert evaluated == [True, False, True]
    assert sim.app.command_line(arguments) == 1
    assert "node config: data is missing" in capsys.readouterr().err
    # a node may have a file, and a run not ask for it
    other = ["--nodes", "2", "--out", str(tmp_path / "other")]
    other += ["--node-config", entry, "-c", 'task="lasso" rounds=1']
    assert sim.app.command_line(other) == 0
