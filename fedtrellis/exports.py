"""A run's model in forms that need nothing of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.app.application import installed_app
from fedtrellis.settings import SettingsError, need
from fedtrellis.tables import SHARES, Array, Column, TableModel

#: What a model can be written as, and the file's name by default: a pipeline that
#: joblib loads; a graph for ONNX Runtime; a network's state dict; arrays.
EXPORTS = {
    "sklearn": "model.joblib",
    "onnx": "model.onnx",
    "torch": "model.pt",
    "npz": "model-in-units.npz",
}


def export(
    model: TableModel, settings: Mapping[str, Any], to: str, path: str | Path
) -> None:
    """Write a run's model, by the run's settings, as one of :data:`EXPORTS`.

    SettingsError: it cannot be had so, and why.
    """
    registry = installed_app().registry
    config = {**registry.defaults, **settings}
    task = registry.choose("task", config["task"]).from_config(config, 1, 0)
    network: Any = None if model.known else task.network()
    if to == "torch" or (to == "onnx" and network is not None):
        if network is None:
            raise SettingsError("an export to PyTorch is for networks")
        _network(network[0], network[1], model, to, path)
    elif to == "npz":
        if not model.known:
            parts = {**task.parts(model), **model.about}
        else:
            w, b = model.linear()
            parts = {"coef": w, "intercept": b, "classes": model.classes}
            parts["features"] = np.array(model.preparation.names())
        with Path(path).open("wb") as file:
            np.savez(file, **parts)
    elif to == "onnx":
        need("onnx", "an export to ONNX", "onnx")
        import onnx

        onnx.save(graph(model), path)
    else:
        made = pipeline(model)
        import joblib  # scikit-learn's

        joblib.dump(made, path)


def _network(
    module: Any, example: Any, model: Mapping[str, Any], to: str, path: str | Path
) -> None:
    """Write a module, with these parameters, or its graph for such an example."""
    import torch

    for parameter, array in zip(module.parameters(), model.values(), strict=True):
        parameter.data = torch.tensor(array, dtype=parameter.dtype)
    if to == "torch":
        torch.save(module.state_dict(), path)
        return
    need("onnxscript", "an export to ONNX", "onnx")
    names: Any = {"input_names": ["inputs"], "output_names": ["scores"]}
    any_number = ({0: torch.export.Dim("examples")},)
    torch.onnx.export(
        module.eval(), (example,), path, **names, dynamic_shapes=any_number
    )


def _parts(model: TableModel) -> tuple[list[tuple[Column, Array, float]], Any]:
    """The columns in the table's units, and the intercept.

    With each come the weights of its features, (k,) or (k, C), and what a missing
    number becomes. What is none of its categories has none of their features here.
    """
    (w, b), made = model.linear(), model.preparation
    ends = np.cumsum([len(column.features()) for column in made.columns])[:-1]
    means, parts = np.split(np.array(made.means), ends), []
    for column, part, mean in zip(made.columns, np.split(w, ends), means, strict=True):
        if column.other:
            b, part = b + part[-1], part[:-1] - part[-1]
        parts.append((column, part, float(mean[0])))
    return parts, b


def graph(model: TableModel) -> Any:
    """Return an ``onnx.ModelProto`` that predicts the same, in float64.

    Its inputs are the table's columns, each of shape (d, 1): numbers, NaN where one is
    missing, dates as days since 1970, and categories as texts. Its outputs are
    ``prediction``, (d,), and for classes with shares ``probabilities``, (d, C).
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    parts, b = _parts(model)
    make_info: Any = helper.make_tensor_value_info
    nodes, inputs, constants = list[Any](), list[Any](), list[Any]()

    def call(kind: str, *given: str, domain: str = "", **more: Any) -> str:
        name = f"{kind}-{len(nodes)}"
        nodes.append(helper.make_node(kind, given, [name], domain=domain, **more))
        return name

    def constant(value: Any) -> str:
        name = f"constant-{len(constants)}"
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    features, double = list[str](), TensorProto.DOUBLE
    for column, part, mean in parts:
        texts = column.kind == "category"
        kind = TensorProto.STRING if texts else double
        inputs.append(make_info(column.name, kind, ["examples", 1]))
        if texts:
            known = {"cats_strings": column.categories, "zeros": 1}
            one = call("OneHotEncoder", column.name, domain="ai.onnx.ml", **known)
            flat = call("Reshape", one, constant([-1, len(part)]))
            features.append(call("Cast", flat, to=double))
            continue
        gone = call("IsNaN", column.name)
        features.append(call("Where", gone, constant(mean), column.name))
        features += [call("Cast", gone, to=double)] * column.missing
    weights = np.concatenate([weights for _, weights, _ in parts])
    product = call("MatMul", call("Concat", *features, axis=1), constant(weights))
    scores, outputs = call("Add", product, constant(b)), dict[str, str]()
    labels = model.classes
    classes = labels.astype(object) if labels.dtype.kind == "U" else labels
    if model.loss == "poisson":
        scores = call("Exp", scores)
    if len(classes):
        if weights.ndim == 1:
            # 1/(1 + exp(−s)) is the softmax of −s/2 and s/2
            halves = constant([[-0.5, 0.5]])
            scores = call("Mul", call("Unsqueeze", scores, constant([1])), halves)
        if model.loss in SHARES:
            outputs[call("Softmax", scores, axis=1)] = "probabilities"
        chosen = call("ArgMax", scores, axis=1, keepdims=0)
        scores = call("Gather", constant(classes), chosen)
    outputs[scores] = "prediction"
    label = numpy_helper.from_array(classes).data_type if len(classes) else double
    about: dict[str, tuple[int, list[Any]]] = {
        "probabilities": (double, ["examples", len(classes)]),
        "prediction": (label, ["examples"]),
    }
    shown = [make_info(name, *about[name]) for name in outputs.values()]
    nodes += [helper.make_node("Identity", [a], [n]) for a, n in outputs.items()]
    made = helper.make_graph(nodes, "model", inputs, shown, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    whole = helper.make_model(made, opset_imports=opsets, ir_version=9)
    checker.check_model(whole)
    return whole


def pipeline(model: TableModel) -> Any:
    """Return a pipeline of scikit-learn that predicts the same of data frames.

    It takes dates as ISO 8601 has them. SettingsError: scikit-learn has no such model.
    """
    for module in ("pandas", "sklearn"):
        need(module, "an export to scikit-learn", "data")
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    frame, epoch = pd.DataFrame, pd.Timestamp(0, tz="UTC").as_unit("us")
    iso: Any = {"func": pd.to_datetime, "format": "ISO8601", "utc": True}

    def step(act: Any, **given: Any) -> Any:
        return FunctionTransformer(act, kw_args=given)

    days = [
        *(step(frame.apply, **iso), step(frame.sub, other=epoch)),
        step(frame.div, other=pd.Timedelta(days=1).as_unit("us")),
    ]
    # without blanks around, and whole numbers without a point, as categories are
    texts = [step(frame.convert_dtypes), step(frame.astype, dtype=str)]
    for old, new in ((r"^\s+|\s+$", ""), (r"^([-+]?\d+)\.0+$", r"\1")):
        texts.append(step(frame.replace, to_replace=old, value=new, regex=True))
    parts, b = _parts(model)
    if model.loss not in ("squared", *SHARES):
        why = f"the loss is {model.loss}"
        raise SettingsError(f"scikit-learn has no such model: {why}")
    steps: list[tuple[str, Any, list[str]]] = []
    example: dict[str, list[Any]] = {}
    for column, _, mean in parts:
        name, makers = column.name, list[Any]()
        if column.kind == "category":
            known: Any = [list(column.categories)]
            more: Any = {"handle_unknown": "ignore", "sparse_output": False}
            makers.append(
                make_pipeline(*texts, OneHotEncoder(categories=known, **more))
            )
            example[name] = [column.categories[0]]
        else:
            dated = days if column.kind == "date" else [step(frame.astype, dtype=float)]
            filled = SimpleImputer(strategy="constant", fill_value=mean)
            gone = [MissingIndicator(features="all")] * column.missing
            makers += [make_pipeline(*dated, last) for last in (filled, *gone)]
            example[name] = ["2020-01-01"] if column.kind == "date" else [mean]
        # a column's name may have "__", which those of steps must not
        steps += [(str(len(steps) + k), m, [name]) for k, m in enumerate(makers)]
    regression = model.loss == "squared"
    linear = LinearRegression() if regression else LogisticRegression()
    w = np.concatenate([weights for _, weights, _ in parts])
    linear.coef_ = w if regression else np.atleast_2d(w.T)
    linear.intercept_ = b if regression else np.atleast_1d(b)
    linear.n_features_in_ = len(w)
    if not regression:
        linear.classes_ = model.classes
    # nothing is learnt: categories and values to fill in are given
    columns = ColumnTransformer(steps).fit(pd.DataFrame(example))
    return Pipeline([("columns", columns), ("model", linear)])
