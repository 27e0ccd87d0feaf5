"""Gradients from function values: all points in one call, or one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import sim
from fedtrellis.manifolds import FixedRank, Manifold, Oblique, Product, Sphere, Stiefel
from fedtrellis.objectives import Objective
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.zeroth_order import directions, evaluator, projection_estimate

from .report import Aim, Comparison, Spread, ratios

__all__ = ["FULL", "QUICK", "Case", "compare"]

_SAMPLES, _SMOOTHING, _AIM = 50, 1e-4, 10.0


@dataclass(frozen=True)
class Case:
    """A problem, and how often it is measured."""

    name: str
    config: dict[str, str | int | bool]
    batch_size: int
    repetitions: int
    aimed: bool = False


def _cases(repetitions: int) -> list[Case]:
    network: dict[str, str | int | bool] = {"task": "low-rank-network"}
    matrix = network | {"low-rank-network.factored": False}
    return [
        Case("kernel PCA, 64 × 4", {"task": "kernel-pca"}, 0, repetitions),
        Case("low-rank network, factored, 144", network, 0, repetitions, True),
        Case("low-rank network, factored, 16", network, 16, repetitions, True),
        Case("low-rank network, matrix, 16", matrix, 16, repetitions),
        Case("attack", {"task": "attack"}, 0, repetitions),
    ]


QUICK, FULL = _cases(5), _cases(41)


def _projection(manifold: Manifold, x: FloatArray) -> FloatArray:
    """P_M of one point as one writes it down, by an SVD where it takes one."""
    if isinstance(manifold, Product):
        parts, start = [], 0
        for part in manifold.parts:
            stop = start + int(np.prod(part.shape))
            parts.append(_projection(part, x[start:stop].reshape(part.shape)).ravel())
            start = stop
        return np.concatenate(parts)
    if isinstance(manifold, Sphere):
        return np.asarray(manifold.radius * x / np.linalg.norm(x), dtype=np.float64)
    if isinstance(manifold, Oblique):
        return np.asarray(x / np.linalg.norm(x, axis=0), dtype=np.float64)
    if isinstance(manifold, Stiefel | FixedRank):
        U, s, Vt = np.linalg.svd(x, full_matrices=False)
        if isinstance(manifold, Stiefel):
            return np.asarray(U @ Vt, dtype=np.float64)
        k = manifold.rank
        return np.asarray((U[:, :k] * s[:k]) @ Vt[:k], dtype=np.float64)
    return x


def _loop(
    objective: Objective,
    layout: Layout,
    manifold: Manifold,
    x: FloatArray,
    batch_size: int,
) -> FloatArray:
    """Estimator (7) one point after the other, on the same directions and batch."""
    u = directions(np.random.default_rng(0), _SAMPLES, x.shape)

    def value(z: FloatArray) -> float:
        if not batch_size:
            return objective.value(layout.objective_point(z))  # type: ignore[arg-type]
        points = [z] if len(layout.shapes) > 1 else [z.reshape(layout.point_shape)]
        rng = np.random.default_rng(1)  # the same mini-batch for every point
        return float(objective.values(np.array(points), rng, batch_size=batch_size)[0])

    start, G = value(x), np.zeros(x.shape)
    for one in u:
        # (p·r/m) Σ_j [F(P_M(x + μ u_j)) − F(x)]/μ · u_j
        G += (value(_projection(manifold, x + _SMOOTHING * one)) - start) * one
    return x.size / _SAMPLES / _SMOOTHING * G


def _measure(case: Case) -> tuple[Spread, Spread, float, int]:
    config = sim.app.default_config() | {"method": "zeroth-order-rfl"} | case.config
    setup = sim.app.experiment(config, 10)
    layout, manifold = Layout(tuple(setup.task.shapes())), setup.manifold
    objective = setup.task.client_objective(0)
    assert manifold is not None
    x = manifold.project(layout.point(setup.task.initial_point()))

    def batched() -> FloatArray:
        values = evaluator(
            objective,
            layout,
            batch_size=case.batch_size,
            rng=np.random.default_rng(1) if case.batch_size else None,
        )
        rng = np.random.default_rng(0)
        return projection_estimate(
            values, manifold, x, rng, samples=_SAMPLES, smoothing=_SMOOTHING
        ).gradient

    def looped() -> FloatArray:
        return _loop(objective, layout, manifold, x, case.batch_size)

    G, other = batched(), looped()
    error = float(np.abs(G - other).max() / np.abs(other).max())
    if not error <= 1e-6:  # rounding of the values, over μ
        raise AssertionError(f"{case.name}: the estimates differ by {error:g}")
    times: dict[Callable[[], FloatArray], list[float]] = {batched: [], looped: []}
    for _ in range(case.repetitions):
        for side, seconds in times.items():
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
    return (
        Spread(tuple(times[batched]), "ms"),
        Spread(tuple(times[looped]), "ms"),
        error,
        x.size,
    )


def compare(cases: Sequence[Case]) -> Comparison:
    """Estimator (7) in one batched call against a loop over the points."""
    result = Comparison(
        "zeroth-order",
        "a gradient from 51 function values, batched against one after the other",
        "The same directions, points and examples; in turns, one thread. The loop "
        "projects by an SVD and evaluates the objective's own value.",
    )
    for case in cases:
        ours, loop, error, size = _measure(case)
        ratio = ratios(loop, ours)
        result.rows.append(
            {
                "problem": case.name,
                "parameters": size,
                "batched": ours,
                "loop": loop,
                "loop / batched": ratio,
                "difference": f"{error:.0e}",
            }
        )
        if case.aimed:
            result.aims.append(
                Aim(
                    f"{case.name} examples: at least {_AIM:g} times faster",
                    f"{ratio.median:.1f}",
                    ratio.median >= _AIM,
                )
            )
    return result
