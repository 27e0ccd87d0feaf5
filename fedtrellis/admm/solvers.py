"""The ways to solve (weight · H + shift · I) d = u; see :mod:`.shifted_systems`.

A class that works from a factor takes it as ``parts``, arrays by name, which its
``factorise`` makes: what another process made will do as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.admm.hessians import is_sparse
from fedtrellis.objectives.checks import Array
from fedtrellis.objectives.symmetric import symmetric_operator

_EPSILON = float(np.finfo(np.float64).eps)


class ShiftedSystem(ABC):
    """Solves (weight · H + shift · I) d = u, with H positive semi-definite.

    Attributes
    ----------
    weight, shift : float
        1/m and σ of FedGiA, arXiv 2205.01438; both above 0.
    """

    def __init__(self, weight: float, shift: float) -> None:
        self.weight = float(weight)
        self.shift = float(shift)

    @abstractmethod
    def solve(self, u: Array) -> Array:
        """Return d = (weight · H + shift · I)⁻¹ u.

        Parameters
        ----------
        u : ndarray of float64 of shape (p,)
            Left as it is.

        Returns
        -------
        ndarray of float64 of shape (p,)
            A new array.
        """

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
    """H = diag(h), or h · I for a number h; any number of steps costs one.

    Parameters
    ----------
    diagonal : float or ndarray of shape (p,)
        h, at least 0.
    weight, shift : float
    """

    def __init__(self, diagonal: float | Array, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._diagonal = diagonal

    def _check(self, u: Array) -> None:
        shape = np.shape(self._diagonal)
        if shape not in ((), u.shape):
            raise ValueError(
                f"the diagonal of H has {shape[0]} entries; x has {u.size}"
            )

    def solve(self, u: Array) -> Array:
        """Return d = u/(weight h + σ)."""
        self._check(u)
        d: Array = u / (self.weight * self._diagonal + self.shift)
        return d

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w = ρ^{k−1} u and d = w/(weight h + σ), without iterating."""
        self._check(u)
        power, power_over = self._closed_form(self._diagonal, steps)
        return power * u, power_over * u


class CholeskySystem(ShiftedSystem):
    """A dense H, from the Cholesky factor of weight · H + shift · I."""

    def __init__(self, parts: Mapping[str, Array], weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._factor = parts["factor"]

    @staticmethod
    def factorise(H: Array, weight: float, shift: float) -> dict[str, Array]:
        """Return the parts of an H of shape (p, p).

        Raises
        ------
        numpy.linalg.LinAlgError
            The matrix is not positive definite.
        """
        M = weight * H
        M[np.diag_indices(len(M))] += shift
        return {"factor": _cholesky(M)}

    def solve(self, u: Array) -> Array:
        """Return d by two triangular solves."""
        return _cholesky_solve(self._factor, u)


class WideCholeskySystem(ShiftedSystem):
    """H = s AᵀA + c I with A of shape (d, p), d < p, in O(dp) a solve.

    With a = weight c + σ, t = weight s/a and G = I + t AAᵀ, of order d, Woodbury's
    identity is M⁻¹ = (I − t Aᵀ G⁻¹ A)/a.

    Parameters
    ----------
    A : ndarray or scipy.sparse.csr_array of shape (d, p)
    s, c : float
    parts : mapping
        Of :meth:`factorise`.
    weight, shift : float
    """

    def __init__(
        self,
        A: Any,
        s: float,
        c: float,
        parts: Mapping[str, Array],
        weight: float,
        shift: float,
    ) -> None:
        super().__init__(weight, shift)
        self._A, self._adjoint = A, A.T
        self._a = weight * c + shift
        self._t = weight * s / self._a
        self._factor = parts["factor"]

    @staticmethod
    def factorise(
        A: Any, s: float, c: float, weight: float, shift: float
    ) -> dict[str, Array]:
        """Return the parts: the Cholesky factor of G."""
        G = _outer_gram(A)
        G *= weight * s / (weight * c + shift)
        G[np.diag_indices(len(G))] += 1.0
        return {"factor": _cholesky(G)}

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


class SpectralSystem(ShiftedSystem):
    """A dense H = QΛQᵀ; any number of steps costs one. Parts depend on H only."""

    def __init__(self, parts: Mapping[str, Array], weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._values, self._vectors = parts["values"], parts["vectors"]
        lowest = weight * self._values[0] + shift
        if not lowest > 0.0:
            raise np.linalg.LinAlgError(f"it has the eigenvalue {self._values[0]:g}")

    @staticmethod
    def factorise(H: Array) -> dict[str, Array]:
        """Return the parts of an H of shape (p, p)."""
        values, vectors = _eigh(H)
        return {"values": values, "vectors": vectors}

    def solve(self, u: Array) -> Array:
        """Return d = Q (weight Λ + σ I)⁻¹ Qᵀ u."""
        scaled = (self._vectors.T @ u) / (self.weight * self._values + self.shift)
        d: Array = self._vectors @ scaled
        return d

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w = Q ρ^{k−1} Qᵀ u and d = Q [ρ^{k−1}/(weight Λ + σ)] Qᵀ u."""
        if steps == 1:
            return u.copy(), self.solve(u)
        coordinates = self._vectors.T @ u
        power, power_over = self._closed_form(self._values, steps)
        w: Array = self._vectors @ (power * coordinates)
        d: Array = self._vectors @ (power_over * coordinates)
        return w, d


class WideSpectralSystem(ShiftedSystem):
    """H = s AᵀA + c I with A of shape (d, p), d < p; any number of steps costs one.

    With AAᵀ = UΛUᵀ, of order d, a function f of H is
    f(H) = f(c) I + Aᵀ U [(f(c + sΛ) − f(c))/Λ] Uᵀ A. Parts depend on A only.

    Parameters
    ----------
    A : ndarray or scipy.sparse.csr_array of shape (d, p)
    s, c : float
    parts : mapping
        Of :meth:`factorise`.
    weight, shift : float
    """

    def __init__(
        self,
        A: Any,
        s: float,
        c: float,
        parts: Mapping[str, Array],
        weight: float,
        shift: float,
    ) -> None:
        super().__init__(weight, shift)
        self._A, self._adjoint = A, A.T
        self._s, self._c = s, c
        values, self._vectors = parts["values"], parts["vectors"]
        # Eigenvalues that are 0 but for rounding: A has no such direction.
        self._present = values > _EPSILON * len(values) * values[-1]
        self._values = np.where(self._present, values, 1.0)

    @staticmethod
    def factorise(A: Any) -> dict[str, Array]:
        """Return the parts: the eigenvalues and eigenvectors of AAᵀ."""
        values, vectors = _eigh(_outer_gram(A))
        return {"values": values, "vectors": vectors}

    def solve(self, u: Array) -> Array:
        """Return d = f(H) u for f(λ) = 1/(weight λ + σ)."""
        return self.admm_steps(u, 1)[1]

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Return w and d, f(H) u for their two f, by one product with A and one Aᵀ."""
        coordinates = self._vectors.T @ (self._A @ u)
        at_c = self._closed_form(self._c, steps)
        at_values = self._closed_form(self._c + self._s * self._values, steps)
        # f(c) u + Aᵀ U [(f(c + sΛ) − f(c))/Λ] Uᵀ A u
        quotients = [
            np.where(self._present, (value - base) / self._values, 0.0)
            for value, base in zip(at_values, at_c, strict=True)
        ]
        if steps == 1:
            d = self._adjoint @ (self._vectors @ (quotients[1] * coordinates))
            return u.copy(), d + at_c[1] * u
        columns = np.stack(quotients, axis=1) * coordinates[:, None]
        both = self._adjoint @ (self._vectors @ columns)
        return both[:, 0] + at_c[0] * u, both[:, 1] + at_c[1] * u


class ConjugateGradientSystem(ShiftedSystem):
    """H known by its products only: conjugate gradients, a few vectors of memory.

    Parameters
    ----------
    product : callable
        Returns H v for v of shape (p,).
    weight, shift : float
    rtol : float, default 1e-12
        ‖M d − u‖ is at most rtol ‖u‖.
    maxiter : int, default 1000
        The most products a solve may take.
    """

    def __init__(
        self,
        product: Callable[[Array], Array],
        weight: float,
        shift: float,
        *,
        rtol: float = 1e-12,
        maxiter: int = 1000,
    ) -> None:
        super().__init__(weight, shift)
        self._product = product
        self._rtol = rtol
        self._maxiter = maxiter

    @classmethod
    def of_factor(
        cls, A: Any, s: float, c: float, weight: float, shift: float, **options: Any
    ) -> ConjugateGradientSystem:
        """Return the system of H = s AᵀA + c I."""
        adjoint = A.T

        def product(v: Array) -> Array:
            result: Array = adjoint @ (A @ v)
            result *= s
            if c:
                result += c * v
            return result

        return cls(product, weight, shift, **options)

    def solve(self, u: Array) -> Array:
        """Return d.

        Raises
        ------
        RuntimeError
            The tolerance was not reached.
        """
        operator = symmetric_operator(
            len(u), lambda v: self.weight * self._product(v) + self.shift * v
        )
        from scipy.sparse.linalg import cg

        d, info = cg(operator, u, rtol=self._rtol, atol=0.0, maxiter=self._maxiter)
        if info != 0:
            raise RuntimeError(
                f"conjugate gradients did not converge to {self._rtol:g} in "
                f"{self._maxiter} iterations with sigma = {self.shift:g}; a larger "
                "sigma makes the system better conditioned"
            )
        # For u = 0 SciPy returns u itself.
        return np.array(d, dtype=np.float64)


class UserSystem(ShiftedSystem):
    """A user's H, from an object that solves with it.

    Parameters
    ----------
    solver : object
        ``solve(vector, shift)`` returns (H + shift · I)⁻¹ vector, of shape (p,).
    weight, shift : float
    """

    def __init__(self, solver: Any, weight: float, shift: float) -> None:
        super().__init__(weight, shift)
        self._solver = solver

    def solve(self, u: Array) -> Array:
        """Return d = (H + (σ/weight) I)⁻¹ u/weight.

        Raises
        ------
        ValueError
            The object returned something of another shape, or that is not finite.
        """
        # A copy, because the object might work in place.
        given = self._solver.solve(u.copy(), self.shift / self.weight)
        name = f"hessian.solve of {type(self._solver).__name__}"
        try:
            answer = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"{name} returned a {type(given).__name__}; it must be an array"
            ) from None
        if answer.shape != u.shape:
            raise ValueError(
                f"{name} returned shape {answer.shape}; it must be {u.shape}"
            )
        if not np.isfinite(answer).all():
            raise ValueError(
                f"{name} returned NaN or infinite entries; all must be finite"
            )
        return answer / self.weight


def _cholesky(M: Array) -> Array:
    factor: Array = scipy.linalg.cho_factor(
        M, lower=True, overwrite_a=True, check_finite=False
    )[0]
    return factor


def _cholesky_solve(factor: Array, right: Array) -> Array:
    result: Array = scipy.linalg.cho_solve((factor, True), right, check_finite=False)
    return result


def _eigh(matrix: Array) -> tuple[Array, Array]:
    # "evd" takes three quarters of the time of the default driver
    values, vectors = scipy.linalg.eigh(matrix, driver="evd", check_finite=False)
    return values, vectors


def _outer_gram(A: Any) -> Array:
    """Return AAᵀ as a new dense array."""
    product = A @ A.T
    gram: Array = product.toarray() if is_sparse(product) else product
    return gram
