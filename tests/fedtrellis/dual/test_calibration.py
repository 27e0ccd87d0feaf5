"""Platt's sigmoid against scikit-learn's, given the same scores."""

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.svm import LinearSVC

from clients.hyfdca.client import predictions_of
from fedtrellis.dual.calibration import Sigmoid
from fedtrellis.objectives.losses import make_loss


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_two_classes_as_scikit_learn(scale: float) -> None:
    X, y = make_classification(600, 8, flip_y=0.1, random_state=0)
    X *= scale
    model = LinearSVC(C=1.0 / scale).fit(X[:200], y[:200])
    frozen = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid")
    expected = frozen.fit(X[200:400], y[200:400]).predict_proba(X)[:, 1]
    held_out = model.decision_function(X[200:400])
    found = Sigmoid.of(held_out, y[200:400] == 1)
    p = found.probabilities(model.decision_function(X))
    # scikit-learn's stops at a gradient of 1e-6
    assert np.abs(p - expected).max() < 1e-5


def test_it_is_the_minimum() -> None:
    """Of the cross-entropy with Platt's targets, also where classes are apart."""
    z = np.array([-3.0, -2.0, -1.5, 2.0, 2.5])
    positive = z > 0.0
    found = Sigmoid.of(z, positive)
    t = np.where(positive, 3.0 / 4.0, 1.0 / 5.0)
    p = found.probabilities(z)
    assert abs((p - t).sum()) < 1e-10
    assert abs(((p - t) * z).sum()) < 1e-10
    flat = Sigmoid.of(np.ones(5), positive).probabilities(np.ones(5))
    assert np.allclose(flat, t.mean())


def test_predictions_with_few_labels_and_missing_scores() -> None:
    z = np.linspace(-3.0, 3.0, 30)
    z[4] = np.nan
    y = np.where(np.arange(30) % 7 < 3, -1.0, 1.0)
    ids = [str(i) for i in range(30)]
    labels = np.where(np.arange(30) < 25, y, np.nan)
    svm = predictions_of(make_loss("hinge"), ids, z, labels)
    assert svm.probabilities is None
    assert svm.calibrated is not None
    assert np.array_equal(np.isnan(svm.calibrated), np.isnan(z))
    known = ~np.isnan(labels) & ~np.isnan(z)
    fitted = Sigmoid.of(z[known], labels[known] > 0.0)
    assert np.allclose(svm.calibrated[known], fitted.probabilities(z[known]))
    few = predictions_of(make_loss("logistic"), ids, z, np.full(30, np.nan))
    assert few.calibrated is None
    assert few.probabilities is not None
    assert np.allclose(few.probabilities[5:], 1.0 / (1.0 + np.exp(-z[5:])))
    assert np.array_equal(few.predicted[5:], np.where(z[5:] >= 0.0, 1.0, -1.0))
    several = np.stack([z, -z, 0.5 * z], axis=1)
    classes = predictions_of(make_loss("logistic"), ids, several, np.full(30, np.nan))
    assert np.array_equal(classes.predicted[5:], several[5:].argmax(axis=1))
    assert np.isnan(classes.predicted[4])
    assert predictions_of(make_loss("squared"), ids, z, labels).probabilities is None
