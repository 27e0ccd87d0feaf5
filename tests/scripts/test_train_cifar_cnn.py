"""The script that trains the classifier of CIFAR-10 for the task ``attack``."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import torch

from fedtrellis.objectives.demonstrations import OnnxClassifier
from scripts.train_cifar_cnn import fold, main, make_network, write
from tests.tasks.data.files import write_cifar


def test_it_learns_what_is_easy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar(tmp_path, train=250, test=100)
    out = tmp_path / "a.onnx"
    assert main(["--data", str(tmp_path), "--out", str(out), "--epochs", "20"]) == 0
    accuracy = float(capsys.readouterr().out.split("accuracy ")[1].split()[0])
    assert accuracy > 0.9  # chance has 0.1


def test_the_file_is_the_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, rng = make_network(), np.random.default_rng(0)
    images = rng.uniform(size=(300, 3, 32, 32)).astype(np.float32)
    network(torch.from_numpy(images))  # statistics to fold in
    network.eval()
    weights = fold(network)
    assert sum(array.size for array in weights) == 68_106
    write(tmp_path / "a.onnx", weights)
    found = OnnxClassifier(tmp_path / "a.onnx", (3, 32, 32)).logits(
        images.astype(np.float64)
    )
    with torch.no_grad():
        expected = network(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)  # halves
