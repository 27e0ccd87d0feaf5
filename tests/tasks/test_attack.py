"""The task ``attack``: its classifier, its images and what is within reach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import correlate

from fedtrellis.settings import SettingsError
from tasks import Attack
from tests.tasks.data.cifar_folder import write_cifar
from tests.tasks.data.node_files import refused


def task(**settings: Any) -> Attack:
    return Attack(num_clients=3, seed=0, **settings)


# ------------------------------------------------------------------- CIFAR-10


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    from tasks.networks import SHAPES

    rng = np.random.default_rng(seed)
    return {
        name: (
            rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            if name.endswith("weight")
            else 0.1 * rng.standard_normal(shape)
        ).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def random_images(d: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(size=(d, 3, 32, 32))


def plain_scores(arrays: dict[str, np.ndarray], image: np.ndarray) -> np.ndarray:
    """The network's scores of one image, by SciPy's correlations."""
    x = image
    for i in (1, 2, 3):
        W, b = (arrays[f"conv{i}.{part}"].astype(float) for part in ("weight", "bias"))
        x = np.stack(
            [
                sum(
                    correlate(channel, kernel, mode="constant")
                    for channel, kernel in zip(x, kernels, strict=True)
                )
                + bias
                for kernels, bias in zip(W, b, strict=True)
            ]
        )
        # a stride of 2
        x = np.maximum(x[:, ::2, ::2], 0.0)
    dense = arrays["dense.weight"].astype(float) @ x.ravel()
    return np.asarray(dense + arrays["dense.bias"])


def test_the_network_is_that_of_the_definition() -> None:
    torch = pytest.importorskip("torch")
    from tasks.networks import ConvolutionalClassifier

    images = random_images(140)  # more than pass through together
    some = [0, 127, 128, 139]
    expected = [plain_scores(weights(), images[k]) for k in some]
    double = ConvolutionalClassifier(weights(), torch.float64).logits(images)
    np.testing.assert_allclose(double[some], expected, rtol=1e-10, atol=1e-12)
    single = ConvolutionalClassifier(weights()).logits(images)
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-5)


def test_the_network_s_pullback_is_the_derivative() -> None:
    torch = pytest.importorskip("torch")
    from tasks.networks import ConvolutionalClassifier

    model, images = ConvolutionalClassifier(weights(), torch.float64), random_images(40)
    rng = np.random.default_rng(5)
    cotangents = rng.standard_normal((40, 10))
    slopes = model.pullback(images, cotangents)
    assert slopes.shape == images.shape
    for _ in range(4):
        u = rng.standard_normal(images.shape)
        change = model.logits(images + 1e-7 * u) - model.logits(images - 1e-7 * u)
        slope = np.vdot(cotangents, change) / 2e-7
        assert np.vdot(slopes, u) == pytest.approx(slope, rel=1e-5)
    single = ConvolutionalClassifier(weights()).pullback(images, cotangents)
    np.testing.assert_allclose(single, slopes, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings with a made-up folder and a network that a short training made."""
    pytest.importorskip("torch")
    from scripts.train_cifar_cnn import main

    folder = tmp_path_factory.mktemp("cifar10")
    write_cifar(folder, train=250, test=100)
    out = folder / "weights.npz"
    assert main(["--data", str(folder), "--out", str(out), "--epochs", "20"]) == 0
    return {
        "dataset": "cifar10",
        "path": str(folder),
        "classifier_path": str(out),
        "radius": 3.0,
    }


def test_cifar_s_clients(cifar: dict[str, Any]) -> None:
    made: Any = task(**cifar)
    made.check()
    objectives: list[Any] = [made.client_objective(i) for i in range(3)]
    assert made.num_examples() == sum(f.num_examples for f in objectives)
    assert 15 < made.num_examples() <= 25
    [x] = made.initial_point()
    assert x.shape == (3, 32, 32)
    assert np.linalg.norm(x) == pytest.approx(3.0, rel=1e-12)
    mean = np.mean([f.value(x) for f in objectives])
    assert mean == pytest.approx(made.value(x), rel=1e-5)
    assert made.metrics(np.zeros((3, 32, 32))) == {"misclassified": 0.0}
    # the other classes have images of their own
    other: Any = task(target_label=0, **cifar)
    assert other.client_objective(0).label == 0
    first = [one.objective()._images[:, 0, 0, 0] for one in (other, made)]
    assert not np.isin(*first).all()


BAD_SETTINGS = [
    ({"path": "/absent"}, "attack.path = '/absent': there is no folder"),
    (
        {"classifier_path": ""},
        "attack.classifier-path is empty; .* scripts.train_cifar_cnn",
    ),
    (
        {"classifier_path": "absent.npz"},
        "attack.classifier-path = 'absent.npz': there is no file .*"
        "python -m scripts.train_cifar_cnn --data FOLDER --out FILE makes one",
    ),
]


BAD_WEIGHTS: list[tuple[str, Any, str]] = [
    ("dense.bias", None, "has no array 'dense.bias'"),
    ("dense.bias", np.zeros(9, np.float32), r"has shape \(9,\) and dtype float32"),
    ("conv1.bias", np.zeros(32), "and dtype float64; they must be"),
    ("conv1.bias", np.zeros(10**5), r"'conv1.bias' has shape \(100000,\)"),
    ("conv1.bias", np.full(32, np.nan, np.float32), "'conv1.bias' is not finite"),
    ("conv1.bias", np.array([{}] * 4), "cannot be read as an archive of arrays"),
]


def test_what_is_refused(tmp_path: Path, cifar: dict[str, Any]) -> None:
    for changes, message in BAD_SETTINGS:
        made = task(**cifar | changes)
        refused((SettingsError, FileNotFoundError), message, made)
    path = str(tmp_path / "w.npz")
    for name, array, message in BAD_WEIGHTS:
        arrays: Any = weights() | {name: array}
        np.savez(path, **{k: a for k, a in arrays.items() if a is not None})
        made = task(**cifar | {"classifier_path": path})
        assert refused(SettingsError, message, made).startswith(path)
