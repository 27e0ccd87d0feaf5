"""examples/split-constraint: nodes with sets of their own, the answer in all."""

import cvxpy as cp
import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from clients import FedFWClient
from fedtrellis import LocalGrid, client_app
from splitconstraint.task import (
    ASSETS,
    CAP,
    DOMAIN,
    NODE_DOMAINS,
    load_objective,
    node_domain,
)
from strategies import FedFW

Array = NDArray[np.float64]
NODES = 6
OBJECTIVES = [load_objective(i) for i in range(NODES)]


def value(x: Array) -> float:
    return float(np.mean([f.value(x) for f in OBJECTIVES]))


def best(*, capped: bool) -> Array:
    """The best shares, by a convex solver."""
    x = cp.Variable(ASSETS)
    losses = []
    for f in OBJECTIVES:
        # f is quadratic: its gradient is Qx + c
        c = f.gradient(np.zeros(ASSETS))
        q = np.array([f.gradient(e) - c for e in np.eye(ASSETS)])
        losses.append(0.5 * cp.quad_form(x, cp.psd_wrap(0.5 * (q + q.T))) + c @ x)
    constraints = [x >= 0, cp.sum(x) == 1, *([x <= CAP] if capped else [])]
    cp.Problem(cp.Minimize(sum(losses)), constraints).solve("CLARABEL")
    return np.asarray(x.value)


def client_fn(context: Context) -> FedFWClient:
    i = int(context.node_config["partition-id"])
    return FedFWClient(context, load_objective(i), node_domain(i))


def test_the_model_is_the_best_of_the_intersection() -> None:
    strategy = FedFW(DOMAIN, client_domains=NODE_DOMAINS, variant="augmented")
    start = DOMAIN.centre((ASSETS,))
    result = strategy.start(
        grid=LocalGrid(client_app(client_fn), NODES),
        initial_arrays=ArrayRecord([start]),
        num_rounds=600,
    )
    assert result.arrays is not None
    (x,) = result.arrays.to_numpy_ndarrays()
    nearest = DOMAIN.project(x)
    assert np.linalg.norm(nearest - x) < 0.002
    optimum, uncapped = best(capped=True), best(capped=False)
    gain = value(start) - value(optimum)
    assert value(nearest) - value(optimum) < 0.02 * gain
    # where all nodes had the simplex, it would be another portfolio
    assert uncapped.max() > 2 * CAP
    assert value(uncapped) < value(optimum) - 0.5 * gain
