"""The server's step from the clients' gradients: safe at first, then quasi-Newton.

Minimises F = f + h, f smooth and known by its gradients only, one a round, h separable
(:class:`Separable`). There are no values of f: their
differences come from the gradients at both ends, by the trapezoid rule, which is exact
for quadratics and for a convex f lies between two bounds of them.

- The *plain* step x ← prox(x − ∇f(x)/(θS)) decreases F whenever θ·diag(S) majorises
  ∇²f: it minimises a function that lies above F and touches it at x.
- The *long* step minimises the model gᵀp + ½ pᵀBp + h(x + p) with the limited-memory
  BFGS matrix B of the gradients seen so far (J. Nocedal, S. Wright, "Numerical
  Optimization", 2006, §7.2; with h: J. Lee, Y. Sun, M. Saunders, "Proximal Newton-type
  methods", SIAM J. Optim. 2014). B starts from S, so that badly scaled columns do not
  matter.
- A point where F did not fall enough is given up: the next lies between it and the best
  one, and after three in a row the next is a plain step from the best. If a plain step
  itself fails then S was no majoriser, and θ grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.base import Array

__all__ = ["QuasiNewton", "Separable"]

#: Pairs of steps and changes of the gradient that are kept.
MEMORY = 40
# F has to fall by this part of what its slope promises (Armijo).
_ENOUGH = 1e-4
# A curvature below this, relative to the lengths of both, is rounding.
_FLAT = 1e-12
_TRIES = 3
# A step below so many units in the last place of the point is rounding.
_ULPS = 32.0
# Of the model with h: turns, the iterations of each, the relative step to stop at.
_TURNS, _INNER, _INNER_TOLERANCE = 10, 50, 1e-10


@dataclass(frozen=True)
class Separable:
    """h(x) = l1 Σ_j |x_j| + (l2/2) Σ_j x_j², and ∞ where x_j is not in [lower, upper].

    Each entry of x counts by itself, so that a diagonal metric leaves the proximal
    operator a formula: N. Parikh, S. Boyd, "Proximal Algorithms", 2014, §6.
    """

    l1: float = 0.0
    l2: float = 0.0
    lower: float = -inf
    upper: float = inf

    @property
    def smooth(self) -> bool:
        """Whether h is a quadratic."""
        return self.l1 == 0.0 and self.lower == -inf and self.upper == inf

    def __bool__(self) -> bool:
        """Whether h is anything but 0."""
        return not self.smooth or self.l2 > 0.0

    def value(self, x: Array) -> float:
        """Return h(x) of an x within the bounds."""
        total = 0.5 * self.l2 * float(np.vdot(x, x))
        return total + self.l1 * float(np.abs(x).sum())

    def prox(self, v: Array, weight: Array | float) -> Array:
        """Return argmin over x of h(x) + ½ Σ_j weight_j (x_j − v_j)², a new array."""
        # soft-threshold weight·v by l1, divide by the curvature, clip:
        #     x = clip(sign(v) max(weight |v| − l1, 0)/(weight + l2), lower, upper)
        x: Array = np.sign(v) * np.maximum(weight * np.abs(v) - self.l1, 0.0)
        x /= weight + self.l2
        return np.clip(x, self.lower, self.upper, out=x)

    def slope(self, x: Array, gradient: Array) -> Array:
        """Return the shortest vector of gradient + ∂h(x); it is 0 at a minimum."""
        v: Array = gradient + self.l2 * x
        if self.l1:
            # ∂|x_j| = sign(x_j), and all of [−1, 1] where x_j = 0
            zero = np.sign(v) * np.maximum(np.abs(v) - self.l1, 0.0)
            v = np.where(x == 0.0, zero, v + self.l1 * np.sign(x))
        # at a bound the normal cone takes what points outwards
        v = np.where(x <= self.lower, np.minimum(v, 0.0), v)
        return np.where(x >= self.upper, np.maximum(v, 0.0), v)


class QuasiNewton:
    """Where to ask for the next gradient.

    Parameters
    ----------
    scale : ndarray of float64 of shape (p,)
        S, above 0.
    h : Separable
        Without l2, which is smooth and belongs into f.
    dtype : dtype
        What the points travel in.

    Attributes
    ----------
    growth : float
        θ, at first 1.
    best, gradient : ndarray of shape (p,) or None
        The best point so far with ∇f there.
    """

    def __init__(self, scale: Array, h: Separable, dtype: Any = np.float64) -> None:
        self.scale, self.h = scale, h
        self._smallest = _ULPS * float(np.finfo(dtype).eps)
        self.growth = 1.0
        self.best: Array | None = None
        self.gradient: Array | None = None
        # in scaled coordinates u = √S x, where gradients are ∇f/√S
        self._root = np.sqrt(scale)
        self._steps = np.empty((0, scale.size))
        self._changes = np.empty((0, scale.size))
        self._failures, self._was_plain = 0, False
        self._retreat: Array | None = None
        # above F(best) − F(first), if f is convex
        self._above = 0.0

    def _best(self) -> tuple[Array, Array]:
        assert self.best is not None
        assert self.gradient is not None
        return self.best, self.gradient

    def plain_step(self) -> Array:
        """Return prox(x − ∇f(x)/(θS)) for the best x: F is no higher if θS majorises.

        The point counts as a trial that :meth:`observe` looks at.
        """
        x, gradient = self._best()
        self._was_plain = True
        weight = self.growth * self.scale
        return self.h.prox(x - gradient / weight, weight)

    def residual(self) -> float:
        """Return the squared length of the shortest of ∇f + ∂h at the best point."""
        return float(np.sum(self.h.slope(*self._best()) ** 2))

    def observe(self, x: Array, gradient: Array) -> bool:
        """Take in ∇f at a point, not copied; whether it is the best so far."""
        if self.best is None or self.gradient is None:
            self.best, self.gradient = x, gradient
            return True
        step, change = x - self.best, gradient - self.gradient
        curvature = float(step @ change)
        length = float(np.linalg.norm(step * self._root))
        felt = length > self._smallest * float(np.linalg.norm(x * self._root))
        if felt:
            self._note(step, change, curvature)
        rise = self.h.value(x) - self.h.value(self.best)
        promised = float(self.gradient @ step) + rise
        # F(x) − F(best) = ½ (∇f(x) + ∇f(best))ᵀ(x − best) + h(x) − h(best)
        fall = promised + 0.5 * curvature
        # F(x) − F(best) ≤ ∇f(x)ᵀ(x − best) + h(x) − h(best) for a convex f
        above = self._above + promised + curvature
        # the lowest point along a step has above = 0 but for rounding
        rounding = self._smallest * (abs(promised) + abs(curvature))
        if fall <= _ENOUGH * promised <= 0.0 and above <= rounding:
            # above 0 it is rounding, and no later point could make up for it
            self.best, self.gradient, self._above = x, gradient, min(above, 0.0)
            self._failures, self._was_plain = 0, False
            return True
        if self._was_plain and felt:
            # along this step f has the curvature sᵀy, and S has sᵀSs
            seen = curvature / length**2
            if seen > self.growth:
                self.grow(seen)
        # the lowest point of the quadratic through both, if it is one
        part = -promised / curvature if curvature > 0.0 else 0.5
        self._retreat = self.best + min(max(part, 0.05), 0.7) * step
        return False

    def grow(self, seen: float = 0.0) -> None:
        """Let θ grow to twice what it was, or to a curvature that was seen."""
        if isfinite(seen):
            self.growth = max(2.0 * self.growth, seen)

    def propose(self, is_best: bool) -> Array:
        """Return the next point, given what :meth:`observe` answered."""
        if not is_best:
            return self.go_back()
        if not len(self._steps):
            return self.plain_step()
        best, gradient = self._best()
        x = self._long(best, gradient)
        slope = float(gradient @ (x - best))
        slope += self.h.value(x) - self.h.value(best)
        if not np.isfinite(x).all() or not slope < 0.0:
            self._forget()
            return self.plain_step()
        return x

    def go_back(self) -> Array:
        """Return the next point where the last was no good, or was never answered."""
        self._failures += 1
        retreat, self._retreat = self._retreat, None
        if retreat is not None and self._failures < _TRIES and not self._was_plain:
            return retreat
        self._forget()
        return self.plain_step()

    def _forget(self) -> None:
        self._steps, self._changes = self._steps[:0], self._changes[:0]
        self._failures = 0

    def _note(self, step: Array, change: Array, curvature: float) -> None:
        s, y = step * self._root, change / self._root
        if not curvature > _FLAT * float(np.linalg.norm(s) * np.linalg.norm(y)):
            return
        self._steps = np.concatenate([self._steps, s[None]])[-MEMORY:]
        self._changes = np.concatenate([self._changes, y[None]])[-MEMORY:]

    def _long(self, x: Array, gradient: Array) -> Array:
        last_s, last_y = self._steps[-1], self._changes[-1]
        # B₀ = δ S with the curvature of the last step, the larger of two estimates
        delta = float(last_y @ last_y) / float(last_s @ last_y)
        if self.h:
            return self._model_minimum(x, gradient, delta)
        d = self._two_loops(gradient / self._root, delta)
        step: Array = d / self._root
        return x - step

    def _two_loops(self, q: Array, delta: float) -> Array:
        """Return B⁻¹ q in scaled coordinates, by the two-loop recursion."""
        q, weights = q.copy(), []
        pairs = list(zip(self._steps, self._changes, strict=True))
        for s, y in reversed(pairs):
            weights.append(float(s @ q) / float(s @ y))
            q -= weights[-1] * y
        q /= delta
        for (s, y), weight in zip(pairs, reversed(weights), strict=True):
            q += (weight - float(y @ q) / float(s @ y)) * s
        return q

    def _model_minimum(self, x: Array, gradient: Array, delta: float) -> Array:
        """Return x + p of the least model value, by accelerated proximal gradients.

        In scaled coordinates B = δI − W M⁻¹ Wᵀ with W = [δSᵀ, Yᵀ] and
        M = [[δSSᵀ, L], [Lᵀ, −D]], S and Y with the pairs in their rows, L the part
        below the diagonal of SYᵀ and D its diagonal (Nocedal and Wright, (7.24)).
        """
        S, Y = self._steps, self._changes
        products = S @ Y.T
        lower = np.tril(products, -1)
        M = np.block(
            [[delta * (S @ S.T), lower], [lower.T, -np.diag(products.diagonal())]]
        )
        W = np.concatenate([delta * S, Y])
        inverse = np.linalg.pinv(M, hermitian=True)
        # λ_max(B) = δ + λ_max of −W M⁻¹ Wᵀ, in an orthogonal basis of W's rows
        _, R = np.linalg.qr(W.T)
        top = delta + max(0.0, float(np.linalg.eigvalsh(-(R @ inverse @ R.T))[-1]))
        root, weight = self._root, top * self.scale

        def slope(point: Array) -> Array:
            u = (point - x) * root
            return gradient + root * (delta * u - W.T @ (inverse @ (W @ u)))

        point = x
        for _ in range(_TURNS):
            point, moved = self._descend(point, slope, weight)
            settled = self._settled(point, slope, delta, W, M)
            if settled is not None:
                point = settled
                following = self.h.prox(point - slope(point) / weight, weight)
                moved = float(np.linalg.norm((following - point) * root))
            if moved <= _INNER_TOLERANCE * float(np.linalg.norm((point - x) * root)):
                break
        return point

    def _descend(
        self, point: Array, slope: Callable[[Array], Array], weight: Array
    ) -> tuple[Array, float]:
        """Accelerated proximal gradient steps; the last point, and its last step."""
        ahead, momentum, size = point, 1.0, 0.0
        for _ in range(_INNER):
            following = self.h.prox(ahead - slope(ahead) / weight, weight)
            moved = following - point
            if float(((ahead - following) * weight) @ moved) > 0.0:
                momentum = 1.0  # it points uphill: start the momentum again
            faster = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            ahead = following + (momentum - 1.0) / faster * moved
            point, momentum = following, faster
            size = float(np.linalg.norm(moved * self._root))
        return point, size

    def _settled(
        self,
        point: Array,
        slope: Callable[[Array], Array],
        delta: float,
        W: Array,
        M: Array,
    ) -> Array | None:
        """The model's minimum if all entries stay on their side; None if they do not.

        Entries at 0 (with l1) or at a bound are held, for the others the model is a
        quadratic: B_ff⁻¹ = I/δ + W_f (M − W_fᵀW_f/δ)⁻¹ W_fᵀ/δ².
        """
        h = self.h
        free = (point > h.lower) & (point < h.upper)
        if h.l1:
            free &= point != 0.0
        right = -(slope(point) + h.l1 * np.sign(point))[free] / self._root[free]
        part = W[:, free]
        try:
            inner = np.linalg.solve(M - part @ part.T / delta, part @ right)
        except np.linalg.LinAlgError:
            return None
        step = (right + part.T @ inner / delta) / delta
        found = point.copy()
        found[free] += step / self._root[free]
        if not ((found >= h.lower) & (found <= h.upper)).all():
            return None
        if h.l1 and (np.sign(found) != np.sign(point)).any():
            return None
        return found

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint has to keep; arrays that are empty at first."""
        nothing = np.empty(0)
        numbers = [self.growth, self._failures, self._was_plain, self._above]
        return {
            "best": nothing if self.best is None else self.best,
            "gradient": nothing if self.gradient is None else self.gradient,
            "retreat": nothing if self._retreat is None else self._retreat,
            "steps": self._steps,
            "changes": self._changes,
            "numbers": np.array(numbers, dtype=np.float64),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state`."""
        self.best, self.gradient, self._retreat = (
            state[name] if state[name].size else None
            for name in ("best", "gradient", "retreat")
        )
        self._steps, self._changes = state["steps"], state["changes"]
        growth, failures, plain, above = map(float, state["numbers"])
        self.growth, self._failures, self._above = growth, int(failures), above
        self._was_plain = bool(plain)
