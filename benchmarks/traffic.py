"""Bytes per node and round on encoded Messages.

A model of p parameters, 10 nodes, everybody in every round, f_i(x) = ½‖x − c_i‖². The
figures are those of the last of a few rounds, when everything is running, and hold for
every later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
    LocalSGDClient,
    ProjectedFedAvgClient,
)
from fedtrellis import client_app
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
from strategies import (
    FedAvgGD,
    FedDR,
    FedFW,
    FedGiA,
    FirstOrderRFL,
    LocalSGD,
    ProjectedFedAvg,
)

from .fedavg import make_fedavg
from .report import Aim, Comparison, Row
from .runs import TimedGrid

__all__ = ["compare", "flower_fedavg"]

NODES, ROUNDS, DTYPES = 10, 5, ("float64", "float32")
# What our messages may take more than Flower's own, and float32 than half of float64.
_AIM = 1.02

Shape = tuple[int, ...]
SETS: list[tuple[Domain, Shape]] = [
    (L1Ball(10.0), (1_000_000,)),
    (KSupportBall(10, 10.0), (1_000_000,)),
    (NuclearNormBall(10.0), (1000, 1000)),
    (BirkhoffPolytope(), (300, 300)),
    (LInfBall(1.0), (1_000_000,)),
    (L2Ball(10.0), (1_000_000,)),
]
_PARAMETERS = 100_000
# any set would do: the model travels dense, and a ball's projection is quick
_BALL = L2Ball(10.0)
DENSE: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "FedAvgGD": (lambda: FedAvgGD(step_size=0.01), FedAvgGDClient),
    "LocalSGD": (lambda: LocalSGD(step_size=0.005), LocalSGDClient),
    "projected FedAvg": (
        lambda: ProjectedFedAvg(_BALL, local_step_size=0.1),
        ProjectedFedAvgClient,
    ),
    "FedDR": (
        lambda: FedDR(_BALL, proximal_step=10.0, local_step_size=0.1),
        FedDRClient,
    ),
    # Θ of so many parameters would be a matrix
    "FedGiA": (
        lambda: FedGiA(tolerance=0.0),
        lambda context, objective: FedGiAClient(context, objective, hessian=1.0),
    ),
    "first-order RFL": (
        lambda: FirstOrderRFL(Euclidean((_PARAMETERS,))),
        lambda context, objective: FirstOrderRFLClient(
            context, objective, Euclidean((_PARAMETERS,))
        ),
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

    def stochastic_gradient(self, x: Any, rng: Any, batch_size: int) -> Any:
        """The same: there is one example."""
        return self.gradient(x)


def flower_fedavg(
    objectives: Sequence[Any], mods: list[Any] | None = None
) -> tuple[FedAvg, ClientApp]:
    """Flower's own FedAvg; a client takes a gradient step, in the model's dtype."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = objectives[int(context.node_config["partition-id"])]
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        (x,) = arrays.to_numpy_ndarrays()
        x = x - 0.1 * np.asarray(objective.gradient(x), dtype=x.dtype)
        metrics = MetricRecord({"num-examples": objective.num_examples})
        content = RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics})
        return Message(content, reply_to=message)

    return make_fedavg(), app


def _measure(
    make: Callable[[], Any], app: ClientApp, start: Any, dtype: str
) -> tuple[float, float]:
    """Bytes (up, down) of a node in a round, once everything is running."""
    grid = TimedGrid(app, NODES, encode=True)
    arrays = ArrayRecord([start.astype(dtype)])
    make().start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    # from one round's beginning to the next one's
    (down, up), (more_down, more_up) = grid.traffic[-2:]
    return (more_up - up) / NODES, (more_down - down) / NODES


def _app(
    client: Callable[..., Any], objectives: Sequence[Any], *more: Any
) -> ClientApp:
    return client_app(
        lambda context: client(
            context, objectives[int(context.node_config["partition-id"])], *more
        )
    )


def _cells(row: Row, name: str, measured: tuple[float, float]) -> None:
    for direction, count in zip(("up", "down"), measured, strict=True):
        row[f"{name} {direction}"] = format_bytes(count)


def _dense_rows(result: Comparison) -> None:
    objectives = [Distance(index, (_PARAMETERS,)) for index in range(NODES)]
    start = np.full(_PARAMETERS, _PARAMETERS**-0.5)
    _, flower_app = flower_fedavg(objectives)
    flowers = {
        dtype: _measure(make_fedavg, flower_app, start, dtype) for dtype in DTYPES
    }
    ours: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (strategy, client) in DENSE.items():
        app = _app(client, objectives)
        ours[name] = {d: _measure(strategy, app, start, d) for d in DTYPES}
    for name, by_dtype in {"Flower's FedAvg": flowers, **ours}.items():
        row: Row = {"method": name, "model": f"{_PARAMETERS:,}"}
        for dtype in DTYPES:
            _cells(row, dtype, by_dtype[dtype])
        worst = max(
            mine / theirs
            for dtype in DTYPES
            for mine, theirs in zip(by_dtype[dtype], flowers[dtype], strict=True)
        )
        row["times FedAvg's, at most"] = f"{worst:.3f}"
        result.rows.append(row)
        if name not in ours:
            continue
        result.aims.append(
            Aim(
                f"{name}: at most {_AIM} times the bytes of Flower's FedAvg",
                f"{worst:.3f} times",
                worst <= _AIM,
            )
        )


def _set_rows(result: Comparison, cases: Sequence[tuple[Domain, Shape]]) -> None:
    for domain, shape in cases:
        objectives = [Distance(index, shape) for index in range(NODES)]
        wolfe = _app(FedFWClient, objectives, domain)
        make = partial(FedFW, domain, variant="plain")
        start = domain.centre(shape)
        row: Row = {"method": repr(domain), "model": " × ".join(map(str, shape))}
        for dtype in DTYPES:
            made = _measure(make, wolfe, start, dtype)
            _cells(row, dtype, made)
        result.rows.append(row)


def compare(quick: bool) -> list[Comparison]:
    """Dense methods beside Flower's FedAvg, and FedFW's atoms set by set."""
    dense = Comparison(
        "traffic",
        "Bytes of a node in a round: methods whose models travel whole",
        f"{NODES} nodes, all of them in every round, messages as bytes, envelope and "
        "all. The same clients' arithmetic for all of a column.",
    )
    _dense_rows(dense)
    atoms = Comparison(
        "traffic-sets",
        "Bytes of a node in a round: FedFW, plain, by its set",
        "As above; after a round in which somebody was missing the model comes as its "
        "non-zero entries, or whole.",
    )
    cases = [(domain, tuple(s // 10 for s in shape)) for domain, shape in SETS]
    _set_rows(atoms, cases if quick else SETS)
    return [dense, atoms]
