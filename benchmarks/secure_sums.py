"""What secure sums cost: bytes, CPU and waves, plain beside secure.

Clients take one step towards a point of their own. Flower's SecAgg+ runs only with its
older strategies, here through the same grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg

from clients import FedAvgGDClient
from fedtrellis import SecureSum, SecureSums, client_app, secure_sum_mod
from fedtrellis.server.callbacks import format_bytes
from strategies import FedAvgGD

from .report import Comparison, Row, Spread
from .traffic import CountingGrid, Distance, flower_client, flower_fedavg, partition

__all__ = ["compare"]

#: Parameters and clients.
QUICK = [(1_000, 10)]
FULL = [(p, n) for p in (1_000, 100_000, 1_000_000) for n in (10, 50)]
ROUNDS = 3


class Stepping(NumPyClient):
    """A client of Flower's older API."""

    def __init__(self, objective: Any) -> None:
        self.objective = objective

    def fit(self, parameters: Any, config: Any) -> Any:
        """Take a step."""
        (x,) = parameters
        return [x - 0.1 * self.objective.gradient(x)], 1, {}


def _start(strategy: Any) -> Callable[[CountingGrid, Any], None]:
    def run(grid: CountingGrid, start: Any) -> None:
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord([start]), num_rounds=ROUNDS
        )

    return run


def _secagg(grid: CountingGrid, start: Any) -> None:
    """SecAgg+ with 7 shares of each key, of which 4 restore it."""
    clients = len(list(grid.get_node_ids()))
    strategy = OlderFedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([start]),
    )
    context = Context(0, 0, {}, RecordDict(), {})
    legacy = LegacyContext(context, ServerConfig(num_rounds=ROUNDS), strategy)
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(7, 4))(grid, legacy)


def _cases(
    objectives: Sequence[Any],
) -> dict[str, tuple[ClientApp, Callable[[CountingGrid, Any], None]]]:
    def of(context: Context) -> Any:
        return objectives[partition(context)]

    ours = client_app(lambda context: FedAvgGDClient(context, of(context)))
    one: dict[str, Any] = {"local_steps": 1, "step_size": 0.1}
    app = flower_client(lambda: objectives)
    secured = flower_client(lambda: objectives, mods=[secure_sum_mod])
    older = ClientApp(lambda c: Stepping(of(c)).to_client(), mods=[secaggplus_mod])
    clipped = SecureSum(clip=100.0)
    everybody: Any = {"fraction_evaluate": 0.0, "min_train_nodes": len(objectives)}
    return {
        "fedavg-gd": (ours, _start(FedAvgGD(**one))),
        "fedavg-gd, secure": (ours, _start(FedAvgGD(**one, aggregation="secure-sum"))),
        "fedavg-gd, secure, with a clip": (
            ours,
            _start(FedAvgGD(**one, aggregation=clipped)),
        ),
        "Flower's FedAvg": (app, _start(flower_fedavg())),
        "Flower's FedAvg in SecureSums": (
            secured,
            _start(SecureSums(FedAvg(**everybody))),
        ),
        "Flower's SecAgg+": (older, _secagg),
    }


def compare(sizes: Sequence[tuple[int, int]]) -> Iterator[Comparison]:
    """Measure a round once everything is running, of each case."""
    result = Comparison(
        "secure-sums",
        "What secure sums cost, a client and round",
        f"The second of {ROUNDS} rounds, float64 (SecAgg+: 22 bits a number), messages "
        "as bytes, one block of all clients; CPU of clients and server together. "
        "Waves before round 1 stand beside those of a round.",
    )
    for p, n in sizes:
        objectives = [Distance(index, (p,)) for index in range(n)]
        for name, (app, run) in _cases(objectives).items():
            grid = CountingGrid(app, n)
            run(grid, np.full(p, p**-0.5))
            starts = [k for k, wave in enumerate(grid.waves) if wave.trains]
            if "SecAgg+" in name:  # of four waves each
                starts = starts[::4]
            before, (first, last) = starts[0], starts[-2:]
            early, late = grid.waves[first], grid.waves[last]
            row: Row = {"parameters": p, "clients": n, "method": name}
            row["up"] = format_bytes((late.up - early.up) / n)
            row["down"] = format_bytes((late.down - early.down) / n)
            row["CPU"] = Spread(((late.cpu - early.cpu) / n,), "ms")
            row["waves"] = f"{before} + {last - first}"
            result.rows.append(row)
    yield result
