"""Grey relational analysis, against values worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import ArrayLike

from fedtrellis.tune.grey_relational import (
    grey_relational_grades,
    pareto_front,
    ranked,
)


def recommended(metrics: ArrayLike, senses: Sequence[str]) -> int:
    """The first row of the ranking."""
    columns = [f"metric {i}" for i in range(len(senses))]
    table = pd.DataFrame(np.asarray(metrics), columns=columns)
    return int(ranked(table, dict(zip(columns, senses, strict=True))).index[0])


def test_grades_of_three_points_worked_out_by_hand() -> None:
    """A cost to minimise and a yield to maximise.

    Cost 10, 20, 30 scales to F = 1, 1/2, 0 and yield 1, 4, 5 to F = 0, 3/4, 1. The
    ideal is (1, 1), so Δ = (0, 1), (1/2, 1/4), (1, 0), Δmin = 0 and Δmax = 1. The
    coefficients 1/(Δ + 1) are (1, 1/2), (2/3, 4/5), (1/2, 1), and their means
    3/4, 11/15, 3/4.
    """
    metrics, senses = np.array([[10, 1], [20, 4], [30, 5]]), ["min", "max"]
    assert_allclose(
        grey_relational_grades(metrics, senses), [3 / 4, 11 / 15, 3 / 4], rtol=1e-15
    )
    assert recommended(metrics, senses) == 0  # the first of equal grades


def test_points_that_are_not_finite_are_left_out_of_everything() -> None:
    metrics = np.array(
        [[10, 1], [np.nan, 100], [20, 4], [30, 5], [-np.inf, 9], [0, np.inf]]
    )
    senses = ["min", "max"]
    grades = grey_relational_grades(metrics, senses)
    assert_allclose(grades[[0, 2, 3]], [3 / 4, 11 / 15, 3 / 4])
    assert np.isnan(grades[[1, 4, 5]]).all()
    assert_array_equal(pareto_front(metrics, senses), [1, 0, 1, 1, 0, 0])
    assert recommended(metrics, senses) == 0


def test_a_front_by_hand() -> None:
    """(1, 5), (2, 2), (4, 1) trade one for the other; the rest is dominated."""
    metrics = np.array([[1, 5], [2, 2], [4, 1], [2, 3], [5, 5], [4, 1.5]])
    assert_array_equal(pareto_front(metrics, ["min", "min"]), [1, 1, 1, 0, 0, 0])
    assert_array_equal(pareto_front(metrics, ["max", "max"]), [0, 0, 0, 0, 1, 0])
