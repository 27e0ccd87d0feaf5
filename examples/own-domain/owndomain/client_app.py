"""The ClientApp: FedFW, which asks the set for extreme points only."""

from flwr.app import Context

from fedtrellis import client_app
from fedtrellis.clients import FedFWClient
from owndomain.task import load_objective, make_domain


def client_fn(context: Context) -> FedFWClient:
    """Make this node's client."""
    objective = load_objective(context.node_config["partition-id"])
    return FedFWClient(context, objective, make_domain())


app = client_app(client_fn)
