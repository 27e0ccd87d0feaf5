"""The Birkhoff polytope: doubly stochastic matrices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, PermutationAtom
from fedtrellis.domains.base import Domain, FloatArray, Norm, Shape

__all__ = ["BirkhoffPolytope"]

# Where no step helps any more, sums may be off by this.
_STALLED = 5e-10
_MAX_NEWTON_STEPS = 500
# Beyond this the spacing of floats exceeds the polytope and only the direction of a
# point says anything: it is projected from this distance.
_FAR = 1e15


@dataclass(frozen=True)
class BirkhoffPolytope(Domain):
    """The n × n matrices X ≥ 0 whose rows and columns each sum to one.

    Its extreme points are the permutation matrices (Birkhoff 1946).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import BirkhoffPolytope
    >>> domain = BirkhoffPolytope()
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3)
    array([[1., 0.],
           [0., 1.]])
    >>> (domain.project(-gradient) + 0.0).round(3)
    array([[1., 0.],
           [0., 1.]])
    """

    name: ClassVar[str] = "birkhoff-polytope"
    of_vectors: ClassVar[bool] = False

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a square matrix's."""
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise ValueError(
                f"{self.name} is a set of square matrices and has no points of shape "
                f"{tuple(shape)}: only (n, n) is allowed"
            )

    def lmo(self, gradient: ArrayLike) -> PermutationAtom:
        """Solve the linear assignment problem with the gradient for its costs.

        SciPy's modified Jonker-Volgenant algorithm, O(n³). Among permutations of equal
        cost it chooses one deterministically, the identity for a zero gradient.
        """
        g = self._input(gradient, "gradient")
        largest = max(float(g.max()), -float(g.min()))
        if largest > 1e100:  # sums of costs must not overflow
            g = g / largest
        _, columns = scipy.optimize.linear_sum_assignment(g)
        return PermutationAtom(columns)

    def project(self, point: ArrayLike) -> FloatArray:
        """Solve argmin ½‖X − point‖² over doubly stochastic X by a Newton method.

        The dual problem, min over u, v in Rⁿ of

            φ(u, v) = ½‖(Z + u 1ᵀ + 1 vᵀ)₊‖² − Σ u_i − Σ v_j,

        is convex and once differentiable, its gradient is what the row and column sums
        of X = (Z + u 1ᵀ + 1 vᵀ)₊ are off by. It is solved by a regularised semismooth
        Newton method with a line search (Li, Sun, Toh, "On the efficient computation
        of a generalized Jacobian of the projector over the Birkhoff polytope",
        Mathematical Programming 2020).

        Raises
        ------
        ValueError
            As every projection.
        RuntimeError
            No convergence within 500 Newton steps.
        """
        x = self._input(point, "point")
        n = x.shape[0]
        largest = max(float(x.max()), -float(x.min()))
        if largest > _FAR:
            x = x * (_FAR / largest)
        # Adding to a row or a column does not change the answer. Two such shifts of the
        # point are good starts with u = v = 0. The first is its projection onto the
        # matrices with row and column sums 1, the answer itself if non-negative.
        z: FloatArray = x - x.mean(axis=1, keepdims=True)
        z = z - z.mean(axis=0, keepdims=True) + 1.0 / n
        if z.min() >= 0.0:
            return z
        # The second is near the answer if the point is far away.
        starts = (z, _reduced(x))
        z = min(starts, key=lambda start: _dual_value_of_shift(start, x))
        # what sums of n entries of this size cannot fall below
        tolerance = 1e-14 + 4.0 * np.finfo(np.float64).eps * abs(float(z.max()))
        dual = np.zeros(2 * n)
        value, residual, primal = _dual(z, dual)
        for _ in range(_MAX_NEWTON_STEPS):
            size = float(np.abs(residual).max())
            if size <= tolerance * math.sqrt(n):
                return primal
            # Generalised Hessian [[diag(rows), S], [Sᵀ, diag(columns)]], S the support.
            support = (primal > 0.0).astype(np.float64)
            hessian = np.block(
                [
                    [np.diag(support.sum(axis=1)), support],
                    [support.T, np.diag(support.sum(axis=0))],
                ]
            )
            # It is singular along (1, −1), and more so where the support falls apart.
            hessian.flat[:: 2 * n + 1] += 1e-10 + min(1e-3, 0.1 * size)
            step = -scipy.linalg.cho_solve(scipy.linalg.cho_factor(hessian), residual)
            slope = float(residual @ step)
            length = 1.0
            while True:
                trial = _dual(z, dual + length * step)
                better = float(np.abs(trial[1]).max()) <= 0.5 * size
                # near the end values differ by rounding alone: then the residual tells
                if better or trial[0] <= value + 1e-4 * length * slope:
                    break
                length *= 0.5
                if length < 1e-12:
                    break
            if length < 1e-8 and size <= _STALLED:
                # entries this close to 0 come and go with the support
                return primal
            dual = dual + length * step
            value, residual, primal = trial
        raise RuntimeError(
            f"{self.name}: the projection did not converge in {_MAX_NEWTON_STEPS} "
            f"steps; row and column sums are off by {np.abs(residual).max():.1e}"
        )

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether X ≥ −tolerance and all sums are 1 ± tolerance."""
        x = self._finite(point)
        if x is None:
            return False
        with np.errstate(over="ignore"):
            off = max(np.abs(x.sum(axis=i) - 1.0).max() for i in (0, 1))
        return bool(x.min() >= -tolerance and off <= tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, PermutationAtom):
            # the sum of each row and column
            return bool(abs(atom.scale - 1.0) <= tolerance)
        return super()._contains_atom(atom, tolerance)

    def _largest_norms(self, shape: Shape) -> Mapping[Norm, float]:
        # of a permutation, which has n ones and n singular values of 1
        n = float(shape[0])
        return {"l1": n, "l2": math.sqrt(n), "linf": 1.0, "nuclear": n}

    def diameter(self, shape: Shape) -> float:
        """Return √(2n), the distance of two permutations that agree nowhere."""
        self.check_shape(shape)
        return math.sqrt(2.0 * shape[0]) if shape[0] > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return 1/n in every entry."""
        self.check_shape(shape)
        return np.full(shape, 1.0 / shape[0])


def _reduced(x: FloatArray) -> FloatArray:
    """Shift rows and columns so that all entries are ≤ 1, on a permutation = 1.

    The permutation P maximises <P, x> and the shifts solve the dual of that linear
    programme: p_j with x_{i,j} − x_{i,P(i)} ≤ p_j − p_{P(i)} for all i and j are
    longest paths, by Bellman and Ford's iteration. A point far from the polytope has
    P for its projection, and then the result's positive part is P already.
    """
    _, columns = scipy.optimize.linear_sum_assignment(-x)
    diagonal = np.take_along_axis(x, columns[:, None], axis=1)
    weights = (x - diagonal)[np.argsort(columns)]  # row j: the row that P gives j
    potential = np.zeros(columns.size)
    for _ in range(columns.size):
        longer = np.maximum(potential, (potential[:, None] + weights).max(axis=0))
        if np.array_equal(longer, potential):
            break
        potential = longer
    reduced: FloatArray = (x - diagonal) + potential[columns][:, None] - potential + 1.0
    return reduced


def _dual_value_of_shift(shifted: FloatArray, x: FloatArray) -> float:
    """Return the dual function of ``x`` at the u and v that shift it so."""
    # Σ u_i + Σ v_j = (sum of all n² shifts) / n
    excess = np.maximum(shifted, 0.0)
    return 0.5 * float(np.vdot(excess, excess)) - float((shifted - x).sum()) / len(x)


def _dual(z: FloatArray, dual: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return φ(u, v), its gradient and X = (Z + u 1ᵀ + 1 vᵀ)₊."""
    n = z.shape[0]
    primal = np.maximum(z + dual[:n, None] + dual[n:], 0.0)
    residual = np.concatenate([primal.sum(axis=1), primal.sum(axis=0)]) - 1.0
    return 0.5 * float(np.vdot(primal, primal)) - float(dual.sum()), residual, primal
