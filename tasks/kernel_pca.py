"""Principal components of examples that are dealt to the clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.domains import Domain, L2Ball, SpectralNormBall
from fedtrellis.manifolds import Stiefel
from fedtrellis.objectives.matrices import PrincipalComponents
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, data_path, once, toy
from .data.readers import read_matrix
from .data.table import FILE, NODES, dense
from .data.task import Dealt, Indices, Nonconvex, Task, starts_of


@dataclass(frozen=True)
class KernelPCA(Nonconvex, Task):
    """F(x) = −(1/2N) Σ_j Tr(xᵀ H_j x) over the p × r matrices with xᵀx = I.

    H_j = a_j a_jᵀ, a_j the centred examples, so that F(x) = −½ Tr(xᵀ C x) with C their
    covariance, and f_i(x) = −(n/2N) Tr(xᵀ A_iᵀA_i x) with A_i the client's rows, so
    that F = (1/n) Σ f_i. The minimum is known: −½ Σ of the r largest eigenvalues of C.

    ``partition = "sorted"``: the examples by label, of one label in their order, in
    equal consecutive shares, so that clients see different classes; the rows of a file
    have no labels and keep their order. ``"iid"``: shuffled first.

    ``scale`` divides the examples by √‖C‖₂, after which C has norm 1 and one step size
    suits all data sets. The mean and ‖C‖₂ are those of all examples together: real
    clients would have to agree on them.

    Notes
    -----
    §5.1 of arXiv 2507.22855, which is not federated: ``dataset = "iris"``,
    ``components = 2``; ``dataset = "digits"``, ``components = 4``, ``samples = 200``.
    It does not say how the data is centred or scaled.
    """

    name = "kernel-pca"
    summary = "principal components of digits, iris or a file's matrix"
    bounded_below = False

    not_on_nodes = (*Task.not_on_nodes, "samples")
    label_kind = "none"

    dataset: str = setting(
        "digits",
        "the data set; 'nodes': every node's own file",
        choices=("digits", "iris", FILE, NODES),
    )
    path: str = setting(
        "", "a matrix, .npy, .csv or the features of a .npz", only={"dataset": (FILE,)}
    )
    components: int = setting(4, "r, the number of components", minimum=1)
    samples: int = setting(0, "take the first examples only; 0 for all", minimum=0)
    scale: bool = setting(True, "divide the examples so that the covariance has norm 1")
    partition: str = setting(
        "sorted", "how examples are dealt to clients", choices=("sorted", "iid")
    )

    def check(self) -> None:  # noqa: D102
        self.check_path()
        features = self.shapes()[0][0]
        if self.components > features:
            why = f"is too many: the examples have {features} features"
            raise self.refused("components", why)
        super().check()

    def check_nodes(self) -> None:  # noqa: D102
        super().check_nodes()
        if self.scale:
            raise SettingsError(
                "kernel-pca.scale = true does not fit kernel-pca.dataset = "
                f"{NODES!r}: ‖C‖₂ is that of the examples of all nodes; allowed: false"
            )

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features(), self.components)]
        return [(self._examples()[0].shape[1], self.components)]

    def domains(self) -> dict[str, float]:
        """Return the convex hull of the manifold, and a ball as large."""
        return {"spectral-norm-ball": 1.0, "l2-ball": float(np.sqrt(self.components))}

    def manifold(self) -> Stiefel:
        """Return the p × r matrices with orthonormal columns."""
        return Stiefel(self.shapes()[0])

    def optimum(self) -> float:
        """Return F* = −½ Σ of the r largest eigenvalues of C."""
        objective: Any = self.objective()
        return float(objective.optimum())

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return the minimum over the two domains, which F attains at their rims."""
        if self.on_nodes:
            return None
        if isinstance(domain, SpectralNormBall):
            # concave: at an extreme point of the ball, ρ times one with xᵀx = I
            return domain.radius**2 * self.optimum()
        if isinstance(domain, L2Ball):
            # −½ ρ² λ_max
            return -0.5 * domain.radius**2 * self.objective().lipschitz()
        return None

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"optimality-gap": F(x) − F*, "subspace-error": ...}``.

        See :class:`fedtrellis.objectives.matrices.PrincipalComponents`;
        both are meant for points of the manifold.
        """
        objective: Any = self.objective()
        found: dict[str, float] = objective.metrics(self.argument(x))
        return found

    def _node_inputs(self, features: Any) -> Any:
        return dense(features)

    def _loss(self, features: Any, targets: Any, weight: float) -> PrincipalComponents:
        return PrincipalComponents(features, self.components, weight=weight)

    def _load(self) -> Dealt:
        rows, labels = self._examples()
        self.check_clients(len(rows), "examples")
        if self.partition == "sorted":
            order = np.argsort(labels, kind="stable")
        else:
            order = generator(self.seed, "partition").permutation(len(rows))
        centred = rows[order] - rows.mean(axis=0)
        if self.scale:
            # √‖C‖₂
            norm = math.sqrt(max(0.0, PrincipalComponents(centred, 1).lipschitz()))
            # what centring equal rows leaves is rounding
            if norm <= 1e-12 * np.abs(rows).max():
                raise SettingsError(
                    f"kernel-pca.dataset = {self.dataset!r}: all {len(rows)} examples "
                    "are the same, so that there is no covariance to scale"
                )
            centred /= norm
        starts = starts_of(np.array_split(order, self.num_clients))
        return Dealt(centred, labels[order], starts)

    @once(4)
    def _examples(self) -> tuple[Array, Indices]:
        """Return the examples as they come, and their labels."""
        if self.on_file:
            rows = read_matrix(data_path("kernel-pca.path", self.path))
            labels = np.zeros(len(rows), dtype=np.intp)
        else:
            rows, labels = toy(self.dataset, f"kernel-pca.dataset = {self.dataset!r}")
        limit = self.samples or len(rows)
        return rows[:limit].astype(np.float64), labels[:limit].astype(np.intp)
