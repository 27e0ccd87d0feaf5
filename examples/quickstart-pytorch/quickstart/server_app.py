"""The ServerApp: the strategy, and the test on central data."""

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from torch.utils.data import DataLoader

from fedtrellis.domains import L1Ball
from fedtrellis.strategies import FedFW
from quickstart.task import Net, load_images, test

app = ServerApp()


@app.main()
def main(grid, context):
    """Train the model, and say how good it is."""
    config = context.run_config
    strategy = FedFW(L1Ball(config["radius"]), penalty=config["penalty"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )

    last = result.evaluate_metrics_serverapp[config["num-server-rounds"]]
    weights = torch.cat(
        [w.flatten() for w in result.arrays.to_torch_state_dict().values()]
    )
    print(
        f"accuracy {last['accuracy']:.3f}, loss {last['loss']:.3f}, "
        f"{weights.count_nonzero()} of {len(weights)} weights are not 0, "
        f"their absolute values sum up to {weights.abs().sum():.2f}"
    )
    if config["save-to"]:
        torch.save(result.arrays.to_torch_state_dict(), config["save-to"])


def global_evaluate(server_round, arrays):
    """Test the model on images that no node has."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, DataLoader(load_images()[1], batch_size=128))
    return MetricRecord({"loss": loss, "accuracy": accuracy})
