"""What the regressions share: a file of the user's, and an x* that is known."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrellis.domains import Domain
from fedtrellis.random import generator
from fedtrellis.settings import setting

from ..base import Array, Point
from .readers import read_own_file
from .settings import FILE, NODES
from .task import Dealt, NodeDataTask, arrange, data_of


@dataclass(frozen=True)
class RegressionTask(NodeDataTask):
    """Least squares, on generated data with a known solution x* or on files.

    Attributes
    ----------
    width_field : str
        The field that says how many unknowns the generated data has.
    """

    dataset: str = setting(
        "generated",
        "the data set; 'file': a csv, npz or LIBSVM file; 'nodes': every node's own",
        choices=("generated", FILE, NODES),
    )
    path: str = setting(
        "", "the file, with dataset = 'file'", only={"dataset": (FILE,)}
    )

    width_field: ClassVar[str]

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_file:
            return [(data_of(self).features.shape[1],)]
        generated = getattr(self, self.width_field)
        return [(self.nodes.num_features() if self.on_nodes else generated,)]

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
