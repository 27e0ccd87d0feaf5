"""Platt's sigmoid against scikit-learn's, given the same scores."""

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.svm import LinearSVC

from fedtrellis.dual.calibration import Sigmoid


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
