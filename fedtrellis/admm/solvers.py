"""The system (weight · H + shift · I) d = u, and the ways to solve it without a factor.

H is a diagonal, known by its products, or a user's own. Those that factorise are in
:mod:`fedtrellis.admm.factored`, and :mod:`fedtrellis.admm.shifted_systems` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from fedtrellis.objectives.checks import Array
from fedtrellis.objectives.symmetric import symmetric_operator


class ShiftedSystem(ABC):
    """Solves (weight · H + shift · I) d = u, with H positive semi-definite.

    Attributes
    ----------
    weight, shift : float
        1/m and σ of FedGiA, arXiv 2205.01438; both above 0.
    by_products : bool
        Whether all that it has of H are products, which take nothing to keep.
    """

    by_products: bool = False

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

    by_products = True

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


class ScaledSystem(ShiftedSystem):
    """The system with shift · S in place of shift · I, S = diag(scale).

    With H′ = S^(−1/2) H S^(−1/2), u′ = S^(−1/2) u and d′ = √S d the steps
    d = (weight·H + shift·S)⁻¹ u, u ← u − shift·S d are those of H′ and shift·I.

    Parameters
    ----------
    inner : ShiftedSystem
        That of H′.
    scale : ndarray of float64 of shape (p,)
        Above 0.
    """

    def __init__(self, inner: ShiftedSystem, scale: Array) -> None:
        super().__init__(inner.weight, inner.shift)
        self._inner, self._root = inner, np.sqrt(scale)
        self.by_products = inner.by_products

    def solve(self, u: Array) -> Array:
        """Return d = (weight · H + shift · S)⁻¹ u."""
        return self._inner.solve(u / self._root) / self._root

    def admm_steps(self, u: Array, steps: int) -> tuple[Array, Array]:
        """Take the steps in the coordinates √S x."""
        w, d = self._inner.admm_steps(u / self._root, steps)
        return w * self._root, d / self._root


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
