"""Penalties with a dual: elastic net, and a column whose weight is not penalised.

The primal problem is P(w) = λ g(w) + (1/N) Σ l_i(wᵀx_i) with

    g(w) = ((1 − ρ)/2)‖w‖² + ρ‖w‖₁,

without the weight w_m of a free column m, if there is one. With v = (1/λN) Σ α_i x_i
the dual one is D(α) = −λ g*(v) − (1/N) Σ l_i*(−α_i), and

    g*(v) = ‖S_ρ(v)‖²/(2(1 − ρ)),   w = ∇g*(v) = S_ρ(v)/(1 − ρ),

S_ρ the soft threshold (Shalev-Shwartz and Zhang, "Accelerated Proximal Stochastic Dual
Coordinate Ascent for Regularized Loss Minimization", ICML 2014). A free column adds the
constraint v_m = 0, whose multiplier is w_m. Clients send the same v_k as without: only
the server, which has their sum, takes the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrellis.wire.arrays import FloatArray

IntArray = NDArray[np.int64]

# Augmented Lagrangian of v_m = 0: its weight, against 1 of ½‖v‖², and how often the
# multiplier is renewed.
_WEIGHT = 100.0
_RENEWALS = 60
# Quadratic models of g* in a search, and halvings of a step between two of them.
_MODELS = 60
_HALVINGS = 50


@dataclass(frozen=True)
class Penalty:
    """Penalty g, and the search for the best mixture of dual points under it.

    ``l1_ratio`` is ρ in [0, 1), ``free`` the column m whose weight is not penalised;
    −1: none.
    """

    l1_ratio: float = 0.0
    free: int = -1

    @property
    def plain(self) -> bool:
        """Whether it is ½‖w‖² and no more."""
        return self.l1_ratio == 0.0 and self.free < 0

    def value(self, w: FloatArray) -> float:
        """Return g at w, of shape (p,)."""
        own, ρ = self._penalised(w), self.l1_ratio
        return 0.5 * (1.0 - ρ) * float(own @ own) + ρ * float(np.abs(own).sum())

    def gradient(self, w: FloatArray) -> FloatArray:
        """Return a subgradient of g at w, of shape (p,)."""
        own = self._penalised(w)
        return (1.0 - self.l1_ratio) * own + self.l1_ratio * np.sign(own)

    def conjugate(self, v: FloatArray) -> float:
        """Return g* at v, of shape (p,), as if v_m were 0."""
        own = self._threshold(v)
        return 0.5 * float(own @ own) / (1.0 - self.l1_ratio)

    def weights(self, v: FloatArray, multiplier: float = 0.0) -> FloatArray:
        """Return w, of shape (p,), that belongs to v; w_m is the multiplier."""
        w = self._threshold(v) / (1.0 - self.l1_ratio)
        if self.free >= 0:
            w[self.free] = multiplier
        return w

    def maximise(
        self,
        V: FloatArray,
        b: FloatArray,
        rest: FloatArray,
        regularization: float,
        theta: FloatArray,
        blocks: list[slice],
        multiplier: float,
        tolerance: float,
    ) -> float:
        """Maximise bᵀθ − λ g*(rest + Vᵀθ) over a product of simplices, in place.

        V has shape (n, p), b and θ (n,), ``rest``, what does not depend on θ, (p,);
        for the others see :func:`maximise_over_simplices`. Returns w_m, which the
        search starts from.
        """
        ρ, m, λ = self.l1_ratio, self.free, regularization
        # so that v_m weighs as much as all else, whatever the columns' units are
        most = max(float(np.abs(b).max()) / λ, float(np.square(V).sum(axis=1).max()))
        weight = _WEIGHT * max(1.0, most / max(np.square(V[:, m]).max(), 1e-300))

        def climb(multiplier: float) -> None:
            # g* is quadratic as long as no |v_j| passes ρ. So the maximum of its model
            # is found exactly, and a step towards it that is the best one on the way;
            # where the same |v_j| are above ρ there, it is the maximum itself.
            for _ in range(_MODELS):
                v = rest + V.T @ theta
                signs = np.sign(v) if ρ else np.ones_like(v)
                active = np.abs(v) > ρ if ρ else np.ones(len(v), dtype=bool)
                if m >= 0:
                    active[m] = False
                A = V[:, active]
                G = (A @ A.T) / (1.0 - ρ)
                linear = A @ (rest[active] - ρ * signs[active]) / (1.0 - ρ)
                if m >= 0:
                    G += weight * np.outer(V[:, m], V[:, m])
                    linear = linear + V[:, m] * (multiplier + weight * rest[m])
                target = theta.copy()
                model = λ * G, b - λ * linear, target
                maximise_over_simplices(*model, blocks, tolerance)
                if not ρ:
                    theta[:] = target
                    return
                step = target - theta
                u, rise = V.T @ step, float(b @ step)
                length = self._best_length(v, u, rise, λ, multiplier, weight)
                theta[:] = theta + length * step
                after = rest + V.T @ theta
                same = (np.abs(after) > ρ) == (np.abs(v) > ρ)
                if m >= 0:
                    same[m] = True
                small = float(np.abs(step).max(initial=0.0)) <= 1e-15
                if small or (length == 1.0 and same.all()):
                    return

        column = V[:, m]
        if m < 0 or not column.any():  # where θ cannot change v_m, w_m stays
            climb(multiplier)
            return multiplier
        enough = 1e-15 * max(float(np.abs(column).max(initial=0.0)), 1e-300)
        before = np.inf
        for _ in range(_RENEWALS):
            climb(multiplier)
            left = float(rest[m] + column @ theta)
            if abs(left) <= enough or abs(left) > 0.9 * before:
                break  # rounding is all that is left, or no better than before
            before = abs(left)
            # method of multipliers: w_m ← w_m + σ v_m
            multiplier += weight * left
        return multiplier

    def _best_length(
        self, v: FloatArray, u: FloatArray, rise: float, λ: float, *pulls: float
    ) -> float:
        """The γ in [0, 1] that is best on the way θ + γ step, v + γ u; by bisection."""

        def slope(γ: float) -> float:
            at = v + γ * u
            total = rise - λ * float(self._threshold(at) @ u) / (1.0 - self.l1_ratio)
            if self.free >= 0:
                multiplier, weight = pulls
                total -= λ * float((multiplier + weight * at[self.free]) * u[self.free])
            return total

        if slope(1.0) >= 0.0:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
        return 0.5 * (low + high)

    def _penalised(self, w: FloatArray) -> FloatArray:
        """A copy of w, 0 at the free column."""
        own = np.array(w, dtype=np.float64)
        if self.free >= 0:
            own[self.free] = 0.0
        return own

    def _threshold(self, v: FloatArray) -> FloatArray:
        """S_ρ(v), and 0 at the free column."""
        if self.l1_ratio:
            v = np.sign(v) * np.maximum(np.abs(v) - self.l1_ratio, 0.0)
        return self._penalised(v)


# ---------------------------------------------------------------------------- mixtures

# Pairwise steps first, to find about the right supports; then whole faces at once.
_SWEEPS = 4
_STEPS_A_SWEEP = 4
_MAX_FACES = 300
_MAX_RETRIES = 20
_RETRY_SWEEPS = 10


def maximise_over_simplices(
    G: FloatArray,
    b: FloatArray,
    theta: FloatArray,
    blocks: list[slice],
    tolerance: float = 1e-12,
) -> FloatArray:
    """Maximise bᵀθ − ½ θᵀGθ over a product of simplices, from a feasible θ.

    A few sweeps of pairwise coordinate ascent (in each simplex weight moves from the
    entry with the lowest partial derivative to the one with the highest, by an exact
    step), then an active-set method: to the maximum on the face of the simplices that
    θ lies in, or to that face's boundary on the way there; at a maximum of its face
    the entries with the largest derivatives come in. The objective never falls.

    G, of shape (n, n), is positive semi-definite, b and θ have shape (n,), and θ is
    changed in place; ``blocks`` are the simplices, together all of θ. ``tolerance`` is
    what a derivative may exceed those of its simplex's support by, relative to the
    largest |b|.
    """
    enough = tolerance * max(float(np.abs(b).max(initial=0.0)), 1e-300)
    _pairwise_sweeps(G, b, theta, blocks, enough, _SWEEPS)
    block_of = np.repeat(np.arange(len(blocks)), [k.stop - k.start for k in blocks])
    free = theta > 0.0
    retries = 0
    for _ in range(_MAX_FACES):
        target = _maximum_on_face(G, b, free, block_of)
        negative = free & (target < 0.0)
        step = 1.0
        if negative.any():
            ratios = theta[negative] / (theta[negative] - target[negative])
            step = float(ratios.min())
        moved = theta + step * (target - theta)
        if step < 1.0:
            stuck = negative & (moved <= 1e-15)
            moved[stuck] = 0.0
            free &= ~stuck
        moved = np.where(free, np.maximum(moved, 0.0), 0.0)
        for k in blocks:
            moved[k] /= moved[k].sum()
        if _objective(G, b, moved) < _objective(G, b, theta):
            # rounding, or points of the face that are affinely dependent, so that its
            # maximum is not where the KKT system says: pairwise steps go on from here
            gradient = b - G @ theta
            left = max(
                gradient[k].max() - gradient[k][theta[k] > 0.0].min() for k in blocks
            )
            if retries == _MAX_RETRIES or left <= enough:
                break
            retries += 1
            _pairwise_sweeps(G, b, theta, blocks, enough, _RETRY_SWEEPS)
            free = theta > 0.0
            continue
        theta[:] = moved
        if step < 1.0:
            continue
        gradient, before = b - G @ theta, free.copy()
        for k in blocks:
            # the entry that would raise the objective most, if any would
            level = float(gradient[k][free[k]].mean())
            outside = np.where(free[k], -np.inf, gradient[k])
            best = int(outside.argmax())
            free[k.start + best] |= bool(outside[best] > level + enough)
        if (free == before).all():
            break
    return theta


def _pairwise_sweeps(
    G: FloatArray,
    b: FloatArray,
    theta: FloatArray,
    blocks: list[slice],
    enough: float,
    sweeps: int,
) -> None:
    """Move weight within each simplex, a few times; ``theta`` changes in place."""
    gradient = b - G @ theta
    for block in [*blocks] * sweeps:
        for _ in range(_STEPS_A_SWEEP):
            g = gradient[block]
            up = block.start + int(g.argmax())
            down = block.start + int(np.where(theta[block] > 0.0, g, np.inf).argmin())
            difference = float(gradient[up] - gradient[down])
            if difference <= enough:
                break
            curvature = float(G[up, up] + G[down, down] - 2.0 * G[up, down])
            step = float(theta[down])
            if curvature > 0.0:
                step = min(step, difference / curvature)
            theta[up] += step
            theta[down] -= step
            gradient -= step * (G[:, up] - G[:, down])


def _maximum_on_face(
    G: FloatArray, b: FloatArray, free: NDArray[np.bool_], block_of: IntArray
) -> FloatArray:
    """Maximum over Σ θ = 1 in each block with the other entries 0: a KKT system."""
    index = np.flatnonzero(free)
    n, num_blocks = len(index), int(block_of[-1]) + 1
    KKT = np.zeros((n + num_blocks, n + num_blocks))
    face = G[np.ix_(index, index)]
    # points of a face may be affinely dependent: the least shift makes it definite
    KKT[:n, :n] = face + 1e-14 * max(np.trace(face) / n, 1e-300) * np.eye(n)
    KKT[np.arange(n), n + block_of[index]] = 1.0
    KKT[n + block_of[index], np.arange(n)] = 1.0
    right = np.concatenate([b[index], np.ones(num_blocks)])
    target = np.zeros(len(b))
    try:
        target[index] = np.linalg.solve(KKT, right)[:n]
    except np.linalg.LinAlgError:
        target[index] = np.linalg.lstsq(KKT, right, rcond=None)[0][:n]
    return target


def _objective(G: FloatArray, b: FloatArray, theta: FloatArray) -> float:
    return float(b @ theta - 0.5 * theta @ (G @ theta))
