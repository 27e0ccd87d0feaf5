"""Linear regression on samples from three distributions, each client a few of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.checks import is_sparse
from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import Array
from .data.regression import RegressionTask
from .data.task import Dealt, data_of

__all__ = ["LinearRegression"]


@dataclass(frozen=True)
class LinearRegression(RegressionTask):
    """F(x) = (1/n) Σ f_i(x), least squares on generated samples.

    Client i has d_i samples (a, b), d_i uniform among the whole numbers from
    ``rows-min`` to ``rows-max``. All entries of a sample, b among them, are independent
    and come from one of three distributions: the standard normal, Student's t with 5
    degrees of freedom, and U[−5, 5].

    - ``partition = "shuffled"``: a third of all samples from each (give or take one),
      in random order, dealt to the clients;
    - ``partition = "by-distribution"``: client i's are all from distribution i mod 3.

    - ``weighting = "clients"``: f_i(x) = (1/2d_i) ‖A_i x − b_i‖²; every client counts
      the same;
    - ``weighting = "examples"``: that times n·d_i/d, so that every example counts the
      same, F(x) = (1/2d) ‖Ax − b‖².

    Notes
    -----
    Example V.1 of FedGiA, arXiv 2205.01438, with 100 features, d_i from 50 to 150 and
    every client counting the same. The paper does not say how large the parts of the
    distributions are. Its features all have one variance (``condition = 1``), with
    which ∇²F has the condition number 2.
    """

    name: ClassVar[str] = "linear-regression"
    summary: ClassVar[str] = "least squares on generated data of three distributions"
    not_of_file: ClassVar[tuple[str, ...]] = (
        *("features", "rows_min", "rows_max", "partition", "condition"),
    )
    not_on_nodes: ClassVar[tuple[str, ...]] = (*not_of_file, "weighting")
    width_field: ClassVar[str] = "features"

    features: int = setting(100, "unknowns, the features of a sample", minimum=1)
    rows_min: int = setting(50, "the fewest examples of a client", minimum=1)
    rows_max: int = setting(150, "the most examples of a client", minimum=1)
    partition: str = setting(
        "shuffled",
        "how examples are dealt to clients",
        choices=("shuffled", "by-distribution"),
    )
    weighting: str = setting(
        "clients",
        "what counts the same: every client, or every example",
        choices=("clients", "examples"),
    )
    condition: float = setting(
        1.0,
        "the largest variance of a feature over the smallest, which makes the problem "
        "harder: feature j of p is multiplied by condition^(−(j−1)/(2(p−1)))",
        minimum=1.0,
    )

    def check_settings(self) -> None:  # noqa: D102
        if self.rows_min > self.rows_max:
            why = f"must be at most linear-regression.rows-max = {self.rows_max}"
            raise self.refused("rows_min", why)

    def solution(self) -> Array:
        """Return x*, where F has its minimum without a constraint (read-only).

        The one of smallest norm, where there are fewer examples than features.
        """
        return _solution(self)

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight, scale="half-mean")

    def _client_weight(self, client: int) -> float:
        # n d_i/d
        examples = self.weighting == "examples"
        return super()._client_weight(client) if examples else 1.0

    def _build_objective(self) -> LeastSquares:
        if self.weighting == "examples":
            return super()._build_objective()  # type: ignore[no-any-return]
        # (1/n) Σ_i (1/2d_i) ‖A_i x − b_i‖² = ‖W^½ (Ax − b)‖², one product for all
        return LeastSquares(*_weighted(self))

    def _generate(self) -> Dealt:
        rng = generator(self.seed, "linear-regression sizes")
        sizes = rng.integers(self.rows_min, self.rows_max + 1, self.num_clients)
        rng = generator(self.seed, "linear-regression")
        count = int(sizes.sum())
        if self.partition == "shuffled":
            kinds = rng.permutation(np.arange(count) % 3)
        else:
            kinds = np.repeat(np.arange(len(sizes)) % 3, sizes)
        A, b = np.empty((count, self.features)), np.empty(count)
        draws: tuple[Callable[[tuple[int, int]], Any], ...] = (
            rng.standard_normal,
            lambda shape: rng.standard_t(5.0, shape),
            lambda shape: rng.uniform(-5.0, 5.0, shape),
        )
        for kind, draw in enumerate(draws):
            rows = np.flatnonzero(kinds == kind)
            samples = draw((len(rows), self.features + 1))
            A[rows], b[rows] = samples[:, :-1], samples[:, -1]
        if self.condition > 1.0:
            # column j is multiplied by κ^(−(j−1)/(2(p−1)))
            A *= self.condition ** -np.linspace(0.0, 0.5, self.features)
        starts = np.cumsum([0, *sizes]).astype(np.intp)
        return Dealt(A, b, starts)


def _weighted(task: LinearRegression) -> tuple[Array, Array]:
    """Return W^½ A and W^½ b with F(x) = ‖W^½ (Ax − b)‖²."""
    data = data_of(task)
    A, b, sizes = data.features, data.targets, np.diff(data.starts)
    if task.weighting == "examples":
        weights = np.full(len(b), 0.5 / len(b))
    else:
        # 1/(2 n d_i) for each of client i's rows
        weights = np.repeat(0.5 / (len(sizes) * sizes), sizes)
    roots = np.sqrt(weights)
    column = roots[:, None]
    return A.multiply(column) if is_sparse(A) else A * column, b * roots


@lru_cache(maxsize=4)
def _solution(task: LinearRegression) -> Array:
    solution = np.asarray(np.linalg.lstsq(*_weighted(task), rcond=None)[0])
    solution.setflags(write=False)
    return solution
