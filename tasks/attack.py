"""One perturbation that makes a classifier get all images of a class wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.manifolds import Sphere
from fedtrellis.objectives.demonstrations import (
    SCORES,
    OnnxClassifier,
    PerceptronClassifier,
    UniversalPerturbation,
)
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, data_path, once, once_per_file, stratified, toy
from .data.datasets import DATASETS, Examples, load_images
from .data.table import fault, load_arrays
from .data.task import Dealt, Nonconvex, starts_of

# The victim is one and the same whatever the run's seed.
_VICTIM_SEED = 0
_HIDDEN = 64
_DIGITS = (8, 8)
# What suits a data set: a class, and an ε at which it is within reach.
_DATASETS = {"digits": (3, 1.0), "cifar10": (4, 2.0), "file": (0, 1.0)}
# The arrays of a file: images that are dealt to clients, those that the metric is of.
_ARRAYS = ("images", "labels", "held_out_images", "held_out_labels")


@dataclass(frozen=True)
class Attack(Nonconvex):
    """F(δ) = mean of max(z_t − max_{k≠t} z_k, 0) + balance · ‖δ‖² over ‖δ‖ = ε.

    The mean is over all clients' images a of one class t, z = z(a + δ) are a fixed
    classifier's scores (differences of scores are those of log-probabilities), and
    values of F need nothing else. f_i is n·d_i/d times the mean over the client's d_i
    images, plus the distortion, so that F = (1/n) Σ f_i. On the sphere the distortion
    is the constant balance · ε²; the balance matters off it only.

    By default the classifier is scikit-learn's perceptron with one hidden layer of 64,
    trained on one half of its digits (pixels from 0 to 1; the same classifier for all
    seeds; accuracy 0.967 on the other half). All images of the class in the training
    half that it gets right are dealt to the clients, shuffled, in equal shares; those
    of the other half are for the metric.

    The default ε = 1 is a quarter of the images' length (3.8 on average). Random
    perturbations of this length make 5 % of label 3's held-out images misclassified,
    15 rounds of 10 clients 98 %.

    With ``cifar10`` or ``file`` the classifier is an ONNX model, such as the
    convolutional network that ``scripts/train_cifar_cnn.py`` makes. The images of the
    class in the training batches that it gets right are dealt; those of the test batch
    are for the metric. The default ε = 2 is a thirteenth of the length of the deer.
    Scores are in single precision: a smoothing μ of 1e-3 keeps rounding out of
    differences of values. There are no gradients: ``evaluate-gap`` has to be false.

    Notes
    -----
    §5.2 of arXiv 2507.22855: the deer of CIFAR-10 and a convolutional network, with
    balance 1; the paper does not give ε or the loss, which here is that of N. Carlini,
    D. Wagner, 2017, as P.-Y. Chen et al. use it without gradients ("ZOO", 2017).
    """

    name = "attack"
    summary = "a universal perturbation; any ONNX model"

    dataset: str = setting("digits", "the images", choices=tuple(_DATASETS))
    path: str = setting(
        "",
        "the folder of CIFAR-10's files; of file: a .npz with images and labels, and "
        "held_out_images and held_out_labels for the metric",
        only={"dataset": ("cifar10", "file")},
    )
    partial: bool = setting(
        False, "go on where some training files of CIFAR-10 are missing"
    )
    classifier_path: str = setting(
        "", "the classifier's file, an ONNX model; empty: the perceptron of digits"
    )
    scores: str = setting("logits", "what an ONNX model's output is", choices=SCORES)
    target_label: int = setting(
        -1,
        "t, the class of the images; -1: 3 of digits, 4 (deer) of CIFAR-10, 0 of file",
        minimum=-1,
    )
    radius: float = setting(
        0.0, "ε, the length of the perturbation; 0: 2 for CIFAR-10, else 1", minimum=0.0
    )
    balance: float = setting(1.0, "what ‖δ‖² counts in F", minimum=0.0)

    def check(self) -> None:  # noqa: D102
        path = self.classifier_path
        _images(self.dataset, self.path, self.partial)
        if self.scores != "logits" and not path:
            raise self.refused("scores", "is for an ONNX model; allowed: logits")
        if (path or self.dataset != "digits") and not path.endswith(".onnx"):
            raise self.refused("classifier_path", "must name an ONNX model, FILE.onnx")
        if not all(len(self.images(held_out=part)) for part in (False, True)):
            where = f"attack.target-label = {self.label()} must be a class of which"
            raise SettingsError(f"{where} the classifier gets images right")
        super().check()

    def label(self) -> int:
        """Return t, the data set's own where the setting leaves it open."""
        given = self.target_label
        return _DATASETS[self.dataset][0] if given < 0 else given

    def epsilon(self) -> float:
        """Return ε, the data set's own where the setting leaves it open."""
        return self.radius or _DATASETS[self.dataset][1]

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.dataset == "cifar10":
            return [DATASETS["cifar10"]]
        return [_images(self.dataset, self.path, self.partial).features.shape[1:]]

    def domains(self) -> dict[str, float]:
        """Return the ball that the sphere encloses, and one of as large entries."""
        entries = np.sqrt(np.prod(self.shapes()[0]))
        epsilon = self.epsilon()
        return {"l2-ball": epsilon, "linf-ball": float(epsilon / entries)}

    def manifold(self) -> Sphere:
        """Return the sphere of radius ε."""
        return Sphere(self.shapes()[0], self.epsilon())

    def _build_objective(self) -> Any:
        # in the images' order and not the clients', which rounding shows
        return self._loss(self.images(held_out=False), None, 1.0)

    def _load(self) -> Dealt:
        images, others = self.images(held_out=False), self.images(held_out=True)
        order = generator(self.seed, "partition").permutation(len(images))
        starts = starts_of(np.array_split(order, self.num_clients))
        labels = np.full(len(images), self.label())
        return Dealt(images[order], labels, starts, others, labels[:0])

    def classifier_under_attack(self) -> Any:
        """Return the classifier, made once per process."""
        return _classifier(self.classifier_path, self.scores, self.shapes()[0])

    @once(8)
    def images(self, *, held_out: bool) -> Array:
        """Return the images of the class that the classifier gets right, read-only."""
        found = _images(self.dataset, self.path, self.partial)
        images, labels = found[2:4] if held_out else found[:2]
        chosen: Array = images[labels == self.label()]
        if chosen.dtype == np.uint8:
            chosen = chosen / 255.0
        if len(chosen):
            scores = self.classifier_under_attack().logits(chosen)
            chosen = chosen[scores.argmax(axis=1) == self.label()]
        chosen.setflags(write=False)
        return chosen

    def _loss(self, features: Any, targets: Any, weight: float) -> Any:
        # The distortion counts once whatever the weight of a client's images.
        return UniversalPerturbation(
            self.classifier_under_attack(),
            features,
            self.label(),
            balance=self.balance / weight,
            weight=weight,
        )


@once_per_file(2)
def _images(dataset: str, value: str = "", partial: bool = False) -> Examples:
    if dataset == "digits":
        pixels, labels = toy("digits", "task = 'attack'")
        images = pixels.reshape(-1, *_DIGITS) / 16.0
        train, other = stratified(labels, 0.5, _VICTIM_SEED)
        return Examples(images[train], labels[train], images[other], labels[other])
    path = data_path("attack.path", value, folder=dataset == "cifar10")
    if dataset == "cifar10":
        return load_images(dataset, path, "attack.path", partial=partial)
    arrays = load_arrays(path, _ARRAYS, needed=True)
    shape = arrays["images"].shape[1:]
    for prefix in ("", "held_out_"):
        images, labels = arrays[prefix + "images"], arrays[prefix + "labels"]
        if images.ndim < 2 or images.shape[1:] != shape:
            fault(path, f"{prefix}images has shape {images.shape}")
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            found = f"{prefix}labels has shape {labels.shape}"
            fault(path, f"{found}; it must be {len(images)} whole numbers")
        if images.dtype != np.uint8:
            if images.dtype.kind != "f" or not np.isfinite(images).all():
                fault(path, f"{prefix}images is not made of finite numbers")
            arrays[prefix + "images"] = images.astype(np.float64)
    return Examples(*(arrays[name] for name in _ARRAYS))


@once_per_file(4)
def _classifier(value: str, scores: str, shape: tuple[int, ...]) -> Any:
    if not value:
        return _digits_classifier()
    key = "attack.classifier-path"
    path = data_path(key, value)
    try:
        return OnnxClassifier(path, shape, scores)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{key} = {value!r}: {error}") from None


@once(1)
def _digits_classifier() -> PerceptronClassifier:
    # _images says what needs it
    images, labels, *_ = _images("digits")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    model = MLPClassifier((_HIDDEN,), random_state=_VICTIM_SEED)
    # Training magnifies the last bits, which depend on the number of threads: every
    # process is to attack the same classifier.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(images.reshape(len(images), -1), labels)
    return PerceptronClassifier(model.coefs_, model.intercepts_)
