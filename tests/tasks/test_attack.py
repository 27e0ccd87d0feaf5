"""The task ``attack``: its classifier, its images and what is within reach."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.manifolds import Sphere
from fedtrellis.settings import SettingsError
from fedtrellis.universal_perturbation import (
    PerceptronClassifier,
    UniversalPerturbation,
)
from tasks import Attack
from tasks.attack import _images, _victim


def task(n: int = 5, seed: int = 0, **settings: Any) -> Attack:
    return Attack(num_clients=n, seed=seed, **settings)


def test_the_classifier_is_a_good_one() -> None:
    victim = _victim()
    for images, labels, least in (
        (victim.images, victim.labels, 0.99),
        (victim.held_out_images, victim.held_out_labels, 0.95),
    ):
        predicted = victim.classifier.logits(images).argmax(axis=1)
        assert np.mean(predicted == labels) > least
    assert len(victim.labels) + len(victim.held_out_labels) == 1797
    # no image is in both halves
    both = np.concatenate([victim.images, victim.held_out_images])
    assert len(np.unique(both.reshape(1797, -1), axis=0)) == 1797


def weights_of(victim: PerceptronClassifier) -> str:
    arrays = [*victim._weights, *victim._biases]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def test_every_process_attacks_the_same_classifier() -> None:
    # however many threads it may use
    code = (
        "from tasks.attack import _victim; from tests.tasks.test_attack import "
        "weights_of; print(weights_of(_victim().classifier))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    victim = _victim().classifier
    assert isinstance(victim, PerceptronClassifier)
    assert made.stdout.strip() == weights_of(victim)


def test_only_images_of_the_class_that_are_got_right() -> None:
    victim = _victim()
    for held_out in (False, True):
        images = _images(3, held_out=held_out)
        assert (victim.classifier.logits(images).argmax(axis=1) == 3).all()
        source = victim.held_out_images if held_out else victim.images
        labels = victim.held_out_labels if held_out else victim.labels
        right = victim.classifier.logits(source).argmax(axis=1) == labels
        assert len(images) == np.sum(right & (labels == 3)) > 80
    assert task().metrics(np.zeros((8, 8))) == {"misclassified": 0.0}


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_the_clients_mean_is_f(balance: float) -> None:
    made = task(7, balance=balance)
    [x] = made.initial_point()
    clients = [made.client_objective(i) for i in range(7)]
    assert sum(f.num_examples for f in clients) == made.num_examples()
    mean = np.mean([f.value(x) for f in clients])
    assert mean == pytest.approx(made.value(x), rel=1e-12)
    gradient = np.mean([f.gradient(x) for f in clients], axis=0)
    np.testing.assert_allclose(gradient, made.gradient(x), rtol=0, atol=1e-12)
    # every image is dealt once
    dealt = np.concatenate([f._images for f in clients])  # type: ignore[attr-defined]
    assert len(np.unique(dealt.reshape(len(dealt), -1), axis=0)) == len(dealt)


def test_the_balance_is_a_constant_on_the_sphere() -> None:
    for seed in range(3):
        x = task(seed=seed, radius=1.5).initial_point()
        with_it = task(radius=1.5, balance=0.8).value(x)
        without = task(radius=1.5, balance=0.0).value(x)
        assert with_it - without == pytest.approx(0.8 * 1.5**2, rel=1e-12)


def test_start_and_manifold() -> None:
    made = task(radius=2.5)
    assert made.manifold() == Sphere((8, 8), 2.5)
    [x] = made.initial_point()
    assert np.linalg.norm(x) == pytest.approx(2.5, rel=1e-12)
    assert made.domains()["l2-ball"] == 2.5


def test_other_settings_reach_the_objective() -> None:
    made = task(target_label=7, confidence=0.3, clip=True).client_objective(1)
    assert isinstance(made, UniversalPerturbation)
    assert (made.label, made.confidence, made.clip) == (7, 0.3, True)
    assert task(target_label=7).num_examples() != task().num_examples()


def test_the_default_radius_is_within_reach_of_values() -> None:
    """A plain loop of the zeroth-order estimator (7), on F itself."""
    made = task()
    sphere, objective = made.manifold(), made.objective()
    rng = np.random.default_rng(0)
    [x] = made.initial_point()
    assert made.metrics(x)["misclassified"] < 0.2
    m, mu, step = 20, 1e-3, 0.02
    for _ in range(100):
        u = rng.standard_normal((m, 8, 8))
        u /= np.linalg.norm(u.reshape(m, -1), axis=1)[:, None, None]
        # (p/m) Σ_j [F(P_M(x + μ u_j)) − F(x)]/μ · u_j
        values = objective.values(np.concatenate([x[None], sphere.project(x + mu * u)]))
        estimate = 64 / m * np.tensordot((values[1:] - values[0]) / mu, u, axes=1)
        x = sphere.project(x - step * estimate)
    assert made.metrics(x)["misclassified"] > 0.9
    assert made.value(x) - 1.0 < 0.05  # the distortion is 1


def test_too_many_clients() -> None:
    with pytest.raises(SettingsError, match="200 clients are too many") as caught:
        task(200).check()
    assert "\n" not in str(caught.value)
