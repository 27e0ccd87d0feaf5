"""The ClientApp: FedGiA on this node's loss."""

from flwr.app import Context

from fedtrellis import client_app
from fedtrellis.clients import FedGiAClient
from numpyfedgia.task import load_objective


def client_fn(context: Context) -> FedGiAClient:
    """Make this node's client."""
    objective = load_objective(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["l2"],
    )
    return FedGiAClient(context, objective)


app = client_app(client_fn)
