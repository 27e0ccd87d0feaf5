"""Every recorded run comes out as it did in the version that was recorded."""

from __future__ import annotations

from collections.abc import Iterable

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
REST = [name for name in CASES if name not in (*ERRORS, *EVERY_DAY)]


def check(names: Iterable[str]) -> None:
    """Nothing is otherwise than it was that is not meant to be."""
    found: list[tuple[str, str | None]] = []
    for name in names:
        case = CASES[name]
        if case["config"].get("hyfdca.encryption") == "tenseal-bfv":
            pytest.importorskip("tenseal")
        if "classification.model" in case["config"]:
            pytest.importorskip("torch")
        if SAME_MACHINE or name not in TIES:
            found += differences(case, run_case(case), TOLERANCE)
    assert not [text for text, reason in found if reason is None]


@pytest.mark.parametrize("name", EVERY_DAY)
def test_a_run_is_as_it_was_recorded(name: str) -> None:
    check([name])


def test_what_was_refused_is_refused_with_the_same_words() -> None:
    check(ERRORS)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({name.split("/")[0] for name in REST}))
def test_all_runs_of_a_method_are_as_they_were_recorded(method: str) -> None:
    check(name for name in REST if name.startswith(f"{method}/"))
