"""Tables as people have them: prepared, learnt, and equal to scikit-learn's models."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedtrellis
import sim
from fedtrellis.command_line import main
from fedtrellis.settings import SettingsError
from fedtrellis.tables import Column, expand
from tasks.base import DataFileError
from tasks.data.readers import read_own_table
from tasks.data.table import Schema
from tasks.data.task import data_of
from tests.harness import run_app

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Columns of five scales and kinds, some cells missing; few rows of one class."""
    rng = np.random.default_rng(0)
    size = 240
    found = pd.DataFrame(
        {
            "dose": rng.normal(1e3, 50.0, size).round(3),
            "small": rng.normal(0.0, 1e-3, size).round(6),
            "colour": rng.choice(["red", "green", "blue"], size),
            "since": pd.to_datetime("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 900, size), "D"),
            "centre": np.where(np.arange(size) % 120 == 3, "far", "near"),
        }
    )
    score = (found["dose"] - 1e3) / 50 + (found["colour"] == "red") - 2.0
    found["kind"] = np.where(score + rng.normal(0, 0.5, size) > 0, "yes", "no")
    found["price"] = (7.0 + 3.0 * score + rng.normal(0, 0.5, size)).round(4)
    found.loc[::19, "dose"] = np.nan
    return found


def experiment(path: Path, task: str, method: str, **settings: Any) -> Any:
    label = "kind" if task == "logistic-regression" else "price"
    config = {
        "method": method,
        "task": task,
        "rounds": 300,
        f"{task}.dataset": "file",
        f"{task}.path": str(path),
        "data.label-column": label,
        **settings,
    }
    return sim.app.experiment(config, 4)


LOGISTIC = {
    "logistic-regression.test-fraction": 0.0,
    "logistic-regression.l2": 0.01,
}
CASES = [
    ("logistic-regression", "fedgia", {**LOGISTIC, "fedgia.tolerance": 1e-20}),
    ("logistic-regression", "fedfw", {**LOGISTIC, "radius": 50.0, "rounds": 80}),
    (
        "linear-regression",
        "fedgia",
        {"fedgia.tolerance": 1e-20, "linear-regression.weighting": "examples"},
    ),
    ("lasso", "fedfw", {"radius": 1e3, "rounds": 80}),
]


@pytest.mark.parametrize(("task", "method", "settings"), CASES)
def test_raw_and_standardised_columns_end_in_scikit_learns_model(
    tmp_path: Path,
    frame: pd.DataFrame,
    task: str,
    method: str,
    settings: dict[str, Any],
) -> None:
    columns = ["dose", "small"]
    own = frame[[*columns, "kind" if task == "logistic-regression" else "price"]]
    own = own.dropna()
    hand = own.copy()
    hand[columns] = (own[columns] - own[columns].mean()) / own[columns].std(ddof=0)
    found = []
    for name, table in (("raw", own), ("hand", hand)):
        path = tmp_path / f"{name}.csv"
        table.to_csv(path, index=False)
        made = experiment(path, task, method, **settings)
        arrays = made.start().arrays
        found.append((arrays.to_numpy_ndarrays()[0], made.evaluate(arrays)["loss"]))
    (x, loss), (again, same) = found
    assert x == pytest.approx(again, abs=1e-6)
    assert loss == pytest.approx(same, rel=1e-9)
    Z, y = hand[columns].to_numpy(), hand.iloc[:, -1].to_numpy()
    if task == "logistic-regression":
        best = LogisticRegression(C=1.0 / (0.01 * len(y)), tol=1e-12).fit(Z, y)
        assert x == pytest.approx([*best.coef_[0], *best.intercept_], abs=1e-4)
    else:
        # the target is centred: F shows no intercept
        best = LinearRegression().fit(Z, y)
        assert x == pytest.approx(best.coef_, abs=1e-5)


def test_columns_of_every_kind_make_features(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    path = tmp_path / "table.csv"
    frame.drop(columns="price").to_csv(path, index=False, sep=";", decimal=",")
    task = experiment(path, "logistic-regression", "fedgia", **LOGISTIC).task
    data = data_of(task)
    found = data.preparation
    assert found is not None
    names = ["dose", "dose (missing)", "small", "colour=blue", "colour=green"]
    names += ["colour=red", "since", "centre=near", "centre=(other)"]
    assert list(found.names()) == names
    assert found.classes == ("no", "yes")
    assert task.shapes() == [(10,)]
    rows = found.transform(path)
    assert data.features.mean(axis=0) == pytest.approx(np.zeros(9), abs=1e-12)
    assert data.features.std(axis=0)[1:] == pytest.approx(np.ones(8))
    dealt = np.sort(data.features, axis=0)
    np.testing.assert_allclose(np.sort(rows, axis=0), dealt, atol=1e-12)
    days = (frame["since"] - pd.Timestamp(0)).dt.days.to_numpy()
    assert rows[:, 6] == pytest.approx((days - days.mean()) / days.std())
    assert (rows[::19, 0] == 0.0).all()


def test_a_bad_row_is_refused_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "odd.csv"
    lines = [f"{i},{i % 2}" for i in range(40)]
    lines[7], lines[30] = "SECRET,1", "3,"
    path.write_text("\n".join(["a,label", *lines]))
    schema = Schema(0, target="class")
    with pytest.raises(
        DataFileError, match=r"row 8, column 'a': .* data\.bad-rows"
    ) as e:
        read_own_table((schema, 5, "refuse"), path)
    assert "SECRET" not in str(e.value)
    with caplog.at_level("INFO", logger="flwr"):
        table = read_own_table((schema, 5, "drop"), path)
    assert len(table.features) == len(table.targets) == 38
    assert "2 of 40 rows are left out" in caplog.text


def run(path: Path, task: str, out: Path, *settings: str) -> Path:
    """Run the command on a table; the record that it left."""
    label = "kind" if task == "logistic-regression" else "price"
    words = f'task="{task}" {task}.dataset="file" {task}.path="{path}"'
    words += f' data.label-column="{label}" picture=false '
    arguments = ["run", "--nodes", "4", "--out", str(out), "-c"]
    assert main([*arguments, words + " ".join(settings)]) == 0
    return max(out.iterdir(), key=lambda record: record.stat().st_mtime_ns)


def test_what_is_worse_than_a_constant_is_warned_of(
    tmp_path: Path, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    frame.drop(columns="price").to_csv(path, index=False)
    poor = 'method="fedavg-gd" rounds=3 logistic-regression.intercept=false'
    record = run(path, "logistic-regression", tmp_path / "runs", poor)
    lines = json.loads((record / "summary.json").read_text())["warnings"]
    assert [line.split(",")[0] for line in lines] == ["the loss", "the accuracy"]
    assert "is below the most frequent class's" in lines[1]
    assert lines[1] in capsys.readouterr().out
    record = run(path, "logistic-regression", tmp_path / "runs", 'method="fedgia"')
    assert "warnings" not in json.loads((record / "summary.json").read_text())


NUMBERS, TEXTS = ["dose", "small", "since"], ["colour", "centre"]


def features_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as days; of two centres the far one is too rare to be a category."""
    days = (frame["since"] - pd.Timestamp(0)).dt.days
    near = frame["centre"].where(frame["centre"] == "near", "(other)")
    return frame.assign(since=days, centre=near)


def pipeline(model: Any) -> Any:
    """scikit-learn's standard way to the same features."""
    parts = [
        ("numbers", "passthrough", NUMBERS),
        ("missing", MissingIndicator(), ["dose"]),
        ("texts", OneHotEncoder(sparse_output=False), TEXTS),
    ]
    filled = SimpleImputer(strategy="constant", fill_value=0.0)
    return make_pipeline(ColumnTransformer(parts), StandardScaler(), filled, model)


def test_a_record_predicts_as_scikit_learn_does(
    tmp_path: Path, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    path, new = tmp_path / "table.csv", tmp_path / "new.csv"
    frame.drop(columns="price").to_csv(path, index=False, sep="\t")
    known = features_of(frame)
    rows = frame.iloc[::7].drop(columns=["price", "kind"])
    rows.to_csv(new, index=False)
    method = 'method="fedfw" fedfw.tolerance=0.0 radius=40 rounds=100 '
    method += "logistic-regression.l2=0.02 "
    method += "logistic-regression.test-fraction=0"
    record = run(path, "logistic-regression", tmp_path / "runs", method)
    model = fedtrellis.load_run(record).model
    assert model is not None
    best = LogisticRegression(C=1.0 / (0.02 * len(frame)), tol=1e-13, max_iter=10**4)
    theirs = pipeline(best).fit(known, frame["kind"])
    shares = theirs.predict_proba(known.iloc[::7])
    assert model.predict_proba(rows) == pytest.approx(shares, abs=1e-6)
    assert model.predict(new).tolist() == theirs.predict(known.iloc[::7]).tolist()
    capsys.readouterr()
    assert main(["predict", str(record), str(new)]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert printed["probability of yes"].to_numpy() == pytest.approx(
        shares[:, 1], abs=1e-6
    )
    with pytest.raises(SettingsError, match="the table has no column 'small'"):
        model.predict(rows.drop(columns="small"))
    # no row of the table is in the record
    text = (record / "model.json").read_text()
    assert not any(f"{value}" in text for value in frame["small"])


def test_a_regression_predicts_in_the_target_s_units(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    path = tmp_path / "table.csv"
    frame.drop(columns="kind").to_csv(path, index=False)
    record = run(
        path,
        "lasso",
        tmp_path / "runs",
        'method="fedfw" fedfw.tolerance=0.0 radius=20 rounds=200',
    )
    model = fedtrellis.load_run(record).model
    assert model is not None
    theirs = pipeline(LinearRegression()).fit(features_of(frame), frame["price"])
    expected = theirs.predict(features_of(frame))
    assert model.predict(path) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(SettingsError, match="gives no class a probability"):
        model.predict_proba(path)


def test_split_data_is_prepared_and_predicts(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    path = tmp_path / "table.csv"
    frame.drop(columns="price").to_csv(path, index=False)
    own = "hybrid-linear.test-fraction=0 hybrid-linear.regularization=0.05 rounds=300"
    own += ' method="hyfdca" hybrid-linear.least-entries=0 data.label-column="kind"'
    own += ' hybrid-linear.free-feature="bias" hyfdca.tolerance=1e-12'
    own += ' hybrid-linear.partition="horizontal"'
    record = run(path, "hybrid-linear", tmp_path / "runs", own)
    model = fedtrellis.load_run(record).model
    assert model is not None
    best = LogisticRegression(C=1.0 / (0.05 * len(frame)), tol=1e-13, max_iter=10**4)
    theirs = pipeline(best).fit(features_of(frame), frame["kind"])
    shares = theirs.predict_proba(features_of(frame))
    assert model.predict_proba(path) == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize("task", ["logistic-regression", "lasso"])
def test_an_export_needs_nothing_of_ours(
    tmp_path: Path, frame: pd.DataFrame, task: str
) -> None:
    path, label = tmp_path / "table.csv", "price" if task == "lasso" else "kind"
    kept = frame[["dose", "small", "since", "colour", "centre", label]].copy()
    kept.loc[::23, "since"] = pd.NaT
    kept.to_csv(path, index=False)
    settings = 'method="fedfw" fedfw.tolerance=0.0 radius=20 rounds=20'
    record = run(path, task, tmp_path / "runs", settings)
    model = fedtrellis.load_run(record).model
    assert model is not None
    rows = kept.drop(columns=label)
    rows["since"] = rows["since"].dt.strftime("%Y-%m-%d")
    rows.loc[5, "colour"] = "violet"
    out = str(tmp_path / "model")
    assert main(["export", str(record), "--to", "sklearn", "--out", out]) == 0
    script = "import sys, joblib, pandas as pd; sys.modules['fedtrellis'] = None\n"
    script += f"m = joblib.load({out!r}); x = pd.read_pickle({out + '.rows'!r})\n"
    script += f"pd.Series(m.predict(x)).to_pickle({out + '.found'!r})"
    rows.to_pickle(out + ".rows")
    subprocess.run([sys.executable, "-c", script], check=True)
    found, expected = pd.read_pickle(out + ".found"), model.predict(rows)
    if task == "lasso":
        assert found.to_numpy() == pytest.approx(expected, rel=1e-9)
    else:
        assert found.tolist() == expected.tolist()
        shares = joblib.load(out).predict_proba(rows)
        assert shares == pytest.approx(model.predict_proba(rows), abs=1e-9)
    assert main(["export", str(record), "--to", "npz", "--out", out + ".npz"]) == 0
    with np.load(out + ".npz") as arrays:
        w, b = arrays["coef"], arrays["intercept"]
        assert arrays["features"].tolist() == list(model.preparation.names())
    made = model.preparation
    features = expand(made.columns, rows)
    filled = np.where(np.isnan(features), made.means, features)
    assert filled @ w + b == pytest.approx(model.scores(rows), abs=1e-8)


def run_on_nodes(
    frame: pd.DataFrame, task: str, out: Path, *settings: str, node: str = ""
) -> Path:
    """Run on three nodes of unequal parts, each in its own columns' order."""
    label = "kind" if task == "logistic-regression" else "price"
    other = {"kind": "price", "price": "kind"}[label]
    out.mkdir()
    for number, rows in enumerate(np.split(np.arange(len(frame)), [100, 180])):
        part = frame.drop(columns=other).iloc[rows]
        shown = part[sorted(part, reverse=number == 1)]
        shown.to_csv(out / f"{number}.csv", index=False, sep=",;\t"[number])
    words = f'task="{task}" {task}.dataset="nodes" data.label-column="{label}" '
    words += f"picture=false min-nodes=3 data.examples={len(frame)} "
    words += 'data.labels="no,yes" ' if label == "kind" else ""
    files = f'data="{out}/{{partition}}.csv" {node}'
    arguments = ["--nodes", "3", "--node-config", files, "--out", str(out / "runs")]
    assert main(["run", *arguments, "-c", words + " ".join(settings)]) == 0
    (record,) = (out / "runs").iterdir()
    return record


@pytest.mark.parametrize(
    ("task", "method"),
    [
        (
            "logistic-regression",
            'method="fedfw" fedfw.tolerance=0.0 radius=40 rounds=100 '
            "logistic-regression.l2=0.02",
        ),
        ("lasso", 'method="fedfw" fedfw.tolerance=0.0 radius=20 rounds=150'),
    ],
)
def test_nodes_agree_on_what_one_table_has(
    tmp_path: Path, frame: pd.DataFrame, task: str, method: str
) -> None:
    method += " data.least=3"
    frame = frame[sorted(frame)]
    record = run_on_nodes(frame, task, tmp_path / "nodes", method)
    model = fedtrellis.load_run(record).model
    assert model is not None
    path = tmp_path / "table.csv"
    frame.drop(columns="price" if task != "lasso" else "kind").to_csv(path, index=False)
    if task != "lasso":
        method += " logistic-regression.test-fraction=0"
    own = fedtrellis.load_run(run(path, task, tmp_path / "runs", method)).model
    assert own is not None
    assert own.preparation.names() == model.preparation.names()
    assert own.preparation.means == pytest.approx(model.preparation.means)
    assert own.preparation.deviations == pytest.approx(model.preparation.deviations)
    assert model.scores(frame) == pytest.approx(own.scores(frame), abs=1e-5)
    assert "warnings" not in json.loads((record / "summary.json").read_text())


@pytest.mark.parametrize("method", ["fedavg-gd", "fedgia"])
def test_a_node_that_lost_its_memory_is_told_again(
    tmp_path: Path, frame: pd.DataFrame, method: str
) -> None:
    nodes = []
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), 3)):
        path = tmp_path / f"{number}.csv"
        frame.drop(columns="kind").iloc[rows].to_csv(path, index=False)
        nodes.append({"client-id": str(number), "data": str(path)})
    config = {"method": method, "task": "linear-regression", "rounds": 6}
    config |= {"linear-regression.dataset": "nodes", "data.label-column": "price"}
    config |= {"min-nodes": 3, "picture": False}
    record = run_app(config, 3, tmp_path, node_configs=nodes, wipe=0.5)
    summary = fedtrellis.load_run(record).summary
    assert summary["used"] == 18
    assert not summary["rejected"]


def test_nodes_with_keys_keep_their_means(tmp_path: Path, frame: pd.DataFrame) -> None:
    """A node with a key says nothing of its columns."""
    plain = frame[["dose", "small", "price"]].dropna()
    asked: Any = {"asked": ""}
    plain.to_csv(path := tmp_path / "a.csv", index=False)
    node: Any = {"data": str(path), "client-id": "a", "key-file": "/keys"}
    config: Any = {"task": "lasso", "lasso.dataset": "nodes"}
    config["data.label-column"] = "price"
    context = Context(1, 1, node, RecordDict(), config)

    def said() -> Any:
        records: Any = {"config": ConfigRecord(asked)}
        message = Message(RecordDict(records), 1, "query.table")
        record: Any = sim.app.client_app(message, context).content["config"]
        return json.loads(record["table"])

    assert said() is None
    del node["key-file"]
    assert set(said()["columns"]) == {"dose", "small"}
    # what four rows have is nobody's to know: least is 5
    plain[:4].to_csv(path, index=False)
    asked["asked"] = json.dumps([asdict(Column("dose", "number"))])
    found = said()
    assert not np.any(found["moments"])
    assert not np.any(found["targets"])
