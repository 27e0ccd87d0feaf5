"""FedGiA beside tuned baselines: what the stored comparison rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reproduce.__main__ import folder_of
from reproduce.common import load_results
from reproduce.fedfw.tuning import Search, Space
from reproduce.fedgia import claims, tuned
from tasks import LinearRegression


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return load_results(folder_of("fedgia") / "results" / "v1-tuned.json")


def test_all_methods_had_one_budget_and_the_same_seeds(stored: dict[str, Any]) -> None:
    cases = len(tuned.CONDITIONS) * len(tuned.STEPS)
    assert len(stored["rows"]) == cases * (len(tuned.TUNED) + 1)
    seeds = stored["provenance"]["seeds"]
    assert seeds == [*range(tuned.SEEDS), *tuned.CHOICE]
    for row in stored["rows"]:
        assert len(row["left"]) == len(row["broadcasts"]) == tuned.SEEDS
        if row["method"] == tuned.ADAPTED:
            assert row["chosen"] == {}
            continue
        assert len(row["tried"]) <= stored["budget"] == tuned.BUDGET
        assert row["inside"]
        (name,) = row["chosen"]
        tried = {trial[name]: trial["score"] for trial in row["tried"]}
        failed = [value for value, score in tried.items() if score is None]
        # what is next to a setting that failed is not chosen, however good
        safe = {
            value: score
            for value, score in tried.items()
            if score is not None
            and all(abs(np.log10(value / f)) > 1.1 * tuned.MESH for f in failed)
        }
        assert row["score"] == safe[row["chosen"][name]] == max(safe.values())


def test_what_is_chosen_is_off_the_edge_of_divergence() -> None:
    one = Search(Space(("t",), (0.0,)))
    one.tried = {(0.0,): -9.0, (-0.125,): -8.0, (-0.25,): -np.inf, (0.25,): -12.0}
    assert one.best == (-0.125,)
    assert tuned.chosen(one) == (0.0,)


@pytest.mark.parametrize("condition", tuned.CONDITIONS)
def test_gradient_descent_in_a_plain_loop(
    stored: dict[str, Any], condition: float
) -> None:
    """FedAvg with one local step is gradient descent on f."""
    (row,) = (
        row
        for row in stored["rows"]
        if (row["condition"], row["k0"], row["method"]) == (condition, 1, "FedAvg")
    )
    seed = 2
    task = LinearRegression(num_clients=64, seed=seed, condition=condition)
    f = task.objective()
    H = np.asarray(f.hessian_bound())
    best = task.solution()
    x, start = np.zeros(len(best)), 0.5 * best @ H @ best
    shares = []
    for k in range(stored["rounds"] + 1):
        # f(x) − f* = ½ (x − x*)ᵀ H (x − x*)
        shares.append(0.5 * (x - best) @ H @ (x - best) / start)
        step = row["chosen"]["local-step-size"]
        step /= np.sqrt(k + 1)
        x = x - step * np.asarray(f.gradient(x))
    found = row["curves"][seed]
    expected = np.array([shares[t] for t in row["round"]])
    np.testing.assert_allclose(
        found, np.maximum(expected, 1e-12), rtol=1e-3, atol=1e-11
    )
    assert row["left"][seed] == pytest.approx(
        max(shares[-1], 1e-12), rel=1e-3, abs=1e-11
    )
    arrived = [t + 1 for t, share in enumerate(shares) if share <= tuned.GOAL]
    assert row["broadcasts"][seed] == (arrived[0] if arrived else stored["rounds"])


def test_the_baseline_is_chosen_by_other_data() -> None:
    rows = [
        {"condition": condition, "k0": k0, "method": method, "score": score}
        for condition in tuned.CONDITIONS
        for k0 in tuned.STEPS
        for method, score in (
            ("FedGiA_G", -9.0),
            ("FedGiA_D", -8.0),
            ("FedAvg", -40.0),
            ("LocalSGD", -90.0),
            ("FedProx", -30.0),
        )
    ]
    found = list(claims._tuned({"v1-tuned": {"rows": rows}}))
    assert len(found) == 2 * len(tuned.CONDITIONS) * len(tuned.STEPS)
    assert {theirs["method"] for _, _, theirs, _ in found} == {"FedProx"}
    assert {ours["method"] for *_, ours in found} == set(claims.VARIANTS)
