"""Items about theorems, and items run again with other seeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

import sim
from reproduce import again
from reproduce.__main__ import PAPERS, folder_of
from reproduce.common import Options, app_config, load_results, read_config
from reproduce.fedgia import theory
from reproduce.hyfdca import central
from reproduce.hyfdca.one_place import Table, load, paper_step


def test_fedgias_bound_is_the_theorems() -> None:
    # the paper: rho = 5 m sigma² / eta, that is 10 t³ r / (t² − 5t − 6)
    assert theory.factor(7.0) == pytest.approx(3430.0 / 8.0)
    config = read_config(folder_of("fedgia") / "v1.toml")
    (found,) = theory._bounds(config, 4, range(3, 4))
    task = sim.app.experiment(app_config(config | {"seed": 3}), 4).task
    losses = [task.client_objective(i) for i in range(4)]
    x = task.solution()
    curved = [np.linalg.eigvalsh(np.asarray(f.hessian_bound()))[-1] for f in losses]
    above = np.mean([f.value(np.zeros(len(x))) - f.value(x) for f in losses])
    assert found == pytest.approx(3430.0 / 8.0 * max(curved) * above)


@pytest.fixture(scope="module")
def split() -> Table:
    config = central._config(
        central.SETTINGS["vertical, 4 clients, half in turn"], 0, 60
    )
    return load(config, 4)


def test_the_vertical_step_by_hand(split: Table) -> None:
    """Algorithm 1 with c_k = 1 and γ_t = 1/t, two blocks of columns at a time."""
    X, y, lam = split.X, split.y, split.regularization
    N, blocks = len(y), split.blocks
    states = paper_step(
        split, "theoretical", 0, 0, central.cyclic(4), 1.0, central.shrinking
    )
    alpha = np.zeros(N)
    stale = [np.zeros(len(block)) for block in blocks]
    inner = [np.zeros(N) for _ in blocks]
    active = {0, 1, 2, 3}
    for step in range(1, 6):
        state = next(states)
        w = np.zeros(X.shape[1])
        for k, block in enumerate(blocks):
            w[block] = stale[k]
        np.testing.assert_allclose(state.w, w, atol=1e-9)
        gamma = 1.0 / step
        here = {0, 1} if step % 2 else {2, 3}
        for k in here - active:
            stale[k] = X[:, blocks[k]].T @ alpha / (lam * N)
        for k in here:
            inner[k] = X[:, blocks[k]] @ stale[k]
        z = sum(inner)
        # hinge: u = y where the margin is below 1, else 0; Δ = s γ (u − α) with
        # s in [0, 1] is best for y Δ − z Δ − Δ²/2λ
        longest = gamma * (np.where(y * z < 1.0, y, 0.0) - alpha)
        best = np.clip(lam * (y - z), np.minimum(longest, 0), np.maximum(longest, 0))
        # two of the four holders of every sample take part
        alpha = alpha + 2 / 4 * best
        for k in here:
            stale[k] = X[:, blocks[k]].T @ alpha / (lam * N)
        active = here


def test_stored_repetitions_are_judged_right() -> None:
    """Verdicts by another formula, from the stored items and other seeds."""
    items = load_results(again.STORED)["items"]
    assert {(one["paper"], one["item"]) for one in items} == set(again.AGAIN)
    for one in items:
        name = again.AGAIN[one["paper"], one["item"]]
        results = load_results(
            folder_of(one["paper"]) / "results" / f"{one['item']}.json"
        )
        claims = PAPERS[one["paper"]].claims.PAPERS[0].claims
        (claim,) = (claim for claim in claims if claim.name == name)
        assert claim.effects is not None
        seeds = one["provenance"]["seeds"]
        assert seeds == [again.FIRST + k for k in range(len(seeds))]
        effects = claim.effects({one["item"]: results})
        assert len(effects) == len(one["rows"])
        for effect, row in zip(effects, one["rows"], strict=True):
            old, new = np.array(effect.values), np.array(row["again"])
            np.testing.assert_allclose(old, row["stored"], rtol=1e-6)
            # a two-sided test of one more mean, at 5 % shared by all cases
            spread = old.std(ddof=1) * np.sqrt(1 / len(old) + 1 / len(new))
            p = 2 * t.sf(abs(new.mean() - old.mean()) / spread, len(old) - 1)
            assert row["inside"] == (p >= 0.05 / len(effects))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_item_with_other_seeds_again() -> None:
    """What is stored predicts seeds that nobody has looked at."""
    options = Options(Path(), None, 5, 2, False, 200)
    fresh = PAPERS["fedgia"].ITEMS["rate"].compute(options)
    stored = load_results(folder_of("fedgia") / "results" / "rate.json")
    claims = PAPERS["fedgia"].claims.PAPERS[0].claims
    (claim,) = (claim for claim in claims if claim.name == "stationary")
    rows = again.compare(claim, stored, json.loads(json.dumps(fresh)))
    assert all(row["inside"] for row in rows)
