"""Grey relational analysis: one point of a Pareto front, without any weights.

Wang and Rangaiah, *Application and Analysis of Methods for Selecting an Optimal
Solution from the Pareto-Optimal Front obtained by Multiobjective Optimization*,
Industrial & Engineering Chemistry Research 56 (2017). The n objectives of m points:

1. each is scaled to [0, 1], so that 1 is the best value among the points and 0 the
   worst, F = (f − f_min)/(f_max − f_min) or (f_max − f)/(f_max − f_min);
2. the ideal reference F⁺ is the best of each, so 1 wherever the points differ;
3. Δ = |F⁺ − F|, with the smallest and largest Δ over all points and objectives;
4. the grade of a point is (1/n) Σ (Δ_min + Δ_max)/(Δ + Δ_max), and the point of the
   largest is recommended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

_SIGNS = {"min": -1.0, "max": 1.0}


def pareto_front(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points no other one dominates, bool of shape (m,).

    ``values``, (m, n), have a row a point, and a column an objective of which larger is
    better. A point dominates another if it is no worse in every objective and better in
    one; so of equal points all or none are on the front.
    """
    # a point against all at a time, so that many points need no array of m² rows
    dominated = [
        np.any((values >= point).all(axis=1) & (values > point).any(axis=1))
        for point in values
    ]
    return ~np.array(dominated, dtype=np.bool_)


def grey_relational_grades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How close each point comes to the best of every objective, of shape (m,).

    ``values`` are as for :func:`pareto_front`. Grades are between 1/2 (worst in
    everything) and 1 (best in everything). An objective in which all points are equal
    adds the same to every grade.
    """
    worst, spread = values.min(axis=0), np.ptp(values, axis=0)
    scaled = (values - worst) / np.where(spread > 0.0, spread, 1.0)
    # Δ = |F⁺ − F|; where all are equal, F = F⁺ = 0
    distance = scaled.max(axis=0) - scaled
    largest, smallest = distance.max(), distance.min()
    if largest == 0.0:  # one point, or all are alike
        return np.ones(len(values))
    # (1/n) Σ (Δ_min + Δ_max)/(Δ + Δ_max)
    coefficients = (smallest + largest) / (distance + largest)
    return np.asarray(coefficients.mean(axis=1))


def ranked(table: pd.DataFrame, senses: Mapping[str, str]) -> pd.DataFrame:
    """Put points in order: the Pareto front by falling grade, then the others.

    The table has a row a point, such as an Optuna study's ``trials_dataframe()``, and
    ``senses`` has its columns that are objectives, ``"min"`` or ``"max"`` for each;
    KeyError for another. One more column is ``grade``, NaN off the front and for points
    with a value that is not finite: the method is for a front, so that what the scaling
    makes of its points does not depend on how bad the worst trial was. The first row is
    the recommended one; of equals the one that came first.
    """
    signs = [_SIGNS[sense] for sense in senses.values()]
    values = table[list(senses)].to_numpy(dtype=float) * signs
    known = np.flatnonzero(np.isfinite(values).all(axis=1))
    front = known[pareto_front(values[known])]
    grades = np.full(len(table), np.nan)
    if len(front):
        grades[front] = grey_relational_grades(values[front])
    # a stable order, NaN last
    by_grade = table.assign(grade=grades)
    return by_grade.sort_values("grade", ascending=False, kind="stable")
