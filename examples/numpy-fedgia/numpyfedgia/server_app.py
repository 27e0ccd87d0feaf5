"""The ServerApp: FedGiA until it has converged."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedtrellis.strategies import FedGiA

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn the coefficients, and print them."""
    config = context.run_config
    strategy = FedGiA(
        local_steps=config["local-steps"],
        sigma_scale=config["sigma-scale"],
        client_evaluate_every=1,  # the mean of the nodes' own f_i(x), after each round
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(10)]),
        num_rounds=config["num-server-rounds"],
    )

    (x,) = result.arrays.to_numpy_ndarrays()
    first, last = strategy.history[0], strategy.history[-1]
    print(
        f"converged after {last.round} rounds, "
        f"loss {first.client_evaluation['loss']:.6f} after the first, "
        f"{last.client_evaluation['loss']:.6f} after the last"
    )
    print("coefficients: " + " ".join(f"{value:.4f}" for value in x))
    if config["save-to"]:
        np.save(config["save-to"], x)
