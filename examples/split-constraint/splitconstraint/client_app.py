"""The ClientApp: FedFW, each node on a set of its own."""

from flwr.app import Context

from fedtrellis import client_app
from fedtrellis.clients import FedFWClient
from splitconstraint.task import load_objective, node_domain


def client_fn(context: Context) -> FedFWClient:
    """Make this node's client."""
    partition_id = context.node_config["partition-id"]
    return FedFWClient(context, load_objective(partition_id), node_domain(partition_id))


app = client_app(client_fn)
