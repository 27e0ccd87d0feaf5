"""Bytes per node and round on encoded Messages.

Everybody in every round, f_i(x) = ½‖x − c_i‖². The figures are those between two rounds
once everything is running, and hold for every later one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from clients import (
    FedAvgGDClient,
    FedDRClient,
    FedFWClient,
    FedGiAClient,
    FirstOrderRFLClient,
    ProjectedFedAvgClient,
)
from fedtrellis import LocalGrid, client_app
from fedtrellis.domains import (
    BirkhoffPolytope,
    Domain,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
)
from fedtrellis.manifolds import Euclidean
from fedtrellis.random import generator
from fedtrellis.server.callbacks import format_bytes
from fedtrellis.wire.summing import RECORD
from strategies import FedAvgGD, FedDR, FedFW, FedGiA, FirstOrderRFL, ProjectedFedAvg

from .report import Comparison, Row, Spread, at_most, ratios

__all__ = [
    "CountingGrid",
    "Distance",
    "app_of",
    "compare",
    "flower_client",
    "flower_fedavg",
    "partition",
]

NODES, ROUNDS, DTYPES = 10, 5, ("float64", "float32")
Shape = tuple[int, ...]
SETS: tuple[tuple[Domain, Shape], ...] = (
    (L1Ball(10.0), (1_000_000,)),
    (KSupportBall(10, 10.0), (1_000_000,)),
    (NuclearNormBall(10.0), (1000, 1000)),
    (BirkhoffPolytope(), (300, 300)),
    (LInfBall(1.0), (1_000_000,)),
    (L2Ball(10.0), (1_000_000,)),
)
FULL = SETS
QUICK = tuple((domain, tuple(s // 10 for s in shape)) for domain, shape in SETS)
_PARAMETERS = 100_000
# any set would do: the model travels dense, and a ball's projection is quick
_BALL, _FLAT = L2Ball(10.0), Euclidean((_PARAMETERS,))
#: The methods whose models travel whole: a strategy, and a client of an objective.
DENSE: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "FedAvgGD": (lambda: FedAvgGD(step_size=0.01), FedAvgGDClient),
    "projected FedAvg": (
        lambda: ProjectedFedAvg(_BALL, local_step_size=0.1),
        ProjectedFedAvgClient,
    ),
    "FedDR": (
        lambda: FedDR(_BALL, proximal_step=10.0, local_step_size=0.1),
        FedDRClient,
    ),
    # Θ of so many parameters would be a matrix
    "FedGiA": (lambda: FedGiA(tolerance=0.0), partial(FedGiAClient, hessian=1.0)),
    "first-order RFL": (
        lambda: FirstOrderRFL(_FLAT),
        lambda context, objective: FirstOrderRFLClient(context, objective, _FLAT),
    ),
}


class Distance:
    """f_i(x) = ½‖x − c_i‖² with a c_i of the client's own."""

    num_examples = 1

    def __init__(self, index: int, shape: Shape) -> None:
        self.centre = generator(0, "centre", index).normal(size=shape)

    def gradient(self, x: Any) -> Any:
        """X − c_i."""
        return x - self.centre


class Wave(NamedTuple):
    """What there was before a wave: does it train, bytes so far, CPU seconds so far."""

    trains: bool
    up: int
    down: int
    cpu: float


class CountingGrid(LocalGrid):
    """Messages as bytes; notes what there was before each wave."""

    def __init__(self, app: ClientApp, num_nodes: int) -> None:
        super().__init__(app, num_nodes, encode=True)
        self.waves: list[Wave] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note what there was before the wave."""
        sent = list(messages)
        for message in sent[:1]:
            trains = message.metadata.message_type == "train"
            step = dict(message.content.get(RECORD, {})).get("step", "term")
            used = self.bytes_up, self.bytes_down, time.process_time()
            self.waves.append(Wave(trains and step == "term", *used))
        return super().push_messages(sent)


def partition(context: Context) -> int:
    """Which client it is."""
    return int(context.node_config["partition-id"])


def app_of(
    client: Callable[..., Any], objectives: Sequence[Any], *more: Any
) -> ClientApp:
    """Clients that are given their context, own objective and ``more``."""
    return client_app(
        lambda context: client(context, objectives[partition(context)], *more)
    )


def flower_client(
    objectives: Callable[[], Sequence[Any]],
    steps: int = 1,
    step_size: float = 0.1,
    mods: list[Any] | None = None,
) -> ClientApp:
    """Clients as Flower's quickstarts have them: steps in the model's dtype."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = objectives()[partition(context)]
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        (x,) = arrays.to_numpy_ndarrays()
        for _ in range(steps):
            x = x - step_size * np.asarray(objective.gradient(x), dtype=x.dtype)
        metrics = MetricRecord({"num-examples": objective.num_examples})
        content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def flower_fedavg() -> FedAvg:
    """Flower's own, without its warning that there is no evaluation."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


def _bytes(
    make: Callable[[], Any], app: ClientApp, start: Any, dtype: str
) -> tuple[float, float]:
    """Bytes (up, down) of a node in a round, from one round's begin to the next's."""
    grid = CountingGrid(app, NODES)
    arrays = ArrayRecord([start.astype(dtype)])
    make().start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    before, after = [wave for wave in grid.waves if wave.trains][-2:]
    return (after.up - before.up) / NODES, (after.down - before.down) / NODES


def _row(name: str, shape: Shape, found: dict[str, tuple[float, float]]) -> Row:
    row: Row = {"method": name, "model": " × ".join(f"{s:,}" for s in shape)}
    for dtype, (up, down) in found.items():
        row |= {f"{dtype} up": format_bytes(up), f"{dtype} down": format_bytes(down)}
    return row


def _dense() -> Comparison:
    result = Comparison(
        "traffic-dense",
        "Bytes of a node in a round: methods whose models travel whole",
        f"{NODES} nodes, all of them in every round, messages as bytes, envelope and "
        "all. The same clients' arithmetic for all of a column.",
    )
    objectives = [Distance(index, (_PARAMETERS,)) for index in range(NODES)]
    start = np.full(_PARAMETERS, _PARAMETERS**-0.5)
    sides: dict[str, tuple[Callable[[], Any], ClientApp]] = {
        "Flower's own FedAvg": (flower_fedavg, flower_client(lambda: objectives))
    }
    for name, (strategy, client) in DENSE.items():
        sides[name] = strategy, app_of(client, objectives)
    theirs = None
    for name, (make, app) in sides.items():
        found = {dtype: _bytes(make, app, start, dtype) for dtype in DTYPES}
        row = _row(name, (_PARAMETERS,), found)
        mine = Spread(tuple(count for pair in found.values() for count in pair), "B")
        if theirs is None:
            theirs = mine
        else:
            worst = max(ratios(mine, theirs).values)
            row["times Flower's FedAvg, at most"] = f"{worst:.3f}"
            result.aims.append(at_most(name, Spread((worst,), "x"), 1.02, "its bytes"))
        result.rows.append(row)
    return result


def _sets(cases: Sequence[tuple[Domain, Shape]]) -> Comparison:
    result = Comparison(
        "traffic-sets",
        "Bytes of a node in a round: FedFW, plain, by its set",
        "As above; after a round in which somebody was missing the model comes as its "
        "non-zero entries, or whole.",
    )
    for domain, shape in cases:
        app = app_of(
            FedFWClient, [Distance(index, shape) for index in range(NODES)], domain
        )
        make, start = partial(FedFW, domain, variant="plain"), domain.centre(shape)
        found = {dtype: _bytes(make, app, start, dtype) for dtype in DTYPES}
        result.rows.append(_row(repr(domain), shape, found))
    return result


def compare(cases: Sequence[tuple[Domain, Shape]]) -> Iterator[Comparison]:
    """Dense methods beside Flower's FedAvg, and FedFW's atoms set by set."""
    yield _dense()
    yield _sets(cases)
