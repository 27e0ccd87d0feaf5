"""The task ``attack``: classifiers in ONNX files, images, and what is within reach."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.objectives.demonstrations import OnnxClassifier, PerceptronClassifier
from tasks import Attack
from tasks.attack import _ARRAYS, _digits_classifier, _images
from tests.harness import refused, run_app
from tests.tasks.data.files import write_cifar

onnx = pytest.importorskip("onnx")
parse_graph = pytest.importorskip("onnx.parser").parse_graph
pytest.importorskip("onnxruntime")

Shape = Sequence[Any]


def attack(**settings: Any) -> Attack:
    return Attack(num_clients=3, seed=0, **settings)


def write(
    path: Path,
    classifier: PerceptronClassifier,
    shape: Shape = ("n", 8, 8),
    *,
    softmax: bool = False,
) -> Path:
    """Write a perceptron down as ONNX has it: Flatten, MatMul, Add, Relu, and so on."""
    layers = list(zip(classifier._weights, classifier._biases, strict=True))
    steps, last = ["h0 = Flatten(x)"], "Softmax" if softmax else "Identity"
    for k in range(len(layers)):
        steps += [f"p{k} = MatMul(h{k}, w{k})", f"s{k} = Add(p{k}, b{k})"]
        steps += [f"h{k + 1} = Relu(s{k})"]
    steps[-1] = f"z = {last}(s{len(layers) - 1})"
    takes = f"float[{','.join(map(str, shape))}] x"
    graph = onnx.parser.parse_graph(
        f"g ({takes}) => (float[n,10] z) {{{' '.join(steps)}}}"
    )
    for k, layer in enumerate(layers):
        for name, array in zip("wb", layer, strict=True):
            single = array.astype(np.float32)
            graph.initializer.append(onnx.numpy_helper.from_array(single, f"{name}{k}"))
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.parametrize("shape", [("n", 1, 8, 8), ("n", 64), (7, 8, 8)])
def test_scores_are_those_of_the_same_network(tmp_path: Path, shape: Shape) -> None:
    own = _digits_classifier()
    made = OnnxClassifier(write(tmp_path / "m.onnx", own, shape), (8, 8))
    images = _images("digits").features[:300]
    assert made.logits(images) == pytest.approx(own.logits(images), abs=1e-4)
    softmax = write(tmp_path / "s.onnx", own, shape, softmax=True)
    logs = OnnxClassifier(softmax, (8, 8), "probabilities").logits(images[:5])
    assert np.diff(logs) == pytest.approx(np.diff(own.logits(images[:5])), abs=1e-3)


def test_a_run_attacks_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "victim.onnx", _digits_classifier())
    found = _images("digits")
    arrays: Any = dict(zip(_ARRAYS, found, strict=False))
    np.savez(tmp_path / "images.npz", **arrays)
    config: dict[str, Any] = {
        "method": "zeroth-order-rfl",
        "task": "attack",
        "rounds": 12,
        "zeroth-order-rfl.step-size": 0.02,
        "zeroth-order-rfl.samples": 20,
        "zeroth-order-rfl.smoothing": 1e-2,
        "attack.dataset": "file",
        "attack.path": str(tmp_path / "images.npz"),
        "attack.classifier-path": str(path),
        "attack.target-label": 3,
        "evaluate-gap": False,
    }
    with np.load(run_app(config, 5, tmp_path) / "model.npz") as file:
        delta = file["0"]
    assert np.linalg.norm(delta) == pytest.approx(1.0)
    # counted by the network that the file was made of, on images held out
    threes = found.test_features[found.test_labels == 3]
    right = threes[_digits_classifier().logits(threes).argmax(axis=1) == 3]
    fooled = _digits_classifier().logits(right + delta).argmax(axis=1) != 3
    assert fooled.mean() > 0.8


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (("n", 28, 28), {}, r"takes arrays of shape \(any, 28, 28\), which does"),
    (("n", 8, 8, "n"), {}, r"takes arrays of shape \(any, 8, 8, any\), which does"),
    (("n", 8, 8), {"scores": "probabilities"}, "which are no probabilities"),
    (b"nothing of the kind", {}, "is no ONNX model that can be run"),
    (b"", {"classifier_path": "weights.npz"}, "must name an ONNX model, FILE.onnx"),
]


@pytest.mark.parametrize(("model", "settings", "match"), REFUSED)
def test_models_that_do_not_fit(
    tmp_path: Path, model: Any, settings: dict[str, Any], match: str
) -> None:
    path = tmp_path / "m.onnx"
    if isinstance(model, bytes):
        path.write_bytes(model)
    else:
        size = int(np.prod([n for n in model if n != "n"]))
        write(
            path, PerceptronClassifier([np.ones((size, 10))], [np.arange(10.0)]), model
        )
    made = attack(**{"classifier_path": str(path)} | settings)
    refused(match, made.check)


def test_cifar_s_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A made-up folder, and a network that a short training made."""
    pytest.importorskip("torch")
    from scripts.train_cifar_cnn import main

    write_cifar(tmp_path, train=250, test=100)
    out = str(tmp_path / "victim.onnx")
    assert main(["--data", str(tmp_path), "--out", out, "--epochs", "20"]) == 0
    # chance has 0.1
    assert float(capsys.readouterr().out.split("accuracy ")[1].split()[0]) > 0.9
    settings: dict[str, Any] = {"dataset": "cifar10", "path": str(tmp_path)}
    settings |= {"classifier_path": out, "radius": 3.0}
    made: Any = attack(**settings)
    made.check()
    assert 15 < made.num_examples() <= 25
    [x] = made.initial_point()
    assert x.shape == (3, 32, 32)
    assert np.linalg.norm(x) == pytest.approx(3.0, rel=1e-12)
    assert made.metrics(np.zeros((3, 32, 32))) == {"misclassified": 0.0}
    # the other classes have images of their own
    other: Any = attack(target_label=0, **settings)
    first = [one.objective()._images[:, 0, 0, 0] for one in (other, made)]
    assert not np.isin(*first).all()
    bare = attack(**settings | {"classifier_path": ""})
    refused(re.escape("= '' must name an ONNX model"), bare.check)
