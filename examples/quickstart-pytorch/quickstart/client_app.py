"""The ClientApp: what a node does with its own data."""

from torch.nn import CrossEntropyLoss

from fedtrellis import client_app
from fedtrellis.clients import FedFWClient
from fedtrellis.domains import L1Ball
from fedtrellis.objectives.torch_objective import TorchObjective
from quickstart.task import Net, load_data


def client_fn(context):
    """Make this node's client: the loss of the model on its own data."""
    loader, _ = load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )
    objective = TorchObjective(Net(), CrossEntropyLoss(), loader)
    return FedFWClient(context, objective, L1Ball(context.run_config["radius"]))


app = client_app(client_fn)
