"""Tables as people have them: prepared, learnt, and equal to scikit-learn's models."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedtrellis
import sim
from fedtrellis.app.command_line import read_config
from fedtrellis.command_line import main
from fedtrellis.settings import SettingsError
from fedtrellis.tables import (
    Column,
    Preparation,
    agree,
    describe,
    expand,
    summarise,
)
from tasks.base import DataFileError
from tasks.data.readers import read_own_table
from tasks.data.table import Schema
from tasks.data.task import data_of
from tests.harness import not_daily, refused, run_app

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Columns of five scales and kinds, some cells missing; few rows of one class."""
    rng = np.random.default_rng(0)
    size = 240
    found = pd.DataFrame(
        {
            "dose": rng.normal(1e3, 50.0, size).round(3),
            "größe__cm": rng.normal(0.0, 1e-3, size).round(6),
            "colour": rng.choice(["A12", "010", "2.0"], size),
            "since": pd.to_datetime("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 900, size), "D"),
            "centre": np.where(np.arange(size) % 120 == 3, "far", "near"),
        }
    )
    score = (found["dose"] - 1e3) / 50 + (found["colour"] == "A12") - 2.0
    found["kind"] = np.where(score + rng.normal(0, 0.5, size) > 0, "yes", "no")
    found["price"] = (7.0 + 3.0 * score + rng.normal(0, 0.5, size)).round(4)
    found.loc[::19, "dose"] = np.nan
    return found


def label_of(task: str) -> str:
    return "price" if task in ("lasso", "linear-regression") else "kind"


def table_for(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    """Without the column that is another task's label."""
    return frame.drop(columns={"price": "kind", "kind": "price"}[label_of(task)])


def test_a_bad_row_is_refused_or_counted(tmp_path: Path, logged: list[str]) -> None:
    path = tmp_path / "odd.csv"
    lines = [f"{i},{i % 2}" for i in range(40)]
    lines[7], lines[30] = "SECRET,1", "3,"
    path.write_text("\n".join(["a,label", *lines]))
    schema = Schema(0, target="class")
    with pytest.raises(
        DataFileError, match=r"row 8, column 'a': .* data\.bad-rows"
    ) as e:
        read_own_table((schema, (5, "refuse")), path)
    assert "SECRET" not in str(e.value)
    for named, match in (("kind", "data.label-column names"), ("word", "no numbers")):
        path.with_name("other.csv").write_text("a,word\n" + "1,x\n2,y\n" * 5)
        other = Schema(0, target="number", label_column=named)
        with pytest.raises(DataFileError, match=match):
            read_own_table((other, (5, "drop")), path.with_name("other.csv"))
    table = read_own_table((schema, (5, "drop")), path)
    assert len(table.features) == len(table.targets) == 38
    assert "2 of 40 rows are left out" in " ".join(logged)


@pytest.mark.parametrize(
    ("text", "kind", "last"),
    [
        ("since,label\n" + "2020-01-01,1\n" * 20 + "9999-12-31,0\n", "date", 2932896),
        ("since,label\n" + "31.12.2020,1\n" * 20 + "2020-12-30,0\n", "date", 18626),
        ("dose;label\n" + "1,5;1\n" * 20 + "k.A.;0\n", "number", 1.5),
        ("dose,label\r" + "1.5,1\r" * 20 + "2.0,0", "number", 2.0),
    ],
)
def test_a_column_is_what_nearly_all_cells_are(
    tmp_path: Path, text: str, kind: str, last: float
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    table = read_own_table((Schema(0, target="class"), (5, "drop")), path)
    assert [column.kind for column in table.columns or ()] == [kind]
    assert table.features[-1] == last


def test_norms_count_rows_however_the_owners_weigh() -> None:
    A, y = np.random.default_rng(0).normal(3.0, 2.0, (60, 2)), np.zeros(60)
    found = [summarise(a, y[:20], np.full(20, 1 / 20)) for a in np.split(A, 3)]
    columns = [Column(name, "number") for name in "ab"]
    made = Preparation.of_owners(columns, found, "unit-columns", target="y")
    assert made is not None
    assert made.deviations == pytest.approx(np.linalg.norm(A, axis=0))


def run(
    folder: Path, frame: pd.DataFrame, task: str, *settings: str, **csv: Any
) -> Any:
    """Run the command on a table; the record that it left, read back."""
    path, out = folder / "table.csv", folder / "runs"
    table_for(frame, task).to_csv(path, index=False, **csv)
    words = f'task="{task}" {task}.dataset="file" {task}.path="{path}"'
    words += f' data.label-column="{label_of(task)}" picture=false '
    arguments = ["run", "--nodes", "4", "--out", str(out), "-c"]
    assert main([*arguments, words + " ".join(settings)]) == 0
    last = max(out.iterdir(), key=lambda record: record.stat().st_mtime_ns)
    return fedtrellis.load_run(last)


@pytest.mark.parametrize("task", ["lasso", "linear-regression"])
def test_a_regression_s_rows_by_a_column_by_the_target_and_in_uneven_shares(
    tmp_path: Path, frame: pd.DataFrame, task: str
) -> None:
    path = tmp_path / "table.csv"
    table_for(frame, task).to_csv(path, index=False)
    config = {"dataset": "file", "path": str(path)}

    def dealt(**settings: Any) -> Any:
        own = {f"{task}.{key.replace('_', '-')}": v for key, v in settings.items()}
        own |= {f"{task}.{key}": value for key, value in config.items()}
        own |= {"task": task, "method": "fedgia", "data.label-column": "price"}
        data = data_of(sim.app.experiment(own, 3).task)
        return data, [data.share(i) for i in range(3)]

    _, shares = dealt(sorted_by="price")
    for (_, lower), (_, upper) in pairwise(shares):
        assert max(lower) <= min(upper)
    data, shares = dealt(sorted_by="colour", uneven=True)
    places = [j for j, n in enumerate(data.preparation.names()) if "colour" in n]
    runs = np.diff(np.vstack([x for x, _ in shares])[:, places], axis=0).any(axis=1)
    assert runs.sum() == 2  # of three colours, one after the other
    sizes = [len(y) for _, y in shares]
    assert sum(sizes) == len(frame)
    assert max(sizes) > 1.5 * min(sizes)
    refused("'shade' is no column", lambda: dealt(sorted_by="shade"))


def test_what_is_worse_than_a_constant_is_warned_of(
    tmp_path: Path, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    poor = 'method="fedavg-gd" rounds=3 logistic-regression.intercept=false'
    made = run(tmp_path, frame, "logistic-regression", poor)
    lines = made.summary["warnings"]
    assert [line.split(",")[0] for line in lines] == ["the loss", "the accuracy"]
    assert "is below the most frequent class's" in lines[1]
    assert lines[1] in capsys.readouterr().out
    made = run(tmp_path, frame, "logistic-regression", 'method="fedgia"')
    assert "warnings" not in made.summary


NUMBERS, TEXTS = ["dose", "größe__cm", "since"], ["colour", "centre"]


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


FEDFW = 'method="fedfw" fedfw.tolerance=0.0'
SPLIT = (
    'method="hyfdca" hyfdca.tolerance=1e-12 rounds=300 hybrid-linear.test-fraction=0 '
    "hybrid-linear.regularization=0.02 hybrid-linear.least-entries=0 "
    'hybrid-linear.free-feature="bias" hybrid-linear.partition="horizontal"'
)
LOGISTIC_RUN = (
    f"{FEDFW} radius=40 rounds=100 logistic-regression.l2=0.02 "
    "logistic-regression.test-fraction=0"
)
MODELS = [
    ("logistic-regression", LOGISTIC_RUN),
    (
        "linear-regression",
        'method="fedgia" fedgia.tolerance=1e-20 rounds=300 '
        'linear-regression.weighting="examples"',
    ),
    ("hybrid-linear", SPLIT),
    ("lasso", f"{FEDFW} radius=20 rounds=200"),
]


@pytest.mark.parametrize(("task", "settings"), MODELS, ids=[m[0] for m in MODELS])
def test_a_record_predicts_as_scikit_learn_does(
    tmp_path: Path,
    frame: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
    task: str,
    settings: str,
) -> None:
    made = run(tmp_path, frame, task, settings, sep=";", decimal=",")
    model, new = made.model, tmp_path / "new.csv"
    known = features_of(frame)
    # codes that are numbers by themselves, and were texts
    rows = frame[frame["colour"] != "A12"].iloc[::7].drop(columns=["price", "kind"])
    rows.to_csv(new, index=False, sep=";")
    best: Any = LinearRegression()
    if label_of(task) == "kind":
        C = 1.0 / (0.02 * len(frame))
        best = LogisticRegression(C=C, tol=1e-13, max_iter=10**4)
    theirs = pipeline(best).fit(known, frame[label_of(task)])
    expected = theirs.predict(known.loc[rows.index])
    names = ["dose", "dose (missing)", "größe__cm", "colour=010", "colour=2"]
    names += ["colour=A12", "since", "centre=near", "centre=(other)"]
    assert list(model.preparation.names()) == names
    if label_of(task) == "price":  # in the target's units
        assert model.predict(new) == pytest.approx(expected, abs=1e-6)
        refused("gives no class a probability", lambda: model.predict_proba(new))
        return
    shares = theirs.predict_proba(known.loc[rows.index])
    assert model.predict_proba(rows) == pytest.approx(shares, abs=1e-6)
    assert model.predict(new).tolist() == expected.tolist()
    capsys.readouterr()
    assert main(["predict", str(made.directory), str(new)]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    found = printed["probability of yes"].to_numpy()
    assert found == pytest.approx(shares[:, 1], abs=1e-6)
    refused(r"^none.csv: there is no file$", lambda: model.predict("none.csv"))
    refused("007 is not 7", lambda: model.predict(rows.assign(colour=10)))
    with pytest.raises(SettingsError, match="the table has no column 'größe__cm'"):
        model.predict(rows.drop(columns="größe__cm"))
    # no row of the table is in the record
    text = (made.directory / "model.json").read_text()
    assert not any(f"{value}" in text for value in frame["größe__cm"])


@pytest.mark.parametrize("task", ["logistic-regression", *not_daily("lasso")])
def test_exports_stand_alone(tmp_path: Path, frame: pd.DataFrame, task: str) -> None:
    kept = frame.copy()
    kept.loc[::23, "since"] = pd.NaT
    kept["ward"], kept["number"] = np.arange(len(kept)) % 4, np.arange(len(kept))
    kept.insert(0, "count", np.arange(len(kept)) % 7)
    kinds = 'data.categories="ward" data.drop="number"'
    made = run(tmp_path, kept, task, f"{FEDFW} radius=20 rounds=20 {kinds}")
    model, record = made.model, str(made.directory)
    assert model.preparation.names()[-4:] == ("ward=0", "ward=1", "ward=2", "ward=3")
    rows = kept.drop(columns=["price", "kind", "number"])
    rows["since"] = rows["since"].dt.strftime("%Y-%m-%d")
    rows["colour"] = rows["colour"].replace("A12", " A12 ")
    rows.loc[5, "colour"] = "violet"
    out = str(tmp_path / "model")
    assert main(["export", record, "--to", "sklearn", "--out", out]) == 0
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
    assert main(["export", record, "--to", "npz", "--out", out + ".npz"]) == 0
    preparation = model.preparation
    features = expand(preparation.columns, rows)
    filled = np.where(np.isnan(features), preparation.means, features)
    with np.load(out + ".npz") as arrays:
        assert arrays["features"].tolist() == list(preparation.names())
        scores = filled @ arrays["coef"] + arrays["intercept"]
    assert scores == pytest.approx(model.scores(rows), abs=1e-8)
    assert main(["export", record, "--to", "onnx", "--out", out + ".onnx"]) == 0
    days = pd.to_datetime(rows["since"]) - pd.Timestamp(0)
    given = rows.assign(since=days / pd.Timedelta(days=1), ward=rows["ward"].map(str))
    given["colour"] = given["colour"].replace({"2.0": "2", " A12 ": "A12"})
    texts = [*TEXTS, "ward"]
    inputs = {
        name: given[[name]].to_numpy(object if name in texts else np.float64)
        for name in given
    }
    outputs = onnxruntime.InferenceSession(out + ".onnx").run(None, inputs)
    if task == "lasso":
        assert outputs[0] == pytest.approx(expected, rel=1e-9)
    else:
        assert outputs[0] == pytest.approx(shares, abs=1e-9)
        assert outputs[1].tolist() == expected.tolist()


def test_a_network_leaves_as_a_state_dict_and_a_graph(tmp_path: Path) -> None:
    words = 'task="characters" characters.train-passages=40 rounds=1 picture=false'
    words += ' characters.test-passages=8 method="fedavg-gd" fedavg-gd.step-size=0.1'
    out = str(tmp_path / "model")
    assert main(["run", "--nodes", "4", "--out", str(tmp_path), "-c", words]) == 0
    (record,) = (str(path.parent) for path in tmp_path.glob("*/model.npz"))
    assert main(["export", record, "--to", "torch", "--out", out + ".pt"]) == 0
    assert main(["export", record, "--to", "onnx", "--out", out + ".onnx"]) == 0
    made = sim.app.experiment(fedtrellis.load_run(record).settings, 4)
    module, _ = made.task.network()
    module.load_state_dict(torch.load(out + ".pt"))
    data = data_of(made.task)
    inputs, targets = map(torch.tensor, (data.features, data.targets))
    scores = module.eval()(inputs)
    loss = torch.nn.functional.cross_entropy(scores, targets).item()
    model: Any = fedtrellis.load_run(record).model
    assert loss == pytest.approx(made.task.value(list(model.values())), rel=1e-6)
    session = onnxruntime.InferenceSession(out + ".onnx")
    (found,) = session.run(None, {"inputs": data.features})
    assert found == pytest.approx(scores.detach().numpy(), abs=1e-6)


def test_a_matrix_leaves_as_factors_or_a_permutation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, csv = np.random.default_rng(0), tmp_path / "ratings.csv"
    cells = [(i, j) for i in range(1, 13) for j in range(1, 9) if (i * j) % 3]
    ratings = pd.DataFrame(cells, columns=["user", "item"])
    ratings.assign(rating=rng.integers(1, 6, len(cells)), day="today").to_csv(
        csv, index=False
    )
    completion = f'radius=20 matrix-completion.path="{csv}"'
    more = {"matrix-completion": f"{completion} matrix-completion.centred=true"}
    for task in ("matrix-completion", "quadratic-assignment"):
        words = f'task="{task}" rounds=2 picture=false {more.get(task, "")}'
        folder = tmp_path / task
        assert main(["run", "--nodes", "4", "--out", str(folder), "-c", words]) == 0
        (record,) = map(str, folder.iterdir())
        out = str(tmp_path / f"{task}.npz")
        assert main(["export", record, "--to", "npz", "--out", out]) == 0
        model: Any = fedtrellis.load_run(record).model
        (X,) = model.values()
        with np.load(out) as parts:
            if task == "matrix-completion":
                assert parts["left"] @ parts["right"].T == pytest.approx(X)
                assert X.shape == (11, 8)
                data = data_of(sim.app.experiment(read_config([words]), 4).task)
                whole = data.targets + parts["mean"]
                assert whole == pytest.approx(whole.round(), abs=1e-9)
                assert parts["left"].shape[1] == np.linalg.matrix_rank(X)
            else:
                assert sorted(parts["permutation"]) == list(range(12))
                instance = sim.app.experiment({"task": task}, 4).task.instance()
                p = parts["permutation"]
                cost = np.sum(instance.A * instance.B[np.ix_(p, p)])
                assert parts["cost"] == cost
    for to, why in (("torch", "is for networks"), ("sklearn", "say what a row is")):
        assert main(["export", record, "--to", to, "--out", out]) == 1
        assert why in capsys.readouterr().err


def run_on_nodes(
    folder: Path, frame: pd.DataFrame, config: dict[str, Any], **faults: Any
) -> Any:
    """Unequal parts, each in its own columns' order."""
    task, nodes = config["task"], []
    for number, rows in enumerate(np.split(np.arange(len(frame)), [100, 180])):
        part = table_for(frame, task).iloc[rows]
        path = folder / f"{number}.csv"
        columns = sorted(part, reverse=number == 1)
        part[columns].to_csv(path, index=False, sep=",;\t"[number])
        nodes.append({"client-id": str(number), "data": str(path)})
    config = config | {f"{task}.dataset": "nodes", "data.label-column": label_of(task)}
    config = {"min-nodes": 3, "picture": False, "data.examples": len(frame)} | config
    record = run_app(config, 3, folder / "nodes", node_configs=nodes, **faults)
    return fedtrellis.load_run(record)


@pytest.mark.parametrize("task", ["logistic-regression", *not_daily("lasso")])
def test_nodes_are_as_one_table(tmp_path: Path, frame: pd.DataFrame, task: str) -> None:
    settings = dict(MODELS)[task] + " data.least=3"
    frame = frame[sorted(frame)]
    config = {"task": task, **read_config([settings])}
    config.pop("logistic-regression.test-fraction", None)
    config |= {"data.labels": "no,yes"} if task != "lasso" else {}
    made = run_on_nodes(tmp_path, frame, config)
    model, own = made.model, run(tmp_path, frame, task, settings).model
    assert own.preparation.names() == model.preparation.names()
    assert own.preparation.means == pytest.approx(model.preparation.means)
    assert own.preparation.deviations == pytest.approx(model.preparation.deviations)
    assert model.scores(frame) == pytest.approx(own.scores(frame), abs=1e-5)
    assert "warnings" not in made.summary


def test_a_node_that_forgot_is_sent_anew(tmp_path: Path, frame: pd.DataFrame) -> None:
    config = {"method": "fedgia", "task": "linear-regression", "rounds": 6}
    summary = run_on_nodes(tmp_path, frame, config, wipe=0.5).summary
    assert summary["used"] == 18
    assert not summary["rejected"]


def test_what_one_owner_alone_has(
    tmp_path: Path, frame: pd.DataFrame, logged: list[str]
) -> None:
    """Texts beside digits are categories, a bad date costs a row, names have order."""
    kept = frame.astype({"since": str})
    kept["grade"] = np.where(np.arange(240) < 180, np.arange(240) % 2, -1).astype(str)
    kept["grade"] = kept["grade"].replace("-1", "x")
    kept.loc[7, "since"] = "unknown"
    config = {"method": "fedgia", "task": "linear-regression", "rounds": 2}
    more = {"data.bad-rows": "drop", "data.feature-names": "since,grade,dose"}
    config |= {"data.examples": 239, "data.least": 2}
    columns = ["dose", "grade", "kind", "price", "since"]
    made = run_on_nodes(tmp_path, kept[columns], {**config, **more})
    two = config | {"data.examples": 0, "min-nodes": 2}  # which say so
    assert run_on_nodes(tmp_path, kept[columns], two).summary["clients"] == 2
    assert any(re.search("prepared without node .*row 8", line) for line in logged)
    names = made.model.preparation.names()
    assert names[:2] == ("since", "grade=0")
    assert names[-1].startswith("dose")


def test_nodes_with_keys_keep_their_means(tmp_path: Path, frame: pd.DataFrame) -> None:
    """A node with a key says nothing of its columns."""
    plain = frame[["dose", "größe__cm", "price"]].dropna()
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
    assert set(said()["columns"]) == {"dose", "größe__cm"}
    own = [describe(frame[[]].assign(since=day), 5) for day in ("2020-12-31", np.nan)]
    assert agree(own, 5)[0][0].kind == "date"  # one owner's column is empty
    # what four rows have is nobody's to know: least is 5
    plain[:4].to_csv(path, index=False)
    asked["asked"] = json.dumps([asdict(Column("dose", "number"))])
    found = said()
    assert not np.any(found["moments"])
    assert not np.any(found["targets"])
