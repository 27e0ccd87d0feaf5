"""The quadratic assignment problem, relaxed to the Birkhoff polytope."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.objectives import QuadraticAssignment
from fedtrellis.random import generator
from fedtrellis.settings import setting

from .base import Array, Point, data_path, once
from .data.table import fault
from .data.task import Nonconvex


class Instance(NamedTuple):
    """A QAPLIB instance: minimise Σ_ij A_ij B_{p(i), p(j)} over permutations p.

    ``optimum`` is the best cost known, None where it is not known.
    """

    A: Array
    B: Array
    optimum: float | None


@dataclass(frozen=True)
class QuadraticAssignmentTask(Nonconvex):
    """F(X) = trace(A X Bᵀ Xᵀ) over the doubly stochastic matrices; not convex.

    F is linear in A and in B. The non-zero entries of the one of the two that has
    more of them (A if equal) are shuffled by the seed and dealt evenly, and f_i is n
    times the cost with the client's entries alone, so that F = (1/n) Σ f_i. (chr12a:
    A has 22 and B 130, so A's could not be dealt to the paper's 72 clients.)

    Notes
    -----
    Figure 1d of the FedFW workshop paper (2022): chr12a, 72 clients; it does not say
    how the cost is split.
    """

    name = "quadratic-assignment"
    summary = "relaxed quadratic assignment, chr12a of QAPLIB or a file"
    bounded_below = False

    path: str = setting("", "a QAPLIB .dat file; empty for the built-in chr12a")

    def check(self) -> None:  # noqa: D102
        self.check_clients(self.num_examples(), "non-zero entries to deal")

    def num_examples(self) -> int:
        """Return the number of entries that are dealt."""
        return int(np.count_nonzero(self._dealt()[0]))

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [self.instance().A.shape]

    def domains(self) -> dict[str, float]:  # noqa: D102
        return {"birkhoff-polytope": 0.0}

    def instance(self) -> Instance:
        """Return A, B and the best cost known."""
        return _instance(self.path)

    def initial_point(self) -> list[Array]:
        """Return the barycentre of the permutation matrices, (1/n) 11ᵀ."""
        shape = self.instance().A.shape
        return [np.full(shape, 1.0 / shape[0])]

    def _dealt(self) -> tuple[Array, bool]:
        """Return the matrix that is dealt, and whether it is A."""
        A, B, _ = self.instance()
        is_a = bool(np.count_nonzero(A) >= np.count_nonzero(B))
        return (A if is_a else B), is_a

    def mask(self, client: int) -> NDArray[np.bool_]:
        """Return which entries of the dealt matrix a client holds."""
        self.check()
        matrix, _ = self._dealt()
        entries = np.flatnonzero(matrix)
        order = generator(self.seed, self.name).permutation(len(entries))
        held = entries[np.array_split(order, self.num_clients)[client]]
        mask = np.zeros(matrix.shape, dtype=np.bool_)
        mask.flat[held] = True
        return mask

    def _build_objective(self) -> QuadraticAssignment:
        return QuadraticAssignment(self.instance().A, self.instance().B)

    def _build_client_objective(self, client: int) -> QuadraticAssignment:
        A, B, _ = self.instance()
        mask, weight = self.mask(client), float(self.num_clients)
        if self._dealt()[1]:
            return QuadraticAssignment(A, B, mask=mask, weight=weight)
        return QuadraticAssignment(A, np.where(mask, B, 0.0), weight=weight)

    def round(self, x: Point) -> NDArray[np.intp]:
        """Return the permutation p nearest to X, the one with the largest Σ X_i,p(i).

        All permutation matrices have one norm, so that this linear assignment problem
        is the Euclidean projection onto them.
        """
        return np.asarray(
            scipy.optimize.linear_sum_assignment(self.argument(x), maximize=True)[1],
            dtype=np.intp,
        )

    def cost(self, permutation: NDArray[np.intp]) -> float:
        """Return Σ_ij A_ij B_{p(i), p(j)}."""
        A, B, _ = self.instance()
        return float(np.sum(A * B[np.ix_(permutation, permutation)]))

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"assignment-cost": ...}`` of the rounded point.

        And where the best cost is known ``"assignment-excess"``, relative to it.
        """
        cost, optimum = self.cost(self.round(x)), self.instance().optimum
        measures = {"assignment-cost": cost}
        if optimum:
            measures["assignment-excess"] = cost / optimum - 1.0
        return measures


@once(8)
def _instance(path: str) -> Instance:
    if path:
        file = data_path("quadratic-assignment.path", path)
        instance = read_instance(file)
        solution = file.with_suffix(".sln")
        if solution.is_file():
            optimum, _ = read_solution(solution, len(instance.A))
            instance = instance._replace(optimum=optimum)
    else:
        # beside this module, whichever of its two names the package is imported under
        text = resources.files(__package__).joinpath("data/chr12a.json").read_text()
        found = json.loads(text)
        A, B = (np.array(found[name], dtype=np.float64) for name in "AB")
        instance = Instance(A, B, float(found["optimum"]))
    instance.A.setflags(write=False)
    instance.B.setflags(write=False)
    return instance


def _numbers(path: Path) -> tuple[int, Array]:
    """Return the first number, the order, and the others; line breaks mean nothing."""
    texts, values = path.read_text(encoding="latin-1").replace(",", " ").split(), None
    with suppress(ValueError):
        values = np.array(texts, dtype=np.float64)
    if values is None or not np.isfinite(values).all():
        fault(path, "must hold finite numbers, and nothing else")
    if not len(values) or values[0] < 1 or values[0] % 1:
        fault(path, "must start with the order n, a whole number >= 1")
    return int(values[0]), values[1:]


def read_instance(path: Path) -> Instance:
    """Read a QAPLIB ``.dat`` file: n, then the n × n matrices A and B.

    A DataFileError: it holds something else.
    """
    n, values = _numbers(path)
    if len(values) != 2 * n * n:
        asked = f"order {n} asks for {2 * n * n} entries of A and B"
        fault(path, f"{asked}, the file has {len(values)}")
    A, B = values.reshape(2, n, n)
    if not A.any() or not B.any():
        fault(path, "A or B has zeros only")
    return Instance(A, B, None)


def read_solution(path: Path, order: int) -> tuple[float, NDArray[np.intp]]:
    """Read a QAPLIB ``.sln`` file: n, the cost, and a permutation of 1 … n.

    Return the cost and the permutation, counted from 0. A DataFileError: it holds
    something else.
    """
    n, values = _numbers(path)
    if n != order or len(values) != 1 + n:
        found = f"it starts with {n} and has {len(values) + 1} numbers"
        fault(path, f"must hold {order}, the cost and {order} places; {found}")
    if not np.array_equal(np.sort(values[1:]), np.arange(1, n + 1)):
        fault(path, f"the places are no permutation of 1 to {n}")
    return float(values[0]), values[1:].astype(np.intp) - 1
