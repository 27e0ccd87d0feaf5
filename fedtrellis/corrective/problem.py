"""What a client minimises in a round, and how far it goes along a direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.domains.base import FloatArray, Shape
from fedtrellis.wire.arrays import Layout

__all__ = ["LocalProblem", "PieceProblem"]

# A step is kept if the value falls by this share of what the slope promises (Armijo).
_SUFFICIENT = 0.25
# Halvings of a step before it is given up: below this nothing is left of its digits.
_MAX_HALVINGS = 40
# A share of the value that rounding hides, in float64.
_NOISE = 1e-14


@dataclass(eq=False)
class LocalProblem:
    """L_i(x) = (1/n) f_i(x) + ⟨y_i, x − z⟩ + (ρ/2) ‖x − z‖².

    Parameters
    ----------
    objective : object
        f_i, with ``gradient(x)`` and ``value(x)``; ``curvature(x, direction)`` is used
        where it has one.
    layout : Layout
        Shapes of the model's arrays.
    n : int
        How many clients there are.
    y, z : ndarray of float64
        The client's dual variable, and what the server sent.
    penalty : float
        ρ.
    """

    objective: Any
    layout: Layout
    n: int
    y: FloatArray
    z: FloatArray
    penalty: float = 0.0

    def __post_init__(self) -> None:
        self._curvature = getattr(self.objective, "curvature", None)
        self._quadratic = bool(getattr(self.objective, "quadratic", False))
        # what f_i computes in decides how much of its value is rounding
        coarser = np.finfo(self.layout.point_dtype).eps / np.finfo(np.float64).eps
        self._noise = _NOISE * float(coarser)

    def loss_gradient(self, x: FloatArray) -> FloatArray:
        """(1/n) ∇f_i(x), a new array."""
        gradient = self.objective.gradient(self.layout.objective_point(x))
        gradient = self.layout.objective_gradient(gradient)
        return gradient.astype(np.float64, copy=False) / self.n

    def loss(self, x: FloatArray) -> float:
        """(1/n) f_i(x)."""
        return float(self.objective.value(self.layout.objective_point(x))) / self.n

    def gradient(self, x: FloatArray) -> FloatArray:
        """∇L_i(x) = (1/n) ∇f_i(x) + y_i + ρ (x − z)."""
        gradient = self.loss_gradient(x)
        gradient += self.y
        gradient += self.penalty * (x - self.z)
        return gradient

    def value(self, x: FloatArray) -> float:
        """L_i(x)."""
        away = x - self.z
        return (
            self.loss(x)
            + float(np.vdot(self.y, away))
            + 0.5 * self.penalty * float(np.vdot(away, away))
        )

    def bend(self, x: FloatArray, direction: FloatArray) -> float | None:
        """Curvature of L_i at x along d ≠ 0 over ‖d‖²; None where it is not known."""
        length = float(np.vdot(direction, direction))
        if self._curvature is None or length == 0.0:
            return None
        curvature = self._curvature(
            self.layout.objective_point(x), self.layout.objective_point(direction)
        )
        if curvature is None:
            return None
        # dᵀ∇²L_i d = (1/n) dᵀ∇²f_i d + ρ ‖d‖²
        return float(curvature) / (self.n * length) + self.penalty

    def bend_between(self, x: FloatArray, other: FloatArray) -> float:
        """Mean curvature of (1/n) f_i on the way between two points, not below 0.

        |⟨∇f_i(x) − ∇f_i(x'), x − x'⟩| / (n ‖x − x'‖²); 0 where they are the same.
        """
        way = x - other
        length = float(np.vdot(way, way))
        if length == 0.0:
            return 0.0
        change = self.loss_gradient(x) - self.loss_gradient(other)
        return abs(float(np.vdot(change, way))) / length

    def line(
        self, x: FloatArray, direction: FloatArray, slope: float
    ) -> tuple[float, float | None]:
        """How far to go from x: γ in [0, 1], by the smallest L_i(x + γd).

        Exact where f_i is quadratic and says so. Otherwise a step by the curvature at
        x, or by that of the parabola through L_i(x), the slope and L_i(x + d),
        halved until the value falls by a quarter of what the slope
        ⟨∇L_i(x), d⟩ < 0 promises. With γ comes :meth:`bend` at x along d.
        """
        bend = self.bend(x, direction)
        if bend is None:
            return self._searched(x, direction, slope, 1.0, True), None
        curvature = bend * float(np.vdot(direction, direction))
        gamma = _minimiser(slope, curvature, 1.0)
        if not self._quadratic:
            gamma = self._searched(x, direction, slope, gamma, False)
        return gamma, bend

    def _searched(
        self, x: FloatArray, d: FloatArray, slope: float, gamma: float, guess: bool
    ) -> float:
        """A step that makes the value fall enough, from a first try on."""
        here = self.value(x)
        noise = self._noise * (1.0 + abs(here))
        for _ in range(_MAX_HALVINGS):
            there = self.value(x + gamma * d)
            if there <= here + _SUFFICIENT * gamma * slope + noise:
                return gamma
            if guess and math.isfinite(there):
                # L(x + γd) ≈ L(x) + γ slope + (γ²/2) bend
                bend = 2.0 * (there - here - gamma * slope) / gamma**2
                gamma = min(0.5 * gamma, _minimiser(slope, bend, gamma))
            else:
                gamma *= 0.5
        return 0.0


class PieceProblem(LocalProblem):
    """L_i as a function of one piece of a flat x, the rest of which stays as it is."""

    def __init__(
        self, problem: LocalProblem, x: FloatArray, where: slice, shape: Shape
    ) -> None:
        self._problem, self._x, self._where, self._shape = problem, x, where, shape
        self._quadratic, self.penalty = problem._quadratic, problem.penalty
        self._noise = problem._noise

    def _whole(self, piece: FloatArray) -> FloatArray:
        x = self._x.copy()
        x[self._where] = piece.reshape(-1)
        return x

    def gradient(self, x: FloatArray) -> FloatArray:
        """∇L_i, of the piece."""
        whole = self._problem.gradient(self._whole(x))
        return whole[self._where].reshape(self._shape)

    def value(self, x: FloatArray) -> float:
        """L_i at the whole x."""
        return self._problem.value(self._whole(x))

    def bend(self, x: FloatArray, direction: FloatArray) -> float | None:
        """Curvature along a direction of the piece."""
        along = np.zeros(self._x.shape)
        along[self._where] = direction.reshape(-1)
        return self._problem.bend(self._whole(x), along)


def _minimiser(slope: float, bend: float, longest: float) -> float:
    """Argmin over γ in [0, longest] of γ slope + (γ²/2) bend, for a negative slope."""
    # where it bends downward there is nothing to stop for before the end
    if bend <= 0.0 or -slope >= longest * bend:
        return longest
    return -slope / bend
