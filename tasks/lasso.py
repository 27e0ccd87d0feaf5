"""LASSO: sparse linear regression, min ‖Ax − b‖² over an ℓ1 ball."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, even_share
from .data.any_file import DealtRows
from .data.node_task import NodeDataTask
from .data.settings import FILE, NODES, Schema
from .data.table import NodeTable

__all__ = ["Lasso"]


class _Data(NamedTuple):
    A: Array
    b: Array
    solution: Array


@dataclass(frozen=True)
class Lasso(NodeDataTask):
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

    dataset: str = setting(
        "generated",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=("generated", FILE, NODES),
    )
    path: str = setting(
        "", "the file, with dataset = 'file'", only={"dataset": (FILE,)}
    )
    rows: int = setting(200, "examples, the rows of A", minimum=1)
    columns: int = setting(400, "unknowns, the columns of A", minimum=1)
    nonzeros: int = setting(20, "non-zero entries of the true x*", minimum=1)
    noise: float = setting(0.0, "standard deviation of the noise on b", minimum=0.0)

    def check(self) -> None:  # noqa: D102
        if self.on_nodes:
            self.check_nodes()
            return
        if self.on_file:
            self.check_file()
        elif self.nonzeros > self.columns:
            raise SettingsError(
                f"lasso.nonzeros = {self.nonzeros} must be at most lasso.columns "
                f"= {self.columns}"
            )
        super().check()

    def num_examples(self) -> int:  # noqa: D102
        if self.on_nodes:
            return self.nodes.examples
        return len(_dealt(self).targets) if self.on_file else self.rows

    def node_schema(self) -> Schema:
        """Return the schema: rows of A, and b as the label."""
        return Schema(
            self.nodes.num_features(),
            self.nodes.names(),
            "number",
            label_column=self.nodes.label_column,
        )

    def node_weight(self, examples: int) -> float:
        """Return n, so that F = ‖Ax − b‖², or 1 where d is not given: F is 1/n of it.

        Either way every example counts the same, as f_i is a sum.
        """
        super().node_weight(examples)
        return float(self.num_clients) if self.nodes.examples else 1.0

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_file:
            return [(_dealt(self).features.shape[1],)]
        return [(self.nodes.num_features() if self.on_nodes else self.columns,)]

    def domains(self) -> dict[str, float]:
        """Return balls with x* on their boundary; the default is ‖x‖₁ ≤ ‖x*‖₁.

        Without radii for a file or nodes' own data, whose x* nobody knows.
        """
        if self.on_nodes or self.on_file:
            return dict.fromkeys(("l1-ball", "l2-ball", "linf-ball"), 0.0)
        truth = self.solution()
        return {
            "l1-ball": float(np.abs(truth).sum()),
            "l2-ball": float(np.linalg.norm(truth)),
            "linf-ball": float(np.abs(truth).max()),
        }

    def solution(self) -> Array:
        """Return the true x* (read-only)."""
        return _data(self).solution

    def _build_objective(self) -> LeastSquares:
        if self.on_file:
            dealt = _dealt(self)
            return LeastSquares(dealt.features, dealt.targets)
        data = _data(self)
        return LeastSquares(data.A, data.b)

    def _build_client_objective(self, client: int) -> LeastSquares:
        self.check()
        if self.on_file:
            A, b = _dealt(self).share(client)
            return LeastSquares(A, b, weight=float(self.num_clients))
        data = _data(self)
        # consecutive: views, not copies
        own = even_share(self.rows, self.num_clients, client)
        return LeastSquares(data.A[own], data.b[own], weight=float(self.num_clients))

    def _build_node_objective(self, table: NodeTable, weight: float) -> LeastSquares:
        assert table.targets is not None
        return LeastSquares(table.features, table.targets, weight=weight)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"solution-error": ‖x − x*‖₂}``; nothing where nobody knows x*."""
        if self.on_file:
            return {}
        error = self.argument(x) - self.solution()
        return {"solution-error": float(np.linalg.norm(error))}

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return 0 where b has no noise and the domain contains x*."""
        if self.on_nodes or self.on_file or self.noise > 0.0:
            return None
        return 0.0 if domain.contains(self.solution()) else None


def _dealt(task: Lasso) -> DealtRows:
    return task.dealt_file(task.path)


@lru_cache(maxsize=4)
def _data(task: Lasso) -> _Data:
    rng = generator(task.seed, "lasso")
    variances = rng.uniform(1.0, 2.0, task.columns)
    A = rng.standard_normal((task.rows, task.columns)) * np.sqrt(variances)
    solution = np.zeros(task.columns)
    support = rng.choice(task.columns, task.nonzeros, replace=False)
    solution[support] = rng.standard_normal(task.nonzeros)
    b = A @ solution + task.noise * rng.standard_normal(task.rows)
    for array in (A, b, solution):
        array.setflags(write=False)
    return _Data(A, b, solution)
