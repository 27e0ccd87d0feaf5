"""The task ``digits``."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedtrellis.domains import L1Ball
from tasks import Digits
from tasks.data.task import data_of


def test_every_image_is_in_training_or_test_data_once() -> None:
    data = data_of(Digits(num_clients=9, seed=0))
    assert data.features.shape == (1437, 64)
    assert data.test_features.shape == (360, 64)
    ours = np.vstack([data.features, data.test_features]) * 16
    theirs = load_digits().data
    np.testing.assert_array_equal(np.sort(ours.sum(axis=1)), np.sort(theirs.sum(1)))
    np.testing.assert_array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    # stratified: every label has its share of the test images
    counts = np.bincount(data.test_targets)
    assert counts.min() >= 34
    assert counts.max() <= 37


def test_the_split_does_not_depend_on_the_number_of_clients() -> None:
    few, many = (data_of(Digits(num_clients=n, seed=0)) for n in (2, 50))
    np.testing.assert_array_equal(few.test_features, many.test_features)
    other = data_of(Digits(num_clients=2, seed=1))
    assert not np.array_equal(few.test_targets, other.test_targets)


def test_the_optimum_is_that_of_cvxpy() -> None:
    cvxpy = pytest.importorskip("cvxpy")
    task, domain = Digits(num_clients=3, seed=0), L1Ball(5.0)
    x = z = np.zeros((65, 10))
    step = 1.0 / task.objective().lipschitz()
    for t in range(1, 121):  # accelerated projected gradient
        before, x = x, domain.project(z - step * task.gradient(z))
        z = x + (t - 1) / (t + 2) * (x - before)
    data = data_of(task)
    features = np.hstack([data.features, np.ones((len(data.targets), 1))])
    W = cvxpy.Variable((65, 10))
    scores = features @ W
    chosen = cvxpy.sum(cvxpy.multiply(np.eye(10)[data.targets], scores))
    loss = cvxpy.sum(cvxpy.log_sum_exp(scores, axis=1)) - chosen
    problem = cvxpy.Problem(
        cvxpy.Minimize(loss / len(features)), [cvxpy.sum(cvxpy.abs(W)) <= 5.0]
    )
    problem.solve(solver="SCS", eps_abs=1e-3, eps_rel=1e-3)
    assert task.value(x) == pytest.approx(problem.value, abs=2e-3)
