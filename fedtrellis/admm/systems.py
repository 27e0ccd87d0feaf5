"""The system (weight · H + shift · I) d = u, and the ways to solve it.

By a Cholesky factor, by a formula where H is a diagonal, by H's products, or by a
user's own object; :mod:`fedtrellis.admm.shifted_systems` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.hessians import FactorHessian, KnownHessian
from fedtrellis.objectives.base import Array, check_array, symmetric_operator


class ShiftedSystem:
    """Solves (weight · H + shift · I) d = u, with H positive semi-definite.

    Weight and shift are 1/m and σ of FedGiA, arXiv 2205.01438, both above 0. A class of
    systems overrides ``solve`` or, where k steps have a closed form, ``admm_steps``:
    each is the other's default.
    """

    #: Whether all that it has of H are products, which take nothing to keep.
    by_products: bool = False

    def __init__(self, weight: float, shift: float) -> None:
        self.weight = float(weight)
        self.shift = float(shift)

    def solve(self, u: Array) -> Array:
        """Return d = (weight · H + shift · I)⁻¹ u, a new array of shape (p,)."""
        return self.admm_steps(u, 1)[1]

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Take k steps d = M⁻¹ u, u ← u − σ d; the last one keeps its u.

        Parameters
        ----------
        u : ndarray of float64 of shape (p,)
            ḡ + π before the first step; left as it is.
        steps : int
            k, at least 1.

        Returns
        -------
        w, d : ndarrays of float64 of shape (p,)
            w = (I − σ M⁻¹)^{k−1} u and d = M⁻¹ w, so that x_i = x − d and
            π_i = w − σ d − ḡ; neither shares memory with u.
        """
        w = u.copy()
        d = self.solve(w)
        for _ in range(steps - 1):
            # π ← π + σ (x_i − x), and u = ḡ + π
            w -= self.shift * d
            d = self.solve(w)
        return w, d


class DiagonalSystem(ShiftedSystem):
    """H = diag(h), or h · I for a number h ≥ 0; any number of steps costs one."""

    def __init__(self, diagonal: float | Array, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._diagonal = diagonal

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w = ρ^{k−1} u and d = w/(weight h + σ), without iterating."""
        shape = np.shape(self._diagonal)
        if shape not in ((), u.shape):
            raise ValueError(
                f"the diagonal of H has {shape[0]} entries; x has {u.size}"
            )
        # ρ = weight h/(weight h + σ)
        scaled = self.weight * self._diagonal
        total = scaled + self.shift
        power = (scaled / total) ** (steps - 1)
        return power * u, (power / total) * u


class ConjugateGradientSystem(ShiftedSystem):
    """H known by its products H v: conjugate gradients, a few vectors of memory."""

    by_products = True
    #: ‖M d − u‖ is at most this times ‖u‖, after at most so many products.
    rtol, maxiter = 1e-12, 1000

    def __init__(
        self, product: Callable[[Array], Array], weight: float, shift: float
    ) -> None:
        super().__init__(weight, shift)
        self._product = product

    def solve(self, u: Array) -> Array:
        """Return d; RuntimeError if the tolerance is not reached."""
        operator = symmetric_operator(
            len(u), lambda v: self.weight * self._product(v) + self.shift * v
        )
        from scipy.sparse.linalg import cg

        d, info = cg(operator, u, rtol=self.rtol, atol=0.0, maxiter=self.maxiter)
        if info != 0:
            raise RuntimeError(
                f"conjugate gradients did not converge to {self.rtol:g} in "
                f"{self.maxiter} iterations with sigma = {self.shift:g}; a larger "
                "sigma makes the system better conditioned"
            )
        # For u = 0 SciPy returns u itself.
        return np.array(d, dtype=np.float64)


class ScaledSystem(ShiftedSystem):
    """The system with shift · S instead of shift · I, S = diag(scale).

    With H′ = S^(−1/2) H S^(−1/2), u′ = S^(−1/2) u and d′ = √S d the steps
    d = (weight·H + shift·S)⁻¹ u, u ← u − shift·S d are those of H′ and shift·I, which
    ``inner`` takes.
    """

    def __init__(self, inner: ShiftedSystem, scale: Array) -> None:
        super().__init__(inner.weight, inner.shift)
        self._inner, self._root = inner, np.sqrt(scale)
        self.by_products = inner.by_products

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Take the steps in the coordinates √S x."""
        w, d = self._inner.admm_steps(u / self._root, steps)
        return w * self._root, d / self._root


class UserSystem(ShiftedSystem):
    """A user's H: ``solver.solve(vector, shift)`` returns (H + shift · I)⁻¹ vector."""

    def __init__(self, solver: Any, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._solver = solver

    def solve(self, u: Array) -> Array:
        """Return d = (H + (σ/weight) I)⁻¹ u/weight; ValueError if it is no such d."""
        # A copy, because the object might work in place.
        given = self._solver.solve(u.copy(), self.shift / self.weight)
        name = f"what hessian.solve of {type(self._solver).__name__} returned"
        answer = check_array(name, given, 1, len(u))
        return answer / self.weight


class CholeskySystem(ShiftedSystem):
    """Any H, from the Cholesky factor of weight · H + shift · I, of order p.

    A LinAlgError: H is indefinite.
    """

    def __init__(self, H: KnownHessian, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._factor = _cholesky(H.matrix(), weight, shift)

    def solve(self, u: Array) -> Array:
        """Return d by two triangular solves."""
        return _cholesky_solve(self._factor, u)


class WideCholeskySystem(ShiftedSystem):
    """H = s AᵀA + c I with A of shape (d, p), d < p, in O(dp) a solve.

    With a = weight c + σ, t = weight s/a and G = I + t AAᵀ, of order d, Woodbury's
    identity is M⁻¹ = (I − t Aᵀ G⁻¹ A)/a.
    """

    def __init__(self, H: FactorHessian, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._A, self._adjoint = H.A, H.A.T
        self._a = weight * float(H.c) + shift
        self._t = weight * H.s / self._a
        self._factor = _cholesky(H.outer(), self._t, 1.0)

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Take the steps in the d dimensions of A u: two products with A in all.

        With β = σ/a, u ← u − σ M⁻¹ u = (1 − β) u + β t Aᵀ y for y = G⁻¹ A u; so all
        iterates are α u_0 + Aᵀ v, and since t AAᵀ = G − I, A u ← A u − β y.
        """
        beta = self.shift / self._a
        Au = self._A @ u
        alpha, v = 1.0, np.zeros_like(Au)
        y = _cholesky_solve(self._factor, Au)
        for _ in range(steps - 1):
            alpha *= 1.0 - beta
            v = (1.0 - beta) * v + (beta * self._t) * y
            Au = Au - beta * y
            y = _cholesky_solve(self._factor, Au)
        if steps == 1:
            w = u.copy()
            d: Array = self._adjoint @ (-self._t * y)
        else:
            # w = α u + Aᵀ v and, for d, −t Aᵀ y
            both = self._adjoint @ np.stack([v, -self._t * y], axis=1)
            w, d = alpha * u + both[:, 0], both[:, 1].copy()
        # d = (w − t Aᵀ y)/a
        d += w
        d /= self._a
        return w, d


def _cholesky(H: Array, weight: float, shift: float) -> Array:
    M = weight * H
    M[np.diag_indices(len(M))] += shift
    factor: Array = scipy.linalg.cho_factor(
        M, lower=True, overwrite_a=True, check_finite=False
    )[0]
    return factor


def _cholesky_solve(factor: Array, right: Array) -> Array:
    result: Array = scipy.linalg.cho_solve((factor, True), right, check_finite=False)
    return result
