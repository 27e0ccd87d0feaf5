"""What the script writes that trains CIFAR-10's classifier for the task ``attack``."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import torch

from fedtrellis.objectives.demonstrations import OnnxClassifier
from scripts.train_cifar_cnn import fold, make_network, write


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
