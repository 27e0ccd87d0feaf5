"""The script that trains the classifier of CIFAR-10 for the task ``attack``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from scripts.train_cifar_cnn import augment, main
from tests.tasks.data.cifar_folder import write_cifar

ROOT = Path(__file__).parents[2]


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


def test_the_seed_decides(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=150, test=40)
    made = []
    for seed in "112":
        out = tmp_path / "weights"
        assert train(tmp_path, out, "--seed", seed) == 0
        made.append(out.read_bytes())
    assert made[0] == made[1] != made[2]


def test_images_are_shifted_and_mirrored() -> None:
    # every pixel is another, so that each says where it comes from
    image = np.arange(1, 41, dtype=np.uint8).reshape(1, 1, 5, 8)
    images = np.repeat(image, 400, axis=0)
    made = augment(images, np.random.default_rng(0))
    padded = np.pad(image[0, 0], 4)
    windows = {
        (y, x, flip): padded[y : y + 5, x : x + 8][:, :: -1 if flip else 1]
        for y in range(9)
        for x in range(9)
        for flip in (False, True)
    }
    seen = set()
    for result in made[:, 0]:
        [key] = [k for k, window in windows.items() if (window == result).all()]
        seen.add(key)
    assert len(seen) > 100
    assert {y for y, _, _ in seen} == {x for _, x, _ in seen} == set(range(9))
    assert (images == image).all()


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("absent", "w.npz", "--data = 'absent': there is no folder"),
        (".", "absent/w.npz", "--out = 'absent/w.npz': there is no folder"),
        (".", "w.npz", "--data = '.' has no file data_batch_1"),
    ],
)
def test_one_line_says_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: str,
    out: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--data", data, "--out", out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_it_runs_from_the_root() -> None:
    command = [sys.executable, "-m", "scripts.train_cifar_cnn", "--data", "."]
    command += ["--out", "w.npz", "--epochs", "0"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 2
    assert "--epochs 0 must be at least 1" in made.stderr
