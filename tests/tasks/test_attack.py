"""The task ``attack``: its classifier, its images and what is within reach."""

from typing import Any

import numpy as np
import pytest

from fedtrellis.settings import SettingsError
from tasks import Attack
from tests.tasks.data.cifar_folder import write_cifar
from tests.tasks.data.node_files import refused


def task(**settings: Any) -> Attack:
    return Attack(num_clients=3, seed=0, **settings)


# ------------------------------------------------------------------- CIFAR-10


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings with a made-up folder and a network that a short training made."""
    for library in ("torch", "onnx", "onnxruntime"):
        pytest.importorskip(library)
    from scripts.train_cifar_cnn import main

    folder = tmp_path_factory.mktemp("cifar10")
    write_cifar(folder, train=250, test=100)
    out = folder / "victim.onnx"
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
        "attack.classifier-path = '' must name an ONNX model, .* scripts.train",
    ),
    (
        {"classifier_path": "absent.onnx"},
        "attack.classifier-path = 'absent.onnx': there is no file",
    ),
]


def test_what_is_refused(cifar: dict[str, Any]) -> None:
    for changes, message in BAD_SETTINGS:
        made = task(**cifar | changes)
        refused((SettingsError, FileNotFoundError), message, made)
