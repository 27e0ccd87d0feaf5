"""The attack on a model in an ONNX file, which is made here."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.objectives.demonstrations import OnnxClassifier, PerceptronClassifier
from fedtrellis.settings import SettingsError
from tasks import Attack
from tasks.attack import _ARRAYS, _digits_classifier, _images
from tests.harness import run_app
from tests.tasks.data.node_files import refused

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def write(
    path: Path,
    classifier: PerceptronClassifier,
    shape: Sequence[Any] = ("n", 8, 8),
    *,
    softmax: bool = False,
    output: Sequence[Any] = ("n", 10),
) -> Path:
    """Write a perceptron down as ONNX has it: Flatten, MatMul, Add, Relu, and so on."""
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    nodes, tensors = [helper.make_node("Flatten", ["x"], ["0"])], []
    weights = list(zip(classifier._weights, classifier._biases, strict=True))
    for k, (weight, bias) in enumerate(weights):
        for name, array in ((f"w{k}", weight), (f"b{k}", bias)):
            tensors.append(
                helper.make_tensor(name, real, array.shape, array.ravel().tolist())
            )
        nodes.append(helper.make_node("MatMul", [str(k), f"w{k}"], [f"p{k}"]))
        last = k == len(weights) - 1
        after = "z" if last else f"s{k}"
        nodes.append(helper.make_node("Add", [f"p{k}", f"b{k}"], [after]))
        if not last:
            nodes.append(helper.make_node("Relu", [after], [str(k + 1)]))
    if softmax:
        nodes.append(helper.make_node("Softmax", ["z"], ["q"], axis=1))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", real, list(shape))],
        [helper.make_tensor_value_info("q" if softmax else "z", real, list(output))],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


NO_MODEL: list[tuple[str, bytes, str]] = [
    ("m.onnx", b"nothing of the kind", "is no ONNX model that can be run"),
    ("weights.npz", b"", r"must name an ONNX model, FILE.onnx"),
]


@pytest.mark.parametrize("shape", [("n", 8, 8), ("n", 1, 8, 8), ("n", 64), (7, 8, 8)])
def test_scores_are_those_of_the_same_network(
    tmp_path: Path, shape: Sequence[Any]
) -> None:
    own = _digits_classifier()
    made = OnnxClassifier(write(tmp_path / "m.onnx", own, shape), (8, 8))
    images = _images("digits").features[:300]
    assert made.logits(images) == pytest.approx(own.logits(images), abs=1e-4)
    softmax = write(tmp_path / "s.onnx", own, shape, softmax=True)
    logs = OnnxClassifier(softmax, (8, 8), "probabilities").logits(images[:5])
    assert np.diff(logs) == pytest.approx(np.diff(own.logits(images[:5])), abs=1e-3)


@pytest.mark.parametrize("dataset", ["digits", "file"])
def test_a_run_attacks_the_file(tmp_path: Path, dataset: str) -> None:
    path = write(tmp_path / "victim.onnx", _digits_classifier())
    found = _images("digits")
    images = tmp_path / "images.npz"
    arrays: Any = dict(zip(_ARRAYS, found, strict=False))
    np.savez(images, **arrays)
    config: dict[str, Any] = {
        "method": "zeroth-order-rfl",
        "task": "attack",
        "rounds": 12,
        "zeroth-order-rfl.step-size": 0.02,
        "zeroth-order-rfl.samples": 20,
        "zeroth-order-rfl.smoothing": 1e-2,
        "attack.dataset": dataset,
        "attack.path": str(images) if dataset == "file" else "",
        "attack.classifier-path": str(path),
        "attack.target-label": 3,
        "evaluate-gap": False,
    }
    record = run_app(config, 5, tmp_path)
    with np.load(record / "model.npz") as file:
        delta = file["0"]
    assert np.linalg.norm(delta) == pytest.approx(1.0)
    # counted by the network that the file was made of, on images held out
    threes = found.test_features[found.test_labels == 3]
    right = threes[_digits_classifier().logits(threes).argmax(axis=1) == 3]
    fooled = _digits_classifier().logits(right + delta).argmax(axis=1) != 3
    assert fooled.mean() > 0.8


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"shape": ("n", 28, 28)}, {}, "takes arrays of shape (any, 28, 28), which does"),
    ({"shape": ("n", 3, 8, 8)}, {}, "does not fit images of shape (8, 8)"),
    ({}, {"target_label": 12}, "attack.target-label = 12 must be a class of"),
    ({}, {"scores": "probabilities"}, "which are no probabilities"),
]


@pytest.mark.parametrize(("model", "settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, model: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    axes = [n for n in model.get("shape", (8, 8)) if isinstance(n, int)]
    own = PerceptronClassifier([np.ones((int(np.prod(axes)), 10))], [np.arange(10.0)])
    path = str(write(tmp_path / "m.onnx", own, **model))
    made = Attack(num_clients=2, seed=0, classifier_path=path, **settings)
    refused(SettingsError, re.escape(message), made)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    for name, content, match in NO_MODEL:
        (path := tmp_path / name).write_bytes(content)
        made = Attack(num_clients=2, seed=0, classifier_path=str(path))
        refused(SettingsError, match, made)
