"""Corrective FedFW as one plain NumPy loop, from METHODS §5.1 and the docstrings.

It imports nothing of the package: sets, losses, steps and the rule for ρ are written
down here once more, matrices whole, weights in lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


# ------------------------------------------------------------------------------- sets


@dataclass
class Ball:
    """A set: its oracle, its projection, whether a point lies in it, and its width.

    ``sparse`` is whether projected steps keep to a face, ``shares`` whether changes
    travel as float16 shares.
    """

    oracle: Callable[[Array], Array]
    project: Callable[[Array], Array]
    inside: Callable[[Array], bool]
    diameter: float
    sparse: bool = False
    shares: bool = True
    on: Callable[[Array, NDArray[np.bool_]], Array] | None = None


def to_simplex(v: Array, radius: float) -> Array:
    """Sort, find the threshold, cut."""
    u = np.sort(v)[::-1]
    theta = (np.cumsum(u) - radius) / np.arange(1, v.size + 1)
    return np.asarray(np.maximum(v - theta[np.flatnonzero(u > theta)[-1]], 0.0))


def to_l1(v: Array, radius: float) -> Array:
    if np.abs(v).sum() <= radius:
        return v.copy()
    return np.asarray(np.sign(v) * to_simplex(np.abs(v), radius))


def to_nuclear(v: Array, radius: float) -> Array:
    left, values, right = np.linalg.svd(v, full_matrices=False)
    return np.asarray((left * to_l1(values, radius)) @ right)


def _vertex(j: int, value: float, size: int) -> Array:
    vertex = np.zeros(size)
    vertex[j] = value
    return vertex


def _l1_oracle(g: Array, radius: float) -> Array:
    j = int(np.abs(g).argmax())
    return _vertex(j, radius if g[j] <= 0.0 else -radius, g.size)


def l1_ball(radius: float) -> Ball:
    return Ball(
        lambda g: _l1_oracle(g, radius),
        lambda v: to_l1(v, radius),
        lambda v: bool(np.abs(v).sum() <= radius),
        2 * radius,
        sparse=True,
        on=lambda v, J: to_l1(np.where(J, v, 0.0), radius),
    )


def simplex(radius: float) -> Ball:
    def on(v: Array, face: NDArray[np.bool_]) -> Array:
        result = np.zeros(v.size)
        result[face] = to_simplex(v[face], radius)
        return result

    return Ball(
        lambda g: _vertex(int(g.argmin()), radius, g.size),
        lambda v: to_simplex(v, radius),
        lambda v: bool(v.min() >= 0.0 and v.sum() == radius),
        math.sqrt(2) * radius,
        sparse=True,
        on=on,
    )


def nuclear_ball(radius: float) -> Ball:
    def oracle(g: Array) -> Array:
        left, _, right = np.linalg.svd(g)
        return -radius * np.outer(left[:, 0], right[0])

    return Ball(
        oracle,
        lambda v: to_nuclear(v, radius),
        lambda v: bool(np.linalg.norm(v, "nuc") <= radius),
        2 * radius,
        shares=False,
    )


# ------------------------------------------------------------------------------ losses


@dataclass
class Loss:
    """f_i: value, gradient, dᵀ∇²f_i(x)d if known, and whether it is quadratic."""

    value: Callable[[Array], float]
    gradient: Callable[[Array], Array]
    curvature: Callable[[Array, Array], float] | None = None
    quadratic: bool = True


def least_squares(a: Array, b: Array, weight: float) -> Loss:
    """weight ‖Ax − b‖²."""
    return Loss(
        lambda x: float(weight * np.sum((a @ x - b) ** 2)),
        lambda x: 2 * weight * a.T @ (a @ x - b),
        lambda x, d: float(2 * weight * np.sum((a @ d) ** 2)),
    )


def logistic(a: Array, b: Array, weight: float) -> Loss:
    """weight · mean of ln(1 + e^{a_kᵀx}) − b_k a_kᵀx."""

    def share(x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-(a @ x))))

    return Loss(
        lambda x: float(weight * np.mean(np.logaddexp(0, a @ x) - b * (a @ x))),
        lambda x: weight * a.T @ (share(x) - b) / len(b),
        lambda x, d: float(weight * np.mean(share(x) * (1 - share(x)) * (a @ d) ** 2)),
        quadratic=False,
    )


def quartic(centre: Array, weight: float) -> Loss:
    """weight · Σ (X_ij − c_ij)⁴ + (X_ij − c_ij)², of which no curvature is known."""
    return Loss(
        lambda x: float(weight * np.sum((x - centre) ** 4 + (x - centre) ** 2)),
        lambda x: weight * (4 * (x - centre) ** 3 + 2 * (x - centre)),
        quadratic=False,
    )


def completion(rows: Any, columns: Any, values: Array, weight: float) -> Loss:
    """weight · mean of (X_ij − M_ij)² over what is known."""

    def gradient(x: Array) -> Array:
        result = np.zeros_like(x)
        off = x[rows, columns] - values
        np.add.at(result, (rows, columns), 2 * weight * off / len(values))
        return result

    return Loss(
        lambda x: float(weight * np.mean((x[rows, columns] - values) ** 2)),
        gradient,
        lambda x, d: float(2 * weight * np.mean(d[rows, columns] ** 2)),
    )


# -------------------------------------------------------------------------- the method


class Loop:
    """The method, round after round.

    Parameters
    ----------
    losses : sequence of Loss
    ball : Ball
    start : ndarray
    steps : int
        k.
    penalty : float, optional
        ρ for good.
    pairwise : bool
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        ball: Ball,
        start: Array,
        steps: int,
        penalty: float | None = None,
        pairwise: bool = False,
    ) -> None:
        self.losses, self.ball, self.k = losses, ball, steps
        self.n, self.pairwise = len(losses), pairwise
        self.x = [start.copy() for _ in losses]
        self.y = [np.zeros_like(start) for _ in losses]
        self.z, self.mean = start.copy(), start.copy()
        self.fixed, self.rho = penalty, penalty
        # pairwise: the atoms and their weights
        self.atoms = [[start.copy()] for _ in losses]
        self.weights = [[1.0] for _ in losses]
        self.changes = self.answers = 0
        self.mark: Any = None

    def round(self, used: Sequence[int]) -> None:
        """One round in which the answers of these clients were used."""
        if not used:
            return
        rho, bends = self.rho or 0.0, []
        for i in used:
            before = self.x[i]
            if self.pairwise:
                self.x[i] = self._pairwise(i, rho)
            else:
                self.x[i] = self._arrived(before, self._projected(i, rho))
            self.y[i] = self.y[i] + rho * (self.x[i] - self.z)
            way = self.x[i] - before
            gradient = self.losses[i].gradient
            if way.any():
                turned = np.vdot(gradient(self.x[i]) - gradient(before), way)
                bends.append(float(abs(turned) / self.n / np.vdot(way, way)))
        self.mean = np.mean(self.x, axis=0)
        self.z = self.mean
        if self.rho is not None:
            self.z = self.mean + np.mean(self.y, axis=0) / rho
        self._balance(len(used), [bend for bend in bends if bend > 0.0])

    def _balance(self, used: int, bends: list[float]) -> None:
        if self.fixed is not None:
            return
        if self.rho is None:
            if bends:
                self.rho = float(np.median(bends))
                self.mark = np.array(self.y), self.z
            return
        self.answers += used
        if self.answers < 2 * self.n:
            return
        a = np.linalg.norm(np.array(self.y) - self.mark[0])
        b = self.rho * math.sqrt(self.n) * np.linalg.norm(self.z - self.mark[1])
        still = 1e-7 * self.rho * math.sqrt(self.n) * np.linalg.norm(self.z)
        if min(a, b) > 0.0 and max(a, b) > still:
            self.changes += 1
            c = min(10.0, math.exp(20.0 / self.changes**1.25))
            q = float(a / b) / (2.0 if self.pairwise else 1.0)

            self.rho *= min(max(q, 1 / c), c)
        self.mark, self.answers = (np.array(self.y), self.z), 0

    # ------------------------------------------------------------- the problem L_i

    def _gradient(self, i: int, x: Array, rho: float) -> Array:
        g = self.losses[i].gradient(x) / self.n
        return np.asarray(g + self.y[i] + rho * (x - self.z))

    def _value(self, i: int, x: Array, rho: float) -> float:
        away = x - self.z
        own = self.losses[i].value(x) / self.n
        return float(own + np.vdot(self.y[i], away) + rho / 2 * np.vdot(away, away))

    def _bend(self, i: int, x: Array, d: Array, rho: float) -> float | None:
        curvature = self.losses[i].curvature
        if curvature is None:
            return None
        return float(curvature(x, d) / (self.n * np.vdot(d, d)) + rho)

    def _length(
        self, i: int, x: Array, d: Array, slope: float, longest: float, rho: float
    ) -> float:
        """γ: the parabola's minimiser, shortened until L_i falls enough."""
        bend = self._bend(i, x, d, rho)
        gamma = longest
        if bend is not None and bend > 0.0:
            gamma = min(longest, -slope / (bend * float(np.vdot(d, d))))
        if self.losses[i].quadratic:
            return gamma
        here = self._value(i, x, rho)
        noise = 1e-14 * (1 + abs(here))
        while True:
            there = self._value(i, x + gamma * d, rho)
            if there <= here + gamma * slope / 4 + noise:
                return gamma
            if bend is None:
                # the parabola through L_i(x), the slope and what was tried
                curve = 2 * (there - here - gamma * slope) / gamma**2
                gamma = min(gamma / 2, -slope / curve)
            else:
                gamma /= 2
            if gamma < longest * 2.0**-40:
                return 0.0

    # ------------------------------------------------------------------- the steps

    def _projected(self, i: int, rho: float) -> Array:
        x, ball = self.x[i], self.ball
        bound: float | None = None
        last: Any = None
        face = x != 0.0
        for _ in range(self.k):
            g = self._gradient(i, x, rho)
            face = face | (ball.oracle(g) != 0.0)
            if bound is None and last is not None:
                way = x - last[0]
                bound = float(np.vdot(way, g - last[1]) / np.vdot(way, way))
            if bound is None:
                bound = self._bend(i, x, g, rho)
            if bound is None or bound <= 0.0:
                bound = float(np.linalg.norm(g)) / ball.diameter
            target = x - g / max(bound, rho)
            on = ball.on if ball.sparse else None
            moved = ball.project(target) if on is None else on(target, face)
            d = moved - x
            slope = float(np.vdot(g, d))
            if slope >= 0.0:
                break
            gamma = self._length(i, x, d, slope, 1.0, rho)
            if gamma == 0.0:
                break
            bound, last = self._bend(i, x, d, rho), (x, g)
            x = moved if gamma == 1.0 else x + gamma * d
        return x

    def _arrived(self, before: Array, after: Array) -> Array:
        """What both sides make of the float16 shares of the largest change."""
        if not self.ball.shares:
            return after
        change = after - before
        largest = np.abs(change).max()
        if largest > 0.0:
            change = largest * (change / largest).astype(np.float16).astype(float)
        x = np.where(after == 0.0, 0.0, before + change)
        if self.ball.inside(x):
            return x
        on = self.ball.on if self.ball.sparse else None
        return self.ball.project(x) if on is None else on(x, x != 0.0)

    def _pairwise(self, i: int, rho: float) -> Array:
        atoms, weights = list(self.atoms[i]), list(self.weights[i])
        x = self.x[i]
        for _ in range(self.k):
            g = self._gradient(i, x, rho)
            v = self.ball.oracle(g)
            scores = [
                float(np.vdot(a, g)) if w > 0.0 else -math.inf
                for a, w in zip(atoms, weights, strict=True)
            ]
            u = int(np.argmax(scores))
            low, high = float(np.vdot(v, g)), scores[u]
            if high - low <= 1e-15 * (abs(low) + abs(high)):
                break
            d = v - atoms[u]
            gamma = self._length(i, x, d, low - high, weights[u], rho)
            x = x + gamma * d
            weights[u] -= gamma
            same = [j for j, a in enumerate(atoms) if np.array_equal(a, v)]
            if same:
                weights[same[0]] += gamma
            else:
                atoms.append(v)
                weights.append(gamma)
        kept = [j for j, w in enumerate(weights) if w > 0.0]
        self.atoms[i] = [atoms[j] for j in kept]
        self.weights[i] = [weights[j] for j in kept]
        return np.asarray(
            sum(w * a for w, a in zip(self.weights[i], self.atoms[i], strict=True))
        )
