"""HyFDCA with the paper's practical step, as METHODS measured it; takes minutes.

In a file of its own: tests run file by file, several at once.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.strategies.hyfdca_runs import Run, digits_split

# METHODS: scikit-learn's digits, 5 or more against the rest, λ = 10⁻³
DIGITS_UNIT = 0.4076158


@pytest.mark.slow
@pytest.mark.parametrize(
    ("H", "rounds", "lowest", "highest"),
    [
        (2, 1500, DIGITS_UNIT, 0.42),
        (5, 600, 0.5, 1.2),
        (12, 400, 1.2, 3.0),
        (113, 60, 10.0, 100.0),
    ],
)
def test_the_practical_step_as_measured(
    H: int, rounds: int, lowest: float, highest: float
) -> None:
    options: Any = {"step": "practical", "secure_sum": False}
    run = Run(digits_split(unit=True), rounds, local_fraction=H / 449.2, **options)
    last = run.metric("primal")[-50:].mean()
    assert lowest <= last <= highest
