"""Runs on files that lie on the nodes give the models of the built-in data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import make_task
from tasks.data.task import data_of
from tests.harness import history_of, model_of, refused, run_app
from tests.tasks.data.files import write_csv, write_libsvm

pytestmark = pytest.mark.usefixtures("no_pictures")

N = 3


def run(
    folder: Path, config: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> Path:
    return run_app(config, len(nodes), folder, node_configs=nodes)


def breast_cancer(folder: Path, ending: str) -> list[dict[str, Any]]:
    data = data_of(make_task("logistic-regression", {}, N, 0))
    configs = []
    for i in range(N):
        rows, labels = data.share(i)
        path = folder / f"{i}{ending}"
        if ending == ".csv":
            # another column order on every node, with the label somewhere within
            order = np.roll(np.arange(30), i)
            names = [f"x{j}" for j in order]
            body = np.column_stack([rows[:, order[:7]], labels, rows[:, order[7:]]])
            write_csv(path, [*names[:7], "label", *names[7:]], body.tolist())
        else:
            write_libsvm(path, labels.tolist(), rows)
        # no partition: a name and a file are all that a node needs
        configs.append({"client-id": str(i), "data": str(path)})
    return configs


# as the files stand: the built-in data is scaled already
OWN: dict[str, Any] = {
    "task": "logistic-regression",
    "logistic-regression.dataset": "nodes",
    "min-nodes": N,
    "data.prepare": False,
}
NAMES = ",".join(f"x{j}" for j in range(30))


@pytest.mark.parametrize(("method", "ending"), [("fedfw", ".csv"), ("fedgia", ".svm")])
def test_cut_files_give_one_model(tmp_path: Path, method: str, ending: str) -> None:
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
    nodes = breast_cancer(tmp_path, ".csv")
    named = {"rounds": 1, **OWN, "data.feature-names": NAMES}
    numbered = {"data.features": 30, "data.feature-names": ""}
    one = [{"data": "here.csv"}, {}, {"data": str(tmp_path / "no.csv")}]
    for more, given, match in (
        # by their number, columns have to be in one order
        (numbered, nodes, "clients 0 and 1 have other feature"),
        ({"data.examples": 400}, nodes, r"data\.examples = 400 does not fit min-nodes"),
        ({"data.examples": 455, "min-nodes": 2}, nodes, "min-nodes = 2: 3 nodes"),
        ({}, one[:1] * N, "must be an absolute path"),
        ({}, one[1:2] * N, "node config: data is missing"),
        ({}, one[2:] * N, "there is none"),
    ):
        kinds = (RuntimeError, ValueError)
        refused(match, lambda: run(tmp_path, named | more, given), kinds)  # noqa: B023
    # one bad file: the run says whose, and does not go on without it
    (tmp_path / "1.csv").write_text("nothing\n")
    refused(r"2 nodes can be used: .*1\.csv", lambda: run(tmp_path, named, nodes))


@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("logistic-regression", {"l2": 0.5, "intercept": True}),
        ("linear-regression", {}),
        ("lasso", {}),
        ("kernel-pca", {"scale": False, "components": 2}),
        ("classification", {}),
        ("low-rank-network", {"rank": 2, "l2": 0.1}),
        ("matrix-completion", {"users": 4, "items": 3}),
    ],
)
def test_examples_count_once(tmp_path: Path, task: str, config: dict[str, Any]) -> None:
    """(1/n) Σ f_i of three unequal files is the loss of one file with all rows."""
    rng = np.random.default_rng(0)
    settings: dict[str, Any] = {f"{task}.{key}": v for key, v in config.items()}
    settings |= {f"{task}.dataset": "nodes", "data.examples": 12}
    if task == "matrix-completion":
        rows = np.column_stack([rng.integers(1, 4, 12), rng.integers(1, 3, 12)])
        whole = np.column_stack([rows, rng.normal(size=12)])
    else:
        whole = np.column_stack([rng.normal(size=(12, 3)), np.arange(12) % 2])
        settings["data.features"] = 3
    if task in ("classification", "low-rank-network"):
        settings["data.classes"] = 2

    def save(name: str, part: Any) -> Path:
        path = tmp_path / name
        if task == "matrix-completion":
            np.savetxt(path, part, fmt=["%d", "%d", "%.17g"], delimiter="\t")
        else:
            write_csv(path, ["x", "y", "z", "label"], part.tolist())
        return path

    several, alone = make_task(task, settings, 3, 0), make_task(task, settings, 1, 0)
    paths = [save(f"{i}.csv", part) for i, part in enumerate(np.split(whole, [2, 5]))]
    point = [rng.normal(size=shape) for shape in several.shapes()]
    if several.manifold() is not None:
        point = several.initial_point()
    x = several.argument(point)
    objectives = [several.node_objective(path) for path in paths]
    values = [objective.value(x) for objective in objectives]
    expected = alone.node_objective(save("all.csv", whole)).value(x)
    assert np.mean(values) == pytest.approx(expected, rel=1e-12)
    # and so does what the nodes answer when they are asked to evaluate
    losses = [
        several.weigh_evaluation(f.value(x), f.num_examples, {"accuracy": 1.0})[0]
        for f in objectives
    ]
    told = [several.node_attributes({"data": str(path)}) for path in paths]
    counts = [attributes["announcement"]["num-examples"] for attributes in told]
    assert np.average(losses, weights=counts) == pytest.approx(expected, rel=1e-12)
    assert counts == [2, 3, 7]
