"""Membership attacks: near chance at ε = 1, certain where answers are only clipped."""

import numpy as np
import pytest

from benchmarks.membership import QUICK, advantages, largest_advantage, trials

pytest.importorskip("dp_accounting")


def test_noise_hides_who_took_part() -> None:
    private, plain = trials(QUICK, 1.0), trials(QUICK, None)
    # nobody's secret noise is in these: the same in every run of the test
    assert all(one.epsilon == np.inf for one in plain)
    assert advantages(plain, "all but one")[0] == 1.0
    assert advantages(plain, "alignment")[0] > 0.2
    assert all(one.epsilon == pytest.approx(1.0, abs=1e-6) for one in private)
    # 6 runs of 24 clients know an advantage to 0.06; half of the noise allows 0.21,
    # ε = 8 allows 0.60
    assert advantages(private, "all but one")[0] < largest_advantage(1.0) + 0.3
    assert advantages(private, "alignment")[0] < largest_advantage(1.0) + 0.3


def test_no_attack_can_beat_the_bound() -> None:
    # a Gaussian of μ: at best Φ(μ/2) of the yes and 1 − Φ(μ/2) of the no are wrong
    rng = np.random.default_rng(0)
    import dp_accounting

    mu = 1.0 / dp_accounting.get_sigma_gaussian(1.0, 1e-5)
    there, away = rng.normal(mu, size=200_000), rng.normal(size=200_000)
    best = float(np.mean(there > mu / 2.0) - np.mean(away > mu / 2.0))
    assert best == pytest.approx(largest_advantage(1.0), abs=0.01)
