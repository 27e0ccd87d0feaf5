"""Every recorded run comes out as it did in the version that was recorded."""

from __future__ import annotations

import pytest

from tests.recorded.comparison import TIES, differences
from tests.recorded.run_case import machine, read_table, run_case

TABLE = read_table()
CASES = {case["name"]: case for case in TABLE["cases"]}
# Another BLAS, or SciPy's or scikit-learn's next version, leaves other last bits.
SAME_MACHINE = machine().items() <= TABLE["about"].items()
TOLERANCE = 0.0 if SAME_MACHINE else 1e-7

# each method, its kinds of state and messages, losses, nodes' own data
EVERY_DAY = [
    "fedfw/lasso/as-it-is",
    "fedfw/lasso/half-fixed",
    "fedfw/lasso/outer-l2-ball",
    "fedfw/lasso/stochastic-stochastic",
    "fedfw/lasso/everything-goes-wrong",
    "fedfw/matrix-completion/as-it-is",
    "naive-frank-wolfe/lasso/half",
    "projected-fedavg/lasso/in-simplex",
    "feddr/lasso/half-fixed",
    "fedgia/linear-regression/gram-half",
    "fedgia/linear-regression/lossy",
    "fedgia/logistic-regression/as-it-is",
    "fedavg-gd/linear-regression/nodes",
    "local-sgd/linear-regression/as-it-is",
    "fedprox/linear-regression/steps-inverse-sqrt",
    "first-order-rfl/kernel-pca/half",
    "zeroth-order-rfl/attack/upload-scalars",
    "hyfdca/hybrid-svm/bundle-chosen",
    "hyfdca/hybrid-svm/practical",
    "hyfdca/hybrid-svm/secure-sum",
    "hyfdca/hybrid-svm/encrypted",
    "hyfem/hybrid-svm/half-fixed",
    "hybrid-fedavg/hybrid-svm/as-it-is",
]
ERRORS = [name for name, case in CASES.items() if "error" in case["result"]]
METHODS = sorted({name.split("/")[0] for name in CASES if name not in ERRORS})


def different(name: str) -> list[str]:
    """What is not as it was, and is not meant to be otherwise."""
    case = CASES[name]
    if not SAME_MACHINE and name in TIES:
        return []
    if case["config"].get("hyfdca.encryption") == "tenseal-bfv":
        pytest.importorskip("tenseal")
    if "classification.model" in case["config"]:
        pytest.importorskip("torch")
    found = differences(case, run_case(case), TOLERANCE)
    return [text for text, reason in found if reason is None]


@pytest.mark.parametrize("name", EVERY_DAY)
def test_a_run_is_as_it_was_recorded(name: str) -> None:
    assert not different(name)


def test_what_was_refused_is_refused_with_the_same_words() -> None:
    assert not [text for name in ERRORS for text in different(name)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_all_runs_of_a_method_are_as_they_were_recorded(method: str) -> None:
    names = [
        name
        for name in CASES
        if name.startswith(f"{method}/") and name not in (*ERRORS, *EVERY_DAY)
    ]
    assert names
    assert not [text for name in names for text in different(name)]
