"""The ServerApp: FedFW on the new set."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedtrellis.strategies import FedFW
from owndomain.task import GROUP, TRUTH, make_domain

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn the coefficients, and print those of each group of sensors."""
    config = context.run_config
    domain = make_domain()
    strategy = FedFW(domain, penalty=config["penalty"], client_evaluate_every=50)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([domain.centre(TRUTH.shape)]),
        num_rounds=config["num-server-rounds"],
    )

    (x,) = result.arrays.to_numpy_ndarrays()
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        loss, outliers = metrics["loss"], metrics["outliers"]
        print(f"round {server_round}: loss {loss:.4f}, outliers {outliers:.1%}")
    print(f"norm {domain.norm(x):.3f} of {domain.radius:.3f} allowed")
    for name, group in zip("ABC", x.reshape(-1, GROUP), strict=False):
        print(f"group {name}: " + " ".join(f"{value:.3f}" for value in group))
    if config["save-to"]:
        np.save(config["save-to"], x)
