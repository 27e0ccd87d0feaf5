"""Sets of matrices: by singular values or eigenvalues, and doubly stochastic ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, DenseAtom, PermutationAtom, RankOneAtom
from fedtrellis.domains.base import Domain, FloatArray, NormBall, Places, Shape
from fedtrellis.domains.numerics import (
    magnitude,
    positive,
    project_simplex,
    thin_svd,
    unit,
)
from fedtrellis.domains.singular import as_matrix, polar_factor, top_pairs
from fedtrellis.domains.vectors import L1Ball, LInfBall
from fedtrellis.settings import setting

if TYPE_CHECKING:
    from fedtrellis.domains.singular import Matrix


class _MatrixBall(NormBall):
    """The matrices whose singular values are in a ball of vectors."""

    of_vectors: ClassVar[bool] = False
    by_nonzeros: ClassVar[bool] = False

    #: The kind of ball that the singular values are in, of the same radius.
    _values: ClassVar[type[L1Ball | LInfBall]]

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a matrix's."""
        if len(shape) != 2:
            raise ValueError(
                f"{self.name} is a set of matrices and has no points of shape "
                f"{tuple(shape)}: two dimensions are needed"
            )
        super().check_shape(shape)

    def _norm(self, x: FloatArray, shape: Shape, places: Places = None) -> float:
        return self._values(self.radius).norm(thin_svd(x.reshape(shape))[1])

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the singular values onto their ball."""
        x = self._input(point, "point")
        left, values, right = thin_svd(x)
        projected = self._values(self.radius).project(values)
        inside = np.array_equal(projected, values)
        return x.copy() if inside else (left * projected) @ right


@dataclass(frozen=True)
class NuclearNormBall(_MatrixBall):
    """The nuclear norm ball, ‖X‖_* = Σ σ_i(X) ≤ radius, of m × n matrices.

    Its extreme points are radius · u vᵀ with unit vectors u and v.

    Parameters
    ----------
    tolerance : float
        Of the oracle: the largest ‖Gᵀ u₁ − σ₁ v₁‖ (or ‖G v₁ − σ₁ u₁‖) over σ₁. With
        more than the default, which is as good as exact, <G, s> may be above the
        minimum by tolerance · radius · σ₁; mostly it is by the square of it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import NuclearNormBall
    >>> domain = NuclearNormBall(radius=2.0)
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    >>> (domain.project(-gradient) + 0.0).round(3).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "nuclear-norm-ball"
    _values = L1Ball
    form: ClassVar[str] = "low-rank"
    parameters: ClassVar[Mapping[str, Any]] = {
        "tolerance": setting(
            1e-10,
            "largest residual of the oracle's singular pair",
            above=0.0,
            below=1.0,
        )
    }
    radius: float
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        tolerance = positive(self.name, "tolerance", self.tolerance, below=1.0)
        object.__setattr__(self, "tolerance", tolerance)

    def lmo(self, gradient: Matrix) -> RankOneAtom:
        """Return −radius · u₁ v₁ᵀ, the leading singular vectors of the gradient.

        The largest entry of u₁ is made positive, so that the pair is unique. The
        gradient may be an ndarray, a sparse array or matrix, or a LinearOperator, see
        :func:`~fedtrellis.domains.singular.sparse_plus_low_rank`.
        """
        return self.lmo_from(gradient, None)[0]

    def lmo_from(
        self, gradient: Matrix, start: ArrayLike | None
    ) -> tuple[RankOneAtom, FloatArray | None]:
        """Return :meth:`lmo`'s atom, and a block of singular vectors to start from.

        See :func:`~fedtrellis.domains.singular.top_pairs`.
        """
        g = as_matrix(gradient)
        self.check_shape(g.shape)
        left, _, right, start = top_pairs(g, 1, start, self.tolerance)
        u, v = left[:, 0], right[:, 0]
        if u[np.abs(u).argmax()] < 0.0:
            u, v = -u, -v
        return RankOneAtom(-self.radius * u, v), start

    def gap(self, gradient: ArrayLike, point: ArrayLike) -> float:
        """Return the Frank-Wolfe gap, whatever the tolerance: a bound takes all σ₁."""
        return Domain.gap(NuclearNormBall(self.radius), gradient, point)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, RankOneAtom):
            u, v = atom.left, atom.right
            if not (np.isfinite(u).all() and np.isfinite(v).all()):
                return False
            # the one singular value of u vᵀ is ‖u‖ ‖v‖
            u, v = (w.astype(np.float64, copy=False) for w in (u, v))
            return unit(u)[1] * unit(v)[1] <= self.radius * (1.0 + tolerance)
        return super()._contains_atom(atom, tolerance)

    def contains_product(
        self, left: FloatArray, right: FloatArray, tolerance: float = 1e-9
    ) -> bool:
        """Say whether ‖A Bᵀ‖_* ≤ radius, from the small matrix R_A R_Bᵀ.

        With A = Q_A R_A and B = Q_B R_B that has the same singular values.
        """
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return False
        if not left.size or not right.size:
            return True
        left, right = (f.astype(np.float64, copy=False) for f in (left, right))
        core = np.linalg.qr(left).R @ np.linalg.qr(right).R.T
        return self.contains(core, tolerance)

    def largest_norms(self, shape: Shape) -> tuple[float, float]:  # noqa: D102
        # of radius · u vᵀ, with Σ |u_i v_j| ≤ √m √n
        return self.radius * math.sqrt(math.prod(shape)), self.radius


# From so many rows or columns on, and twice as many of the other, products are quicker
# than a decomposition.
_PRODUCTS_FROM = 64


@dataclass(frozen=True)
class SpectralNormBall(_MatrixBall):
    """The spectral norm ball, σ₁(X) ≤ radius, of m × n matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import SpectralNormBall
    >>> domain = SpectralNormBall(radius=2.0)
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3).tolist()
    [[2.0, 0.0], [0.0, -2.0]]
    >>> (domain.project(-gradient) + 0.0).round(3).tolist()
    [[2.0, 0.0], [0.0, -1.0]]
    """

    name: ClassVar[str] = "spectral-norm-ball"
    _values = LInfBall
    radius: float

    def lmo(self, gradient: ArrayLike) -> DenseAtom:
        """Return −radius · U Vᵀ, the gradient's polar factor, U Σ Vᵀ its thin SVD."""
        g = self._input(gradient, "gradient")
        short, long = sorted(g.shape)
        if short < _PRODUCTS_FROM or long < 2 * short:
            left, _, right = thin_svd(g)
            return DenseAtom(-self.radius * (left @ right))
        wide = g.shape[0] < g.shape[1]
        # any point near the best will do: 1e-8 keeps it within 1e-10
        q = polar_factor((g.T if wide else g)[None], smallest=1e-8)[0]
        return DenseAtom(-self.radius * (q.T if wide else q))

    def diameter(self, shape: Shape) -> float:
        """Return twice the norm of radius · U Vᵀ, radius √min(m, n)."""
        self.check_shape(shape)
        return 2.0 * self.radius * math.sqrt(min(shape))


class _Square(Domain):
    """A set of square matrices."""

    of_vectors: ClassVar[bool] = False

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless the shape is a square matrix's."""
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise ValueError(
                f"{self.name} is a set of square matrices and has no points of shape "
                f"{tuple(shape)}: only (n, n) is allowed"
            )


@dataclass(frozen=True)
class Spectrahedron(_Square):
    """The symmetric n × n matrices X ⪰ 0 with trace(X) = radius.

    Its extreme points are radius · v vᵀ with unit vectors v (Hazan, "Sparse approximate
    solutions to semidefinite programs", LATIN 2008; Jaggi, ICML 2013). A matrix that
    is not symmetric may be a gradient or a point to project: its symmetric part counts.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import Spectrahedron
    >>> domain = Spectrahedron()
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    >>> (domain.project(-gradient) + 0.0).round(3).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """

    name: ClassVar[str] = "spectrahedron"
    form: ClassVar[str] = "low-rank"
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self.name, "radius", self.radius))

    def lmo(self, gradient: ArrayLike) -> RankOneAtom:
        """Return radius · v vᵀ, v the eigenvector of the smallest eigenvalue.

        That of (G + Gᵀ)/2, in O(n³): LAPACK reduces it to three diagonals and finds the
        one pair of these.
        """
        symmetric, _ = _symmetric_part(self._input(gradient, "gradient"))
        v, _ = unit(scipy.linalg.eigh(symmetric, subset_by_index=[0, 0])[1][:, 0])
        return RankOneAtom(self.radius * v, v)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project the eigenvalues of (X + Xᵀ)/2 onto the simplex."""
        scaled, scale = _symmetric_part(self._input(point, "point"))
        values, vectors = scipy.linalg.eigh(scaled)
        if scale < self.radius:
            weights = project_simplex(scale * values, self.radius)
        else:  # an eigenvalue times the scale need not be finite
            weights = scale * project_simplex(values, self.radius / scale)
        half = vectors * np.sqrt(weights)
        return half @ half.T

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether X is symmetric and X ⪰ 0, with the trace radius.

        Up to t = tolerance · radius: ‖X − Xᵀ‖_F, the smallest eigenvalue and the trace.
        """
        x = self._finite(point)
        if x is None:
            return False
        t = tolerance * self.radius
        with np.errstate(over="ignore"):
            if abs(np.trace(x) - self.radius) > t or unit(x - x.T)[1] > t:
                return False
        scaled, scale = _symmetric_part(x)
        return bool(scale * scipy.linalg.eigvalsh(scaled)[0] >= -t)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if not isinstance(atom, RankOneAtom):
            return super()._contains_atom(atom, tolerance)
        u, v = atom.left, atom.right
        if not (np.isfinite(u).all() and np.isfinite(v).all()):
            return False
        t = tolerance * self.radius
        direction, length = unit(v)
        along = float(u @ direction)
        across = unit(u - along * direction)[1]
        # trace(u vᵀ) = <u, v>, ‖u vᵀ − v uᵀ‖_F = √2 ‖u across v‖ ‖v‖, and the smallest
        # eigenvalue of the symmetric part is (<u, v> − ‖u‖ ‖v‖) / 2
        lowest = 0.5 * length * (along - math.hypot(along, across))
        return (
            abs(along * length - self.radius) <= t
            and math.sqrt(2.0) * across * length <= t
            and lowest >= -t
        )

    def diameter(self, shape: Shape) -> float:
        """Return √2 radius, the distance of v vᵀ and w wᵀ with <v, w> = 0."""
        self.check_shape(shape)
        return math.sqrt(2.0) * self.radius if shape[0] > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return radius / n on the diagonal."""
        self.check_shape(shape)
        return self.radius / shape[0] * np.eye(shape[0])


def _symmetric_part(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Return (X + Xᵀ)/2 over a power of two near ‖X‖_F, and that power; 1 for zero."""
    scale = magnitude(matrix) or 1.0
    scaled = matrix / scale
    return 0.5 * (scaled + scaled.T), scale


# Where no step helps any more, sums may be off by this.
_STALLED = 5e-10
_MAX_NEWTON_STEPS, _MAX_SWEEPS = 100, 5000
# Beyond this the spacing of floats exceeds the polytope and only the direction of a
# point says anything: it is projected from this distance.
_FAR = 1e15


@dataclass(frozen=True)
class BirkhoffPolytope(_Square):
    """The n × n matrices X ≥ 0 whose rows and columns each sum to one.

    Its extreme points are the permutation matrices (Birkhoff 1946).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import BirkhoffPolytope
    >>> domain = BirkhoffPolytope()
    >>> gradient = np.array([[-3.0, 0.0], [0.0, 1.0]])
    >>> (domain.lmo(gradient).dense() + 0.0).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> (domain.project(-gradient) + 0.0).round(3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str] = "birkhoff-polytope"

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
        Mathematical Programming 2020), and where that stalls by steps in u and v in
        turn. RuntimeError if neither converges.
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
                # near the end values differ by rounding alone: the residual decides
                if better or trial[0] <= value + 1e-4 * length * slope:
                    break
                length *= 0.5
                if length < 1e-12:
                    break
            if length < 1e-8:
                # entries close to 0 come and go with the support
                if size <= _STALLED:
                    return primal
                break
            dual = dual + length * step
            value, residual, primal = trial
        # φ falls in each of these: the least over u, and then over v
        z, counts = z + dual[:n, None] + dual[n:], np.arange(1, n + 1)
        for _ in range(_MAX_SWEEPS):
            for _ in range(2):
                sums = np.cumsum(np.sort(z)[:, ::-1], axis=1)
                z = (z + ((1.0 - sums) / counts).min(axis=1)[:, None]).T
            primal = np.maximum(z, 0.0)
            off = float(np.abs(primal.sum(axis=1) - 1.0).max())
            if off <= _STALLED:
                return primal
        why = f"row sums are off by {off:.1e}"
        raise RuntimeError(f"{self.name}: the projection did not converge: {why}")

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether X ≥ −tolerance and all sums are 1 ± tolerance."""
        x = self._finite(point)
        if x is None:
            return False
        with np.errstate(over="ignore"):
            off = max(np.abs(x.sum(axis=i) - 1.0).max() for i in (0, 1))
        return bool(x.min() >= -tolerance and off <= tolerance)

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        return isinstance(atom, PermutationAtom) or super()._contains_atom(
            atom, tolerance
        )

    def diameter(self, shape: Shape) -> float:
        """Return √(2n), the distance of two permutations that agree nowhere."""
        self.check_shape(shape)
        return math.sqrt(2.0 * shape[0]) if shape[0] > 1 else 0.0

    def centre(self, shape: Shape) -> FloatArray:
        """Return 1/n in every entry."""
        self.check_shape(shape)
        return np.full(shape, 1.0 / shape[0])

    def random_point(self, shape: Shape, rng: np.random.Generator) -> FloatArray:
        """Return half the barycentre and half a random doubly stochastic matrix.

        As ``scipy.optimize.quadratic_assignment`` makes its randomised starts:
        Sinkhorn's balancing of a uniform matrix.
        """
        self.check_shape(shape)
        matrix = rng.uniform(size=shape)
        for _ in range(200):
            matrix /= matrix.sum(axis=1, keepdims=True)
            matrix /= matrix.sum(axis=0, keepdims=True)
        return np.asarray((matrix + 1.0 / shape[0]) / 2.0)


def _reduced(x: FloatArray) -> FloatArray:
    """Shift rows and columns so that all entries are ≤ 1, on a permutation P = 1.

    P maximises <P, x> and the shifts solve the dual: p_j with x_{i,j} − x_{i,P(i)} ≤
    p_j − p_{P(i)} are longest paths. Of a point far away P is the projection, and then
    the result's positive part is P already.
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
