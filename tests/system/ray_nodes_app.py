"""A project of one's own: many nodes, our FedAvgGD with its defaults, Flower's loop."""

import sys

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients import FedAvgGDClient
from fedtrellis import client_app as make_client_app
from fedtrellis.objectives import LeastSquares
from strategies import FedAvgGD


def client_fn(context: Context) -> FedAvgGDClient:
    """The client of f_i(x) = ‖x − i‖²."""
    number = float(context.node_config["partition-id"])
    return FedAvgGDClient(context, LeastSquares(np.eye(2), np.full(2, number)))


client_app = make_client_app(client_fn)
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Two rounds; a line says who took part."""
    strategy = FedAvgGD()
    strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=2)
    used = [record.used for record in strategy.history if record.round]
    print("took part:", strategy.num_clients, *used, flush=True)


if __name__ == "__main__":
    from ray_nodes_app import client_app as named
    from ray_nodes_app import server_app as server

    run_simulation(server, named, num_supernodes=int(sys.argv[1]))
