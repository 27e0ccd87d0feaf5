"""LASSO: sparse linear regression, min ‖Ax − b‖² over an ℓ1 ball."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import Array
from .data.regression import RegressionTask
from .data.task import Dealt, starts_of

__all__ = ["Lasso"]


@dataclass(frozen=True)
class Lasso(RegressionTask):
    """F(x) = ‖Ax − b‖² with b = Ax* + noise, x* sparse.

    A is Gaussian with a diagonal covariance drawn from U[1, 2], x* has standard normal
    entries in random places. The rows are dealt evenly, in order, and
    f_i(x) = n ‖A_i x − b_i‖², so that F = (1/n) Σ f_i.

    Notes
    -----
    Figure 1a of the FedFW workshop paper (2022), which has 200 rows and 400 columns
    and names neither the number of non-zeros nor that of clients.
    """

    name: ClassVar[str] = "lasso"
    summary: ClassVar[str] = "sparse linear regression on generated data"
    not_on_nodes: ClassVar[tuple[str, ...]] = ("rows", "columns", "nonzeros", "noise")
    not_of_file: ClassVar[tuple[str, ...]] = not_on_nodes
    width_field: ClassVar[str] = "columns"

    rows: int = setting(200, "examples, the rows of A", minimum=1)
    columns: int = setting(400, "unknowns, the columns of A", minimum=1)
    nonzeros: int = setting(20, "non-zero entries of the true x*", minimum=1)
    noise: float = setting(0.0, "standard deviation of the noise on b", minimum=0.0)

    def check_settings(self) -> None:  # noqa: D102
        if self.nonzeros > self.columns and self.dataset == "generated":
            raise self.refused(
                "nonzeros", f"must be at most lasso.columns = {self.columns}"
            )

    def node_weight(self, examples: int) -> float:
        """Return n, so that F = ‖Ax − b‖², or 1 where d is not given: F is 1/n of it.

        Either way every example counts the same, as f_i is a sum.
        """
        super().node_weight(examples)
        return float(self.num_clients) if self.nodes.examples else 1.0

    def solution(self) -> Array:
        """Return the true x* (read-only)."""
        return _generated(self)[1]

    def _generate(self) -> Dealt:
        return _generated(self)[0]

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight)

    def _client_weight(self, client: int) -> float:
        return float(self.num_clients)

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return 0 where b has no noise and the domain contains x*."""
        if self.dataset != "generated" or self.noise > 0.0:
            return None
        return 0.0 if domain.contains(self.solution()) else None


@lru_cache(maxsize=4)
def _generated(task: Lasso) -> tuple[Dealt, Array]:
    """Return the rows, dealt in order, and x*."""
    rng = generator(task.seed, "lasso")
    variances = rng.uniform(1.0, 2.0, task.columns)
    A = rng.standard_normal((task.rows, task.columns)) * np.sqrt(variances)
    solution = np.zeros(task.columns)
    support = rng.choice(task.columns, task.nonzeros, replace=False)
    solution[support] = rng.standard_normal(task.nonzeros)
    b = A @ solution + task.noise * rng.standard_normal(task.rows)
    solution.setflags(write=False)
    shares = np.array_split(np.arange(task.rows), task.num_clients)
    return Dealt(A, b, starts_of(shares)).read_only(), solution
