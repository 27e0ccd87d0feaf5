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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd


def _oriented(
    metrics: ArrayLike, senses: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """All objectives made larger-the-better, and which points are finite."""
    values = np.array(metrics, dtype=np.float64)
    if values.shape[1:] != (len(senses),) or {*senses} - {"min", "max"} or not senses:
        raise ValueError(
            f"senses = {list(senses)!r} must be min or max for each column of metrics, "
            f"which are of shape {values.shape}"
        )
    values *= np.where(np.array(senses) == "min", -1.0, 1.0)
    return values, np.asarray(np.isfinite(values).all(axis=1))


def pareto_front(metrics: ArrayLike, senses: Sequence[str]) -> NDArray[np.bool_]:
    """Which points no other one dominates, bool of shape (m,).

    A point dominates another if it is no worse in every objective and better in one;
    so of equal points all or none are on the front. ``metrics``, (m, n), have a row a
    point and a column an objective, for which ``senses`` say ``"min"`` or ``"max"``;
    ValueError if these do not fit. Points with a value that is not finite are left out.
    """
    values, front = _oriented(metrics, senses)
    known = values[front]
    # a point against all at a time, so that many points need no array of m² rows
    front[front] = [
        not np.any((known >= point).all(axis=1) & (known > point).any(axis=1))
        for point in known
    ]
    return front


def grey_relational_grades(
    metrics: ArrayLike, senses: Sequence[str]
) -> NDArray[np.float64]:
    """How close each point comes to the best of every objective, of shape (m,).

    Parameters and errors are those of :func:`pareto_front`. Grades are between 1/2
    (worst in everything) and 1 (best in everything); NaN for points that are not
    finite, which the scaling leaves out too. An objective in which all points are equal
    adds the same to every grade.
    """
    values, known = _oriented(metrics, senses)
    grades = np.full(len(values), np.nan)
    if not known.any():
        return grades
    kept = values[known]
    # by a power of two, which is exact: no difference of large numbers overflows
    _, exponents = np.frexp(np.abs(kept).max(axis=0))
    kept = np.ldexp(kept, -exponents - 1)
    worst, spread = kept.min(axis=0), np.ptp(kept, axis=0)
    # where all are equal, F = F⁺ = 0
    scaled = np.divide(kept - worst, spread, out=np.zeros_like(kept), where=spread > 0)
    # Δ = |F⁺ − F|
    distance = np.abs(scaled.max(axis=0) - scaled)
    largest, smallest = distance.max(), distance.min()
    # (1/n) Σ (Δ_min + Δ_max)/(Δ + Δ_max)
    coefficients = np.ones_like(distance)  # of one point, or where all are alike
    if largest:
        coefficients = (smallest + largest) / (distance + largest)
    grades[known] = coefficients.mean(axis=1)
    return grades


def ranked(table: pd.DataFrame, senses: Mapping[str, str]) -> pd.DataFrame:
    """Put points in order: the Pareto front by falling grade, then the others.

    The table has a row a point, such as an Optuna study's ``trials_dataframe()``, and
    ``senses`` has its columns that are objectives, ``"min"`` or ``"max"`` for each;
    ValueError for another, or if there is none. One more column is ``grade``, NaN off
    the front: the method is for a front, so that what the scaling makes of its points
    does not depend on how bad the worst trial was. The first row is the recommended
    one; of equals the one that came first.
    """
    metrics, wanted = table[list(senses)].to_numpy(dtype=float), list(senses.values())
    front = pareto_front(metrics, wanted)[:, np.newaxis]
    grades = grey_relational_grades(np.where(front, metrics, np.nan), wanted)
    graded = table.assign(grade=grades)
    # a stable order, NaN last
    return graded.sort_values("grade", ascending=False, kind="stable")
