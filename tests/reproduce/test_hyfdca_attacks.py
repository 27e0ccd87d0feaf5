"""Attacks find what is there: otherwise "found nothing" would mean nothing."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtrellis.objectives.losses import make_loss
from reproduce.hyfdca import attacks
from reproduce.hyfdca.recorded import HYBRID, split
from reproduce.hyfdca.simulated import DUAL_POINT, MIXED, Clients, proposal

Array = NDArray[np.float64]


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


# ---------------------------------------------------------------- one attack at a time


def test_a_reduced_basis() -> None:
    """Of a lattice with a planted short vector: same volume, Lovász, and found."""
    rng = np.random.default_rng(0)
    short = rng.integers(-2, 3, size=12)
    basis = rng.integers(-1000, 1000, size=(12, 12))
    basis[0] = short
    mix = np.eye(12, dtype=np.int64)
    for _ in range(60):
        i, j = rng.choice(12, 2, replace=False)
        mix[i] += rng.integers(-2, 3) * mix[j]
    reduced = attacks.reduced(mix @ basis)
    volumes = [np.linalg.slogdet(b.astype(float))[1] for b in (basis, reduced)]
    assert volumes[0] == pytest.approx(volumes[1], abs=1e-9)
    # each is an integer combination of the other
    change = reduced @ np.linalg.inv(basis.astype(float))
    assert np.abs(change - np.rint(change)).max() < 1e-6
    R = np.abs(np.linalg.qr(reduced.T.astype(float))[1])
    below = np.diag(R)
    assert (below[1:] ** 2 + np.diag(R, 1) ** 2 >= 0.98 * below[:-1] ** 2).all()
    assert any(np.array_equal(np.abs(b), np.abs(short)) for b in reduced)


def test_a_hidden_subset_sum() -> None:
    """Rows of a made-up window: who counts follows from w, as for the hinge loss."""
    rows, weights = _random(6, 8), 1.2 * _random(30, 8, seed=1)
    counts = (weights @ rows.T < 1.0).astype(float)
    sums = counts @ rows + _random(8, seed=2)
    claims = attacks.rows_in_lattice(sums / 50.0, weights, 50.0, [(0, 30)])
    assert len(attacks.found_in(claims, rows)) == len(rows)
    # with their signs and their lengths
    for claim in claims:
        assert np.abs(rows - claim).max(axis=1).min() < 1e-5
    mixed = np.random.default_rng(3).uniform(0.5, 1.0, counts.shape) * counts
    assert not len(attacks.rows_in_lattice(mixed @ rows, weights, 1.0, [(0, 30)]))


# ---------------------------------------------------------------------- on whole runs


@pytest.mark.parametrize("attack", ["thresholds", "bends", "jumps"])
@pytest.mark.parametrize("kind", [DUAL_POINT, MIXED], ids=["dual", "mixed"])
def test_chosen_weights_find_rows_by_and_by(
    attack: str, kind: tuple[float | None, float | None]
) -> None:
    """More answers, more rows: what a node's budget of answers limits."""
    case, loss = split(HYBRID), make_loss("hinge")
    N, p = case.X.shape
    clients = Clients(case, loss, proposal(loss, case.y, case.scale, *kind))
    found = attacks.Isolated()
    if attack == "thresholds":
        asked = attacks.rows_at_thresholds(found, p, N, 28.0)
    elif attack == "bends":
        asked = attacks.rows_at_bends(found, p, N, 28.0)
    else:
        asked = attacks.rows_at_jumps(found, p, N, 28.0)
    answer = clients.losses if attack == "jumps" else clients.sums
    attacks.ask(asked, answer, 1500)
    assert found.asked == 1500
    counts, claims = np.array(found.answers), found.rows(p)
    rows = [
        len(attacks.found_in(claims[counts <= n], case.X, 1e-4)) for n in (150, 1500)
    ]
    assert rows[1] > 10
    assert rows[0] < rows[1]
