"""What a loss is: value, slope and curvature, and for dual ascent its conjugate.

Losses of linear models are used twice: the smooth objectives add them up over a data
matrix, and HyFDCA's clients ascend the dual problem. The primal problem is
P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i), the dual one
D(α) = −(λ/2)‖(1/λN) Σ α_i x_i‖² − (1/N) Σ l*(−α_i), and w = (1/λN) Σ α_i x_i ties them
together: "HyFDCA", arXiv 2210.08106, section 3, after S. Shalev-Shwartz and T. Zhang,
"Stochastic dual coordinate ascent", 2013. Both of the paper's dual steps are here,
algorithm 3's and algorithm 5's, the latter with ‖x_i‖² in its quadratic term.

Everything is computed for many samples at once: arrays are float64 of shape (n,), one
entry per sample, and a number stands for n equal entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.objectives.checks import Array, check_number

__all__ = ["Loss", "ScoreLoss"]


class ScoreLoss(ABC):
    """A convex function l(z; y) of an example's score z, or scores, and its label y.

    Labels broadcast against the examples, the first axes of z.
    """

    @property
    @abstractmethod
    def curvature(self) -> float:
        """The least upper bound of the second derivative by z; +inf at a kink."""

    @abstractmethod
    def value(self, z: Array, y: Any) -> Array:
        """Return l(z; y) of every example; z stays as it is."""

    @abstractmethod
    def slope(self, z: Array, y: Any, out: Array | None = None) -> Array:
        """Return the derivative of l by z; at a kink the subgradient of smaller size.

        Parameters
        ----------
        z : ndarray
            The scores.
        y : ndarray
            The labels; broadcast against the examples.
        out : ndarray, optional
            Memory of z's shape that may be used for the result; z itself will do.
        """

    @abstractmethod
    def curvature_along(self, z: Array, y: Any, change: Array) -> Array:
        """Return the second derivative of l(z + γ·change; y) by γ at γ = 0.

        At a kink and where the second derivative jumps, it is that of one side.

        Parameters
        ----------
        z : ndarray
            The scores.
        y : ndarray
            The labels; broadcast against the examples.
        change : ndarray
            Of z's shape.

        Returns
        -------
        ndarray
            One number an example, at least 0.
        """

    def total(self, z: Array, y: Any) -> Any:
        """Return the sum of l over the first axis; z stays as it is."""
        return self.value(z, y).sum(axis=0)

    def total_and_slope(self, z: Array, y: Any) -> tuple[Any, Array]:
        """Return :meth:`total` and :meth:`slope`, the slope in the memory of z."""
        return self.total(z, y), self.slope(z, y, z)


class Loss(ScoreLoss):
    """A loss l(z; y) of one score z = xᵀw, with its conjugate and dual steps.

    Attributes
    ----------
    name : str
        What settings call it, a key of :data:`LOSSES`.
    labels : str
        ``"signs"``: labels are −1 and +1, and yα lies in [0, 1] for every dual variable
        α; ``"real"``: labels and α are any numbers; ``"counts"``: labels are any
        numbers from 0 on, and α ≤ y.
    """

    name: ClassVar[str]
    labels: ClassVar[str]

    def check_labels(self, y: ArrayLike) -> None:
        """Find out whether labels suit the loss.

        Raises
        ------
        ValueError
            One does not, or they are no vector of numbers; in one line.
        """
        labels = np.asarray(y)
        if labels.ndim != 1 or labels.dtype.kind not in "biuf":
            raise ValueError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}; "
                "they must be a vector of real numbers"
            )
        if self.labels == "signs":
            wrong, allowed = np.abs(labels.astype(np.float64)) != 1.0, "-1 or +1"
        else:
            numbers = labels.astype(np.float64)
            wrong, allowed = ~np.isfinite(numbers), "finite"
            if self.labels == "counts":
                wrong, allowed = wrong | (numbers < 0.0), "finite and at least 0"
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"label {first} is {labels[first]:g}; the labels of the {self.name} "
                f"loss must be {allowed}"
            )

    # -- what a loss supplies

    @abstractmethod
    def conjugate(self, alpha: Array, y: Array) -> Array:
        """Return l*(−α) of every sample, +inf where −α is outside its domain.

        A yα outside [0, 1] by no more than 1e-12 counts as rounded and is clipped.
        """

    @abstractmethod
    def coordinate_step(
        self,
        alpha: Array,
        z: Array,
        q: ArrayLike,
        y: Array,
        scale: float,
    ) -> Array:
        """Return the Δ that maximises −l*(−(α + Δ)) − zΔ − (q/(2·scale))Δ².

        Moving α_i alone by it maximises D if z = x_iᵀw, q = ‖x_i‖² and scale = λN.
        With q = 1 it is the paper's practical step, algorithm 5.

        Parameters
        ----------
        alpha : ndarray of shape (n,)
            Dual variables in the conjugate's domain.
        z : ndarray of shape (n,)
        q : array_like of shape (n,) or ()
            At least 0; where it is 0 (x_i = 0) the score does not change with α.
        y : ndarray of shape (n,)
        scale : float
            Above 0.
        """

    @abstractmethod
    def feasible(self, alpha: Array, y: Array) -> Array:
        """Return the nearest dual variables in the conjugate's domain."""

    # -- what follows from it

    def dual_curvature(self, y: Array) -> Array:
        """Return about what l*″ is where the model is right, shape (n,); here 1.

        The unit that a proximal term of α is measured in.
        """
        return np.ones_like(y)

    def constant_score(self, y: Array) -> float:
        """Return the score, one for all samples, of the least loss; of numbers only.

        Raises
        ------
        NotImplementedError
            The loss is one of classes.
        """
        raise NotImplementedError(f"the {self.name} loss has labels -1 and +1")

    def dual_point(self, z: Array, y: Array) -> Array:
        """Return u with −u in ∂l(z): the dual variable that suits a score.

        l(z) + l*(−u) = −uz. At a kink u is the subgradient of the smaller size.
        """
        # 0 − s instead of −s: no zero gets a sign
        return np.asarray(0.0 - self.slope(z, y))

    def theoretical_step(
        self,
        alpha: Array,
        z: Array,
        y: Array,
        weight: float,
        gamma: float,
        regularization: float,
    ) -> Array:
        """Return s c (u − α) for the best s in [0, 1], the paper's algorithm 3.

        s maximises −l*(−(α + s c γ (u − α))) − s c γ z (u − α)
        − (γ²/2λ)(s c (u − α))², with u = :meth:`dual_point`. The last term has 1 for
        ‖x_i‖²: on longer rows the step may be too long. Nothing moves where u = α.

        Parameters
        ----------
        alpha, z, y : ndarray of shape (n,)
            α in the conjugate's domain.
        weight : float
            c, the paper's c_k, above 0 and at most 1.
        gamma : float
            γ, the paper's γ_t, above 0 and at most 1.
        regularization : float
            λ above 0.

        Raises
        ------
        ValueError
            A number is outside what is allowed: beyond 1, α may leave the domain.

        Notes
        -----
        The algorithm prints u in ∂l(z) where its proof has −u; with the former a run
        never leaves 0.
        """
        for name, number in (("weight", weight), ("gamma", gamma)):
            if not 0.0 < number <= 1.0:
                raise ValueError(f"{name} is {number!r}; it must be in (0, 1]")
        check_number("regularization", regularization, positive=True)
        # In terms of Δ = s c γ (u − α) this is the coordinate step with q = 1 and
        # scale = λ, held between 0 and c γ (u − α): the function is concave.
        longest = weight * gamma * (self.dual_point(z, y) - alpha)
        step = self.coordinate_step(alpha, z, 1.0, y, regularization)
        step = np.clip(step, np.minimum(longest, 0.0), np.maximum(longest, 0.0))
        return np.asarray(step / gamma)
