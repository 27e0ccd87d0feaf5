"""The client's half of FedFW's corrective variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective import Iterate, LocalProblem, start_at, unpack
from fedtrellis.domains import Domain
from fedtrellis.wire.arrays import FloatArray, Layout, join_arrays, split_arrays

__all__ = ["correct"]


def correct(
    objective: Any,
    domain: Domain,
    parameters: list[NDArray[Any]],
    config: Mapping[str, Any],
    state: dict[str, NDArray[Any]],
) -> tuple[list[NDArray[Any]], FloatArray | None]:
    """One round: k corrective steps on L_i, then the dual variable's.

    Parameters
    ----------
    objective : object
        f_i.
    domain : Domain
        The client's set.
    parameters : list of ndarray
        z, in the model's layers.
    config : mapping
        The request's.
    state : dict
        "x", the iterate packed (or the first model itself), and "y"; both are replaced.

    Returns
    -------
    (list of ndarray, ndarray or None)
        What travels: the iterate's corrections, and as scalars the curvature of f_i/n
        if there is no ρ yet, and φ_i and γ_i if they are wanted.
    """
    layout = Layout.of(parameters)
    z = layout.point(parameters)
    steps = int(config["local-steps"])
    correction = config.get("correction")
    iterate, y = _iterate(domain, state["x"], layout, correction), state["y"]
    # nobody knows yet how F bends: the first round has no penalty
    penalty, n = float(config.get("penalty", 0.0)), int(config["num-clients"])
    problem = LocalProblem(objective, layout, n, y, z, penalty)
    corrections = iterate.corrections(problem, domain, steps)
    after = iterate.changed(corrections, domain, steps)
    x = after.dense()
    # y_i ← y_i + ρ (x_i − z)
    y = y + penalty * (x - z)
    state["x"], state["y"] = join_arrays(after.arrays()), y
    numbers: list[float] = []
    if "penalty" not in config:
        numbers.append(problem.bend_between(x, iterate.dense()))
    if config.get("certificate", False):
        # φ_i = f_i(x_i) / n
        # γ_i = max over v in D of ⟨∇f_i(x_i) / n + y_i, x_i − v⟩
        numbers += [problem.loss(x), domain.gap(problem.loss_gradient(x) + y, x)]
    return corrections, np.array(numbers) if numbers else None


def _iterate(
    domain: Domain, x: NDArray[Any], layout: Layout, correction: str | None
) -> Iterate:
    if x.dtype == np.uint8:
        packed, dtype = split_arrays(x), layout.point_dtype
        return unpack(domain, packed, layout.point_shape, correction, dtype)
    # not a step yet: this is the first model itself
    return start_at(domain, x, correction, layout.point_dtype)
