"""One ``FedGiAClient.fit`` against the same arithmetic in a bare NumPy loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from scipy.linalg import cho_factor, cho_solve

from clients import FedGiAClient
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.arrays import FloatArray

from .report import Aim, Comparison, Spread, ratios

__all__ = ["FULL", "QUICK", "BareClient", "Case", "compare"]

_CLIENTS, _SIGMA_SCALE, _AIM = 64, 0.15, 1.2
_LOCAL_STEPS = (1, 5, 10)


@dataclass(frozen=True)
class Case:
    """A size, and how long it is measured: ``blocks`` blocks of ``calls`` calls."""

    features: int
    examples: int
    blocks: int
    calls: int


QUICK = (Case(100, 100, 5, 200), Case(1000, 2000, 5, 5), Case(1000, 140, 5, 40))
FULL = (Case(100, 100, 15, 1000), Case(1000, 2000, 11, 10), Case(1000, 140, 15, 200))


class BareClient:
    """A client of C as one writes it down in NumPy: no checks, no state, no copies.

    With H = AᵀA/d its solver is a Cholesky factor, made beforehand, of order n or, by
    Woodbury's identity, of order d where there are fewer examples.
    """

    def __init__(
        self, A: FloatArray, b: FloatArray, hessian: str, sigma: float, r: float
    ) -> None:
        self.A, self.b, self.sigma = A, b, sigma
        self.pi = np.zeros(A.shape[1])
        self.solve = self._solver(hessian, r)

    def _solver(self, hessian: str, r: float) -> Callable[[FloatArray], FloatArray]:
        A, m, sigma = self.A, _CLIENTS, self.sigma
        d, n = A.shape
        if hessian == "diagonal":
            divisor = r / m + sigma
            return lambda u: u / divisor
        if n <= d:
            # H/m + σI
            factor = cho_factor(A.T @ A / (d * m) + sigma * np.eye(n))
            return lambda u: np.asarray(cho_solve(factor, u, check_finite=False))
        # (H/m + σI)⁻¹ = (I − Aᵀ (dmσ I + AAᵀ)⁻¹ A)/σ
        small = cho_factor(A @ A.T + d * m * sigma * np.eye(d))
        return lambda u: np.asarray(
            (u - A.T @ cho_solve(small, A @ u, check_finite=False)) / sigma
        )

    def fit(self, x: FloatArray, steps: int) -> FloatArray:
        """z_i after k_0 steps from x."""
        # ḡ_i = (1/m) (1/d) Aᵀ(A x − b)
        g = self.A.T @ (self.A @ x - self.b)
        g /= len(self.b) * _CLIENTS
        pi, x_i = self.pi, x
        for _ in range(steps):
            # x_i ← x − (H_i/m + σI)⁻¹ (ḡ_i + π_i)
            x_i = x - self.solve(g + pi)
            # π_i ← π_i + σ (x_i − x)
            pi = pi + self.sigma * (x_i - x)
        self.pi = pi
        # z_i = x_i + π_i/σ
        return x_i + pi / self.sigma


def _config(sigma: float, steps: int, hessian: str) -> dict[str, Any]:
    """What a message of ``FedGiA`` tells a client of C that is in step."""
    return {
        "session": "0" * 8,
        "server-round": 2,
        "model-version": 2,
        "keep-model": False,
        "used-round": 1,
        "num-clients": _CLIENTS,
        "sigma": sigma,
        "local-steps": steps,
        "hessian": hessian,
    }


def _measure(case: Case, hessian: str, steps: int) -> tuple[Spread, Spread, float]:
    """Seconds of a call on both sides, and how far their z_i differ, relatively."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((case.examples, case.features))
    b = rng.standard_normal(case.examples)
    # x changes from call to call, or π would come to rest
    points = rng.standard_normal((7, case.features))
    objective = LeastSquares(A, b, scale="half-mean")
    r = objective.lipschitz()
    # σ = t r/m
    sigma = _SIGMA_SCALE * r / _CLIENTS
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    client = FedGiAClient(context, objective)
    client.state = {"pi": np.zeros(case.features)}
    config = _config(sigma, steps, hessian)
    bare = BareClient(A, b, hessian, sigma, r)

    def ours(x: FloatArray) -> FloatArray:
        return np.asarray(client.fit([x], config)[0][0])

    def theirs(x: FloatArray) -> FloatArray:
        return bare.fit(x, steps)

    seconds: tuple[list[float], list[float]] = ([], [])
    error = 0.0
    for block in range(case.blocks + 1):
        last: list[FloatArray] = []
        # who goes first changes from block to block
        for side in (0, 1) if block % 2 else (1, 0):
            call = (ours, theirs)[side]
            began = time.perf_counter()
            for number in range(case.calls):
                z = call(points[number % len(points)])
            seconds[side].append((time.perf_counter() - began) / case.calls)
            last.append(z)
        difference = np.abs(last[0] - last[1]).max() / np.abs(last[0]).max()
        error = max(error, float(difference))
    if not error <= 1e-9:
        raise AssertionError(f"FedGiAClient and the bare loop differ by {error:g}")
    # the first block is warm-up: factors are made in it
    spreads = (Spread(tuple(values[1:]), "ms") for values in seconds)
    return next(spreads), next(spreads), error


def compare(cases: Sequence[Case]) -> Comparison:
    """``FedGiAClient.fit`` against :class:`BareClient`: a row a case, H_i and k_0."""
    result = Comparison(
        "fedgia-step",
        "FedGiA's client against a bare NumPy loop: seconds per call of fit",
        "f_i(x) = ‖A_i x − b_i‖²/(2d), one gradient and k_0 ADMM steps, without any "
        "message; factors are made before. The bare loop solves k_0 times: by a "
        "Cholesky factor of order min(n, d) or, for H = hI, by a division. The same "
        "z_i to 1e-9. Blocks of calls in turns; median (min – max) of their means.",
    )
    for case in cases:
        for hessian in ("gram", "diagonal"):
            for steps in _LOCAL_STEPS:
                ours, bare, error = _measure(case, hessian, steps)
                ratio = ratios(ours, bare)
                result.rows.append(
                    {
                        "n": case.features,
                        "d": case.examples,
                        "H": hessian,
                        "k_0": steps,
                        "blocks": f"{case.blocks} of {case.calls}",
                        "FedGiA": ours,
                        "NumPy": bare,
                        "FedGiA / NumPy": ratio,
                        "difference": f"{error:.0e}",
                    }
                )
                result.aims.append(
                    Aim(
                        f"n = {case.features:,}, d = {case.examples:,}, {hessian}, "
                        f"k_0 = {steps}: within {_AIM} times",
                        f"{ratio.median:.2f}",
                        ratio.median <= _AIM,
                    )
                )
    return result
