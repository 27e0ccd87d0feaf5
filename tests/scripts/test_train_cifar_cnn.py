"""The script that trains the classifier of CIFAR-10 for the task ``attack``."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from scripts.train_cifar_cnn import main
from tests.tasks.data.cifar_folder import write_cifar


def train(folder: Path, out: Path, *more: str) -> int:
    return main(["--data", str(folder), "--out", str(out), "--epochs", "1", *more])


def test_it_learns_what_is_easy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar(tmp_path, train=250, test=100)
    out = tmp_path / "a.npz"
    assert main(["--data", str(tmp_path), "--out", str(out), "--epochs", "20"]) == 0
    printed = capsys.readouterr().out
    assert "250 training images, 100 others" in printed
    accuracy = float(printed.split("accuracy ")[1].split()[0])
    assert accuracy > 0.9  # chance has 0.1
    with np.load(out, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype == np.float32 for name in arrays.files)
        assert sum(arrays[name].size for name in arrays.files) == 68_106
        # rounded to half precision
        for name in arrays.files:
            assert np.array_equal(arrays[name], arrays[name].astype(np.float16))
