"""Items about theorems, and items run again with other seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress, norm, t

import sim
from reproduce import again
from reproduce.__main__ import PAPERS, folder_of, main
from reproduce.claims import Claim, Effect
from reproduce.common import Options, app_config, load_results, read_config
from reproduce.fedfw import rates
from reproduce.fedgia import theory
from reproduce.hyfdca import central
from reproduce.hyfdca.one_place import Table, load, paper_step
from reproduce.rates import late_slope, slope


def test_slopes_of_power_laws() -> None:
    rounds = [0, *np.unique(np.geomspace(1, 2000, 40).astype(int)).tolist()]
    law = [9.0, *(7.0 * t**-0.4 for t in rounds[1:])]
    assert slope(rounds, law) == pytest.approx(-0.4)
    # what comes before the last decade does not count
    law[: len(rounds) // 2] = [1e6] * (len(rounds) // 2)
    assert late_slope(rounds, law) == pytest.approx(-0.4)


def test_theorem_2s_exponents_are_those_of_the_smallest_gaps() -> None:
    results = load_results(folder_of("fedfw") / "results" / "rates-nonconvex.json")
    assert {row["problem"] for row in results["rows"]} == set(rates.NONCONVEX)
    for row in results["rows"]:
        assert len(row["gaps"]) == results["seeds"] == 5
        T = np.array(row["rounds"], dtype=float)
        assert T[-1] >= 1000
        late = T[-1] <= 10 * T
        for gaps, found in zip(row["gaps"], row["exponents"], strict=True):
            assert min(gaps) > 0.0
            fitted = linregress(np.log(T[late]), np.log(np.array(gaps)[late])).slope
            assert found == pytest.approx(fitted, abs=1e-6)


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


def test_clients_take_turns() -> None:
    here = central.cyclic(4)
    assert [here(t) for t in (1, 2, 3)] == [{0, 1}, {2, 3}, {0, 1}]


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


@pytest.mark.parametrize("count", [1, 5])
def test_prediction_intervals_hold_what_they_say(count: int) -> None:
    rng = np.random.default_rng(count)
    inside = 0
    for _ in range(500):
        low, high = again.predicted(
            Effect("a", rng.normal(2.0, 3.0, 5).tolist()), count
        )
        inside += low <= rng.normal(2.0, 3.0, count).mean() <= high
    assert 0.92 < inside / 500 < 0.98
    # with many stored values it is the normal distribution's
    effect = Effect("a", norm.ppf((np.arange(20_000) + 0.5) / 20_000).tolist())
    assert again.predicted(effect, 1)[1] == pytest.approx(1.96, abs=0.01)


def test_what_has_moved_lies_outside() -> None:
    def effects(found: Any) -> list[Effect]:
        return [Effect(name, values) for name, values in found["item"].items()]

    claim = Claim("x", "words", "page 1", ("item",), effects)
    stored = {"a": [1.0, 1.1, 0.9, 1.05, 0.95], "b": [0.0, 0.1, -0.1, 0.0, 0.05]}
    fresh = {"a": [1.02, 0.97, 1.04], "b": [0.9, 1.0, 1.1]}
    rows = again.compare(claim, stored, fresh)
    assert [row["inside"] for row in rows] == [True, False]
    with pytest.raises(ValueError, match="other cases"):
        again.compare(claim, stored, {"a": [1.0]})


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


def test_again_has_no_quick_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--again", "--quick"]) == 1
    assert "--again compares whole items" in capsys.readouterr().out
