"""Least squares on generated data whose solution is known, or on files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.objectives import LeastSquares
from fedtrellis.objectives.base import is_sparse
from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import Array, Point, once
from .data.readers import read_own_file
from .data.table import FILE, NODES
from .data.task import Dealt, Task, arrange, data_of, starts_of


@dataclass(frozen=True)
class RegressionTask(Task):
    """Least squares, on generated data with a known solution x* or on files."""

    dataset: str = setting(
        "generated",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=("generated", FILE, NODES),
    )
    path: str = setting(
        "", "the file, with dataset = 'file'", only={"dataset": (FILE,)}
    )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features(),)]
        return [(data_of(self).features.shape[1],)]

    def domains(self) -> dict[str, float]:
        """Return balls with x* on their boundary; the default is ‖x‖₁ ≤ ‖x*‖₁.

        Without radii for a file or nodes' own data, whose x* nobody knows.
        """
        if self.dataset != "generated":
            return dict.fromkeys(("l1-ball", "l2-ball", "linf-ball"), 0.0)
        x = self.solution()
        return {
            "l1-ball": float(np.abs(x).sum()),
            "l2-ball": float(np.linalg.norm(x)),
            "linf-ball": float(np.abs(x).max()),
        }

    @abstractmethod
    def solution(self) -> Array:
        """Return x* of the generated data (read-only)."""

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"solution-error": ‖x − x*‖₂}``; nothing where nobody knows x*."""
        if self.on_file:
            return {}
        error = self.argument(x) - self.solution()
        return {"solution-error": float(np.linalg.norm(error))}

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return F(x*) where the domain contains x*, as all of space does."""
        if self.dataset != "generated" or not domain.contains(self.solution()):
            return None
        return self.value(self.solution())

    def _load(self) -> Dealt:
        if not self.on_file:
            return self._generate()
        column = self.nodes.label_column
        table = read_own_file(f"{self.name}.path", self.path, "number", column)
        order = generator(self.seed, "partition").permutation(len(table.targets))
        shares = np.array_split(order, self.num_clients)
        return arrange(table.features, table.targets, shares)

    @abstractmethod
    def _generate(self) -> Dealt:
        """Generate the data, dealt to the clients."""


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

    name = "lasso"
    summary = "sparse linear regression on generated data"
    not_of_file = ("rows", "columns", "nonzeros", "noise")
    not_on_nodes = not_of_file

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
        return self._generated()[1]

    def _generate(self) -> Dealt:
        return self._generated()[0]

    @once(4)
    def _generated(self) -> tuple[Dealt, Array]:
        """Return the rows, dealt in order, and x*."""
        rng = generator(self.seed, "lasso")
        variances = rng.uniform(1.0, 2.0, self.columns)
        A = rng.standard_normal((self.rows, self.columns)) * np.sqrt(variances)
        solution = np.zeros(self.columns)
        support = rng.choice(self.columns, self.nonzeros, replace=False)
        solution[support] = rng.standard_normal(self.nonzeros)
        b = A @ solution + self.noise * rng.standard_normal(self.rows)
        solution.setflags(write=False)
        shares = np.array_split(np.arange(self.rows), self.num_clients)
        return Dealt(A, b, starts_of(shares)), solution

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight)

    def _client_weight(self, client: int) -> float:
        return float(self.num_clients)

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return 0 where b has no noise and the domain contains x*."""
        known = None if self.noise else super().reference_optimum(domain)
        return None if known is None else 0.0


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

    name = "linear-regression"
    summary = "least squares on generated data of three distributions"
    not_of_file = ("features", "rows_min", "rows_max", "partition", "condition")
    not_on_nodes = (*not_of_file, "weighting")

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

    @once(4)
    def solution(self) -> Array:
        """Return x*, where F has its minimum without a constraint (read-only).

        The one of smallest norm, where there are fewer examples than features.
        """
        solution = np.asarray(np.linalg.lstsq(*self._weighted(), rcond=None)[0])
        solution.setflags(write=False)
        return solution

    def _weighted(self) -> tuple[Array, Array]:
        """Return W^½ A and W^½ b with F(x) = ‖W^½ (Ax − b)‖²."""
        A, b, starts, *_ = data_of(self)
        sizes = np.diff(starts)
        weights = np.full(len(b), 0.5 / len(b))
        if self.weighting == "clients":
            # 1/(2 n d_i) for each of client i's rows
            weights = np.repeat(0.5 / (len(sizes) * sizes), sizes)
        roots = np.sqrt(weights)
        column = roots[:, None]
        return A.multiply(column) if is_sparse(A) else A * column, b * roots

    def _loss(self, features: Any, targets: Any, weight: float) -> LeastSquares:
        return LeastSquares(features, targets, weight=weight, scale="half-mean")

    def _build_objective(self) -> LeastSquares:
        if self.weighting == "examples":
            return super()._build_objective()  # type: ignore[no-any-return]
        # (1/n) Σ_i (1/2d_i) ‖A_i x − b_i‖² = ‖W^½ (Ax − b)‖², one product for all
        return LeastSquares(*self._weighted())

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
        return Dealt(A, b, np.cumsum([0, *sizes]).astype(np.intp))
