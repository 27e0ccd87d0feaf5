"""The ServerApp: FedFW, which is told of the nodes' sets."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedtrellis.strategies import FedFW
from splitconstraint.task import ASSETS, CAP, DOMAIN, NODE_DOMAINS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn the shares, and print how well the model keeps what each node knows."""
    config = context.run_config
    strategy = FedFW(
        DOMAIN,
        client_domains=NODE_DOMAINS,  # what a node may have instead, without a name
        variant="augmented",
        client_evaluate_every=100,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([DOMAIN.centre((ASSETS,))]),
        num_rounds=config["num-server-rounds"],
    )

    (x,) = result.arrays.to_numpy_ndarrays()
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: loss {metrics['loss']:.5f}")
    print(f"the shares add up to {x.sum():.4f}, the largest is {x.max():.4f} of {CAP}")
    nearest = DOMAIN.project(x)
    print(f"nearest point of the set: {np.linalg.norm(nearest - x):.4f} away")
    if config["save-to"]:
        np.save(config["save-to"], nearest)
