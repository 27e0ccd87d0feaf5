"""The system (weight · H + shift · I) d = u, and the ways to solve it.

By a factor of a dense matrix, by a formula where H is a diagonal, by H's products, or
by a user's own object; :mod:`fedtrellis.admm.shifted_systems` chooses. A factor is
``parts``, arrays by name, which a class's ``factorise`` makes: what another process
made will do as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.hessians import KnownHessian
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

    def _closed_form(self, eigenvalues: Any, steps: int) -> tuple[Any, Any]:
        """Return ρ^{k−1} and ρ^{k−1}/(weight λ + σ), the eigenvalues of w and d.

        ρ = weight λ/(weight λ + σ) is that of I − σ (weight H + σ I)⁻¹.
        """
        scaled = self.weight * eigenvalues
        total = scaled + self.shift
        power = (scaled / total) ** (steps - 1)
        return power, power / total


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
        power, power_over = self._closed_form(self._diagonal, steps)
        return power * u, power_over * u


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


class FactoredSystem(ShiftedSystem):
    """A system that a factor solves, the ``parts`` that :meth:`factorise` returns."""

    #: Whether the parts depend on H only.
    any_shift: ClassVar[bool]

    def __init__(
        self, H: Any, parts: Mapping[str, Array], weight: float, shift: float
    ) -> None:
        super().__init__(weight, shift)
        self._H, self._parts = H, parts
        self._prepare()

    def _prepare(self) -> None:
        """Compute what all solves share; LinAlgError if H is indefinite."""

    @staticmethod
    @abstractmethod
    def factorise(H: Any, weight: float, shift: float) -> dict[str, Array]:
        """Return the factor, arrays by name; LinAlgError if H is indefinite."""


class CholeskySystem(FactoredSystem):
    """Any H, from the Cholesky factor of weight · H + shift · I."""

    any_shift = False

    @staticmethod
    def factorise(H: KnownHessian, weight: float, shift: float) -> dict[str, Array]:
        """Return the Cholesky factor, of order p."""
        return _cholesky(H.matrix(), weight, shift)

    def solve(self, u: Array) -> Array:
        """Return d by two triangular solves."""
        return _cholesky_solve(self._parts["factor"], u)


class WideCholeskySystem(FactoredSystem):
    """H = s AᵀA + c I with A of shape (d, p), d < p, in O(dp) a solve.

    With a = weight c + σ, t = weight s/a and G = I + t AAᵀ, of order d, Woodbury's
    identity is M⁻¹ = (I − t Aᵀ G⁻¹ A)/a. H is a FactorHessian.
    """

    any_shift = False

    def _prepare(self) -> None:
        self._A, self._adjoint = self._H.A, self._H.A.T
        self._a = self.weight * self._H.c + self.shift
        self._t = self.weight * self._H.s / self._a
        self._factor = self._parts["factor"]

    @staticmethod
    def factorise(H: Any, weight: float, shift: float) -> dict[str, Array]:
        """Return the Cholesky factor of G."""
        return _cholesky(H.outer(), weight * H.s / (weight * H.c + shift), 1.0)

    def solve(self, u: Array) -> Array:
        """Return d = (u − t Aᵀ G⁻¹ A u)/a."""
        y = _cholesky_solve(self._factor, self._A @ u)
        d: Array = self._adjoint @ (-self._t * y)
        d += u
        d /= self._a
        return d

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


class SpectralSystem(FactoredSystem):
    """Any H = QΛQᵀ; any number of steps costs one."""

    any_shift = True

    def _prepare(self) -> None:
        self._values, self._vectors = self._parts["values"], self._parts["vectors"]
        if not self.weight * self._values[0] + self.shift > 0.0:
            raise np.linalg.LinAlgError(f"it has the eigenvalue {self._values[0]:g}")

    @staticmethod
    def factorise(H: KnownHessian, weight: float, shift: float) -> dict[str, Array]:
        """Return the eigenvalues and eigenvectors, of order p."""
        return _spectrum(H.matrix())

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w = Q ρ^{k−1} Qᵀ u and d = Q [ρ^{k−1}/(weight Λ + σ)] Qᵀ u."""
        coordinates = self._vectors.T @ u
        power, power_over = self._closed_form(self._values, steps)
        w: Array = self._vectors @ (power * coordinates)
        d: Array = self._vectors @ (power_over * coordinates)
        return w, d


class WideSpectralSystem(FactoredSystem):
    """H = s AᵀA + c I with A of shape (d, p), d < p; any number of steps costs one.

    With AAᵀ = UΛUᵀ, of order d, a function f of H is
    f(H) = f(c) I + Aᵀ U [(f(c + sΛ) − f(c))/Λ] Uᵀ A. H is a FactorHessian.
    """

    any_shift = True

    def _prepare(self) -> None:
        self._A, self._adjoint = self._H.A, self._H.A.T
        values, self._vectors = self._parts["values"], self._parts["vectors"]
        # Eigenvalues that are 0 but for rounding: A has no such direction.
        self._present = values > np.finfo(np.float64).eps * len(values) * values[-1]
        self._values = np.where(self._present, values, 1.0)

    @staticmethod
    def factorise(H: Any, weight: float, shift: float) -> dict[str, Array]:
        """Return the eigenvalues and eigenvectors of AAᵀ."""
        return _spectrum(H.outer())

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w and d, f(H) u for their two f, by one product with A and one Aᵀ."""
        coordinates = self._vectors.T @ (self._A @ u)
        at_c = self._closed_form(self._H.c, steps)
        at_values = self._closed_form(self._H.c + self._H.s * self._values, steps)
        # f(c) u + Aᵀ U [(f(c + sΛ) − f(c))/Λ] Uᵀ A u
        quotients = [
            np.where(self._present, (value - base) / self._values, 0.0)
            for value, base in zip(at_values, at_c, strict=True)
        ]
        columns = np.stack(quotients, axis=1) * coordinates[:, None]
        both = self._adjoint @ (self._vectors @ columns)
        return both[:, 0] + at_c[0] * u, both[:, 1] + at_c[1] * u


def _cholesky(H: Array, weight: float, shift: float) -> dict[str, Array]:
    M = weight * H
    M[np.diag_indices(len(M))] += shift
    factor, _ = scipy.linalg.cho_factor(
        M, lower=True, overwrite_a=True, check_finite=False
    )
    return {"factor": factor}


def _cholesky_solve(factor: Array, right: Array) -> Array:
    result: Array = scipy.linalg.cho_solve((factor, True), right, check_finite=False)
    return result


def _spectrum(H: Array) -> dict[str, Array]:
    # "evd" takes three quarters of the time of the default driver
    values, vectors = scipy.linalg.eigh(H, driver="evd", check_finite=False)
    return {"values": values, "vectors": vectors}
