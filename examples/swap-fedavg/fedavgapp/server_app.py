"""The ServerApp: the strategy, and what is known of the model."""

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedavgapp.task import SIZE, TRUTH

app = ServerApp()


@app.main()
def main(grid, context):
    """Train the model, and say how near the truth it is."""
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(SIZE)]),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    (x,) = result.arrays.to_numpy_ndarrays()
    distance, entries = np.linalg.norm(x - TRUTH), np.count_nonzero(x)
    print(f"{distance:.3f} from the truth, {entries} entries are not 0")


def evaluate(server_round, arrays):
    """Compare the model with the truth."""
    (x,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"distance": float(np.linalg.norm(x - TRUTH))})
