"""What the sums of several classes give away together that one's alone do not."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from clients.hyfdca import proposals
from fedtrellis.settings import SettingsError
from reproduce.hyfdca.attacks.differences import rows_in_differences
from strategies.hyfdca.mixtures import MixtureSteps
from tests.strategies.hyfdca_runs import Array, Run, Split, grid_parts

CLASSES, N, P = 4, 90, 12


def rare_classes() -> Split:
    """Two of four classes have one sample each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    y = (X[:, 0] > 0.0).astype(np.float64)
    y[[30, 60]] = 2.0, 3.0
    split = Split(X, np.ones(N), grid_parts(N, P, 3, 3), "logistic", 1e-2)
    split.y = y
    return split


def what_the_server_sees(
    monkeypatch: pytest.MonkeyPatch, rounds: int, **options: Any
) -> tuple[Run, Array, Array]:
    """V and w of each iteration, both of shape (T, C, P)."""
    sums, weights = [], []
    honest = MixtureSteps._complete_sum

    def listening(self: MixtureSteps, words: Any) -> Any:
        found = honest(self, words)
        sums.append(found[0])
        weights.append(self.w.copy())
        return found

    monkeypatch.setattr(MixtureSteps, "_complete_sum", listening)
    run = Run(rare_classes(), rounds, encryption="stream", classes=CLASSES, **options)
    return run, np.stack(sums), np.stack(weights)


def left_of_the_pairs(run: Run, sums: Array) -> float:
    """How far two classes' difference is from the rare classes' rows, at the least.

    The difference of the sums of classes 2 and 3, without its part in the span of the
    one row that each of them has, over its norm.
    """
    rows = run.split.X[[30, 60]]
    difference = sums[0, 2] - sums[0, 3]
    part = rows.T @ np.linalg.lstsq(rows.T, difference, rcond=None)[0]
    return float(np.linalg.norm(difference - part) / np.linalg.norm(difference))


def test_no_combination_of_classes_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    run, sums, weights = what_the_server_sees(monkeypatch, 30)
    assert sums.shape == (30, CLASSES, P)
    assert left_of_the_pairs(run, sums) > 0.3
    X = run.split.X
    flat = sums.reshape(-1, P)
    pairs = [a - b for t in sums for a, b in combinations(t, 2)]
    steps = (sums - weights).reshape(-1, P)
    every = np.vstack([flat, np.array(pairs), weights.reshape(-1, P), steps])
    assert not len(rows_in_differences(every, X, 2, 1e-11))
    # all classes of an iteration together, and of two successive ones
    for t in (0, 1, 5, 28):
        some = np.vstack([sums[t], sums[t + 1], weights[t], weights[t + 1]])
        assert not len(rows_in_differences(some, X, 4, 1e-11))


def test_weighted_classes_give_no_row_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes of one sample each, balanced, on nodes that accept it.

    A node refuses that by itself: the first sums are nearly such a row, half of whose
    weight is that sample's. Exactly they are none.
    """
    options = {"class_weight": "balanced"}
    with pytest.raises(SettingsError, match="class 2, which 1 of all samples have"):
        what_the_server_sees(monkeypatch, 1, **options)
    run, sums, weights = what_the_server_sees(
        monkeypatch, 30, exposed="accept", **options
    )
    row = run.split.X[30]
    closeness = abs(row @ sums[0, 2]) / np.linalg.norm(row) / np.linalg.norm(sums[0, 2])
    assert closeness > 0.9  # as the page on security says
    steps = (sums - weights).reshape(-1, P)
    every = np.vstack([sums.reshape(-1, P), weights.reshape(-1, P), steps])
    assert not len(rows_in_differences(every, run.split.X, 2, 1e-9))


def test_one_mixing_for_all_classes_would_give_rare_classes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack above finds what it looks for where the clients' r are shared."""
    own = proposals._mixing

    def shared(*given: Any) -> Array:
        r = own(*given)
        return np.broadcast_to(r[:1], r.shape)

    monkeypatch.setattr(proposals, "_mixing", shared)
    run, sums, _ = what_the_server_sees(monkeypatch, 1)
    assert left_of_the_pairs(run, sums) < 1e-6
