"""Every recorded run comes out as it did in the version that was recorded."""

from __future__ import annotations

import pytest

from tests.recorded.comparison import TIES, differences
from tests.recorded.run_case import machine, read_table, run_case

TABLE = read_table()
# Another BLAS, or SciPy's or scikit-learn's next version, leaves other last bits.
SAME_MACHINE = machine().items() <= TABLE["about"].items()
TOLERANCE = 0.0 if SAME_MACHINE else 1e-7


@pytest.mark.parametrize(
    "method", sorted({case["name"].split("/")[0] for case in TABLE["cases"]})
)
def test_all_runs_of_a_method_are_as_they_were_recorded(method: str) -> None:
    pytest.importorskip("tenseal")
    pytest.importorskip("torch")
    for case in TABLE["cases"]:
        name = case["name"]
        if name.startswith(f"{method}/") and (SAME_MACHINE or name not in TIES):
            found = differences(case, run_case(case), TOLERANCE)
            assert not [text for text, reason in found if reason is None]
