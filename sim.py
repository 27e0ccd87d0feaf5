"""The app: ``server_app`` and ``client_app`` for ``flwr run``, and ``python sim.py``.

``python sim.py`` runs the same two on a grid in this process: same settings, same
messages, no Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from logging import INFO, WARNING
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from clients import (
    FedAvgGDClient,
    FedDRClient,
    FedFWClient,
    FedGiAClient,
    FedProxClient,
    FirstOrderRFLClient,
    HybridFedAvgClient,
    HyFDCAClient,
    HyFEMClient,
    LocalSGDClient,
    NaiveFrankWolfeClient,
    ProjectedFedAvgClient,
    ZerothOrderRFLClient,
)
from clients.hyfdca import NewSamples
from fedtrellis.app.directory import flatten, read_config
from fedtrellis.domains import DOMAINS, Domain, Product, WholeSpace, make_domain
from fedtrellis.domains.enclosing import ENCLOSING, enclosing_ball
from fedtrellis.manifolds import Euclidean, Manifold
from fedtrellis.objectives.reference import certified_minimum, unconstrained_minimum
from fedtrellis.server.callbacks import Callback, EarlyStop
from fedtrellis.server.checkpoint import checkpoint_clients
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import (
    LOG_FORMATS,
    JsonLines,
    Progress,
    json_log,
    print_json,
)
from fedtrellis.server.records import RunRecord, default_results_dir, summary_rows
from fedtrellis.settings import (
    SettingsError,
    check_choice,
    describe,
    keys,
    parse,
    setting,
)
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, record_arrays
from fedtrellis.wire.client import MethodClient
from fedtrellis.wire.client import client_app as make_client_app
from fedtrellis.wire.exchange import Registry
from fedtrellis.wire.local_grid import LocalGrid
from strategies import (
    FedAvgGD,
    FedDR,
    FedFW,
    FedGiA,
    FedProx,
    FirstOrderRFL,
    HybridFedAvg,
    HyFDCA,
    HyFEM,
    LocalSGD,
    NaiveFrankWolfe,
    ProjectedFedAvg,
    ZerothOrderRFL,
)
from strategies.settings import MethodSettings
from tasks import (
    NODES,
    TASKS,
    ClientData,
    DataSettings,
    HybridTask,
    NodeDataTask,
    Task,
    make_task,
    node_path,
)

METHODS = {
    "fedfw": "federated Frank-Wolfe: FedFW, FedFW+, FedFW-sto",
    "naive-frank-wolfe": "averaged oracles, a baseline that does not converge",
    "projected-fedavg": "FedAvg with a projection after the average",
    "feddr": "federated Douglas-Rachford splitting",
    "fedgia": "inexact ADMM and gradient descent, without a constraint",
    "fedavg-gd": "FedAvg with full local gradients, without a constraint",
    "local-sgd": "FedAvg with mini-batches, without a constraint",
    "fedprox": "FedAvg with a proximal term, without a constraint",
    "first-order-rfl": "Riemannian federated learning with projections",
    "zeroth-order-rfl": "the same from function values alone",
    "hyfdca": "encrypted dual ascent: samples and features split over nodes",
    "hyfem": "feature matching of local models, a baseline of hyfdca",
    "hybrid-fedavg": "FedAvg of each node's own features, a baseline of hyfdca",
}
# Methods for the whole space, and those that cannot do without a bounded set.
UNCONSTRAINED = ("fedgia", "fedavg-gd", "local-sgd", "fedprox")
FRANK_WOLFE = ("fedfw", "naive-frank-wolfe")
# Methods on the task's manifold, or on all of space where it has none.
RIEMANNIAN = ("first-order-rfl", "zeroth-order-rfl")

# Methods for data that is split by samples and features.
HYBRID = ("hyfdca", "hyfem", "hybrid-fedavg")

# Sets without a radius that a task could suggest.
VECTOR_SETS = ("box", "simplex", "k-support-ball", "group-l1-ball")


@dataclass(frozen=True)
class RunSettings:
    """What a run config says of the run itself."""

    method: str = setting("fedfw", "the method")
    task: str = setting("digits", "what is learnt")
    rounds: int = setting(50, "rounds", minimum=1)
    seed: int = setting(0, "of everything random", minimum=0)
    domain: str = setting("", "the constraint; empty: the task's own")
    radius: float = setting(0.0, "of the domain; 0: the task's own", minimum=0.0)
    sparsity: int = setting(10, "k of the k-support ball", minimum=1)
    group_size: int = setting(10, "entries in a group of the group-l1 ball", minimum=1)
    lower: float = setting(-1.0, "lower bound of the box")
    upper: float = setting(1.0, "upper bound of the box")
    layers: str = setting(
        "whole",
        "several layers: one vector in one set, or a product of sets",
        choices=("whole", "product"),
    )
    outer_domain: str = setting(
        "", f"larger set for some clients: {', '.join(ENCLOSING)}; empty: none"
    )
    outer_fraction: float = setting(
        0.0, "fraction of clients with the larger set", minimum=0.0, maximum=0.99
    )
    evaluate_every: int = setting(1, "rounds between evaluations", minimum=1)
    evaluate_gap: bool = setting(
        True,
        "whether to evaluate the Frank-Wolfe gap, ‖∇F‖² without a constraint, "
        "or ‖G(x)‖ on a manifold",
    )
    reference: bool = setting(
        False, "solve a convex task centrally first, to show the distance to F*"
    )
    client_evaluate_every: int = setting(
        0,
        "rounds between evaluations on the clients; 0: never, but with nodes' own data "
        "as evaluate-every says",
        minimum=0,
    )
    stop_metric: str = setting("", "metric to stop on, such as gap; empty: none")
    stop_tolerance: float = setting(0.0, "stop when the metric is at most this")
    timeout: float = setting(600.0, "seconds to wait for answers", above=0.0)
    min_nodes: int = setting(1, "nodes to wait for before the start", minimum=1)
    max_failed_rounds: int = setting(
        5, "rounds in a row without a usable answer that end the run", minimum=1
    )
    checkpoint_every: int = setting(10, "rounds between checkpoints", minimum=1)
    resume: str = setting(
        "", "record of a run to go on from, as an absolute path; empty: none"
    )
    results_dir: str = setting(
        "", "where records go, an absolute path; empty: ~/.fedtrellis/runs"
    )
    log_format: str = setting(
        "text", "a line a round for people, or JSON objects", choices=LOG_FORMATS
    )


# ------------------------------------------------------------------------- settings


def default_config() -> dict[str, Any]:
    """Every key of a run config with its default, as in pyproject.toml."""
    groups: list[tuple[type[Any], str]] = [(RunSettings, ""), (MethodSettings, "")]
    groups.append((DataSettings, "data."))
    groups += [(task, f"{name}.") for name, task in TASKS.items()]
    return {
        key: field.default
        for group, prefix in groups
        for key, field in keys(group, prefix).items()
    }


@dataclass(frozen=True)
class Setup:
    """A run config, checked and made into the run's parts."""

    run: RunSettings
    method: MethodSettings
    task: Task
    domain: Domain
    shape: tuple[int, ...]
    manifold: Manifold | None = None

    @property
    def step(self) -> float:
        """η̃ = η_g η τ of the Riemannian methods."""
        server = self.method.server_step_size or sqrt(self.task.num_clients)
        return server * self.method.local_step_size * self.method.local_steps

    @property
    def convex(self) -> bool:
        """Whether F is known to be convex."""
        return self.task.schedule == "convex" and len(self.task.shapes()) == 1

    def client_domain(self, client: int) -> Domain:
        """D, or the larger set of one of the last ⌊fraction · n⌋ clients."""
        n = self.task.num_clients
        if client < n - int(self.run.outer_fraction * n):
            return self.domain
        return enclosing_ball(self.run.outer_domain, self.domain, self.shape)


def make_setup(config: Mapping[str, Any], num_clients: int) -> Setup:
    """Check a whole run config; SettingsError says in one line what is wrong."""
    return _make_setup(tuple(sorted(config.items())), num_clients)


@lru_cache(maxsize=4)
def _make_setup(items: tuple[tuple[str, Any], ...], num_clients: int) -> Setup:
    config = dict(items)
    run, method = parse(RunSettings, config), parse(MethodSettings, config)
    for key, value in (
        ("penalty", method.penalty),
        ("dual-penalty", method.dual_penalty),
    ):
        if -1.0 < value < 0.0:
            raise SettingsError(f"{key} = {value} must be at least 0, or -1")
    check_choice("method", run.method, METHODS)
    check_choice("task", run.task, TASKS)
    if bool(run.outer_domain) != (run.outer_fraction > 0.0):
        raise SettingsError(
            f"outer-domain = {run.outer_domain!r} and outer-fraction = "
            f"{run.outer_fraction} go together: set both or none"
        )
    task = make_task(run.task, config, num_clients, run.seed)
    if isinstance(task, HybridTask) != (run.method in HYBRID):
        hybrid = run.method in HYBRID
        fitting = [n for n, t in TASKS.items() if issubclass(t, HybridTask) == hybrid]
        raise SettingsError(
            f"task = {run.task!r} does not fit method {run.method!r}; allowed: "
            f"{', '.join(fitting)}"
        )
    task.check()
    layout = Layout(tuple(task.shapes()))
    domain = _make_domain(run, task, layout)
    manifold = None
    if run.method in RIEMANNIAN:
        manifold = task.manifold() or Euclidean(layout.point_shape)
    setup = Setup(run, method, task, domain, layout.point_shape, manifold)
    if task.on_nodes:
        _check_for_nodes(setup)
    if run.outer_domain:
        if run.method not in FRANK_WOLFE:
            raise SettingsError(f"outer-domain is not for method {run.method!r}")
        enclosing_ball(run.outer_domain, domain, layout.point_shape)
    return setup


def _check_for_nodes(setup: Setup) -> None:
    """Refuse what needs data on the server, which has none."""
    run, task = setup.run, setup.task
    assert isinstance(task, NodeDataTask)
    where = f"does not fit {task.name}.dataset = {NODES!r}"
    if run.reference:
        raise SettingsError(
            f"reference = true {where}: F* would be that of data which only the nodes "
            "have; allowed: false"
        )
    if run.outer_domain:
        raise SettingsError(
            f"outer-domain = {run.outer_domain!r} {where}: the nodes have no order; a "
            "node's own config may have outer-domain"
        )
    if isinstance(task, HybridTask):
        known: tuple[str, ...] = ("primal", "dual", "duality-gap")
        if run.method != "hyfdca":
            known = ()
    else:
        known = ("loss", *task.node_metrics)
    if run.stop_metric and run.stop_metric not in known:
        raise SettingsError(
            f"stop-metric = {run.stop_metric!r} {where}: nobody can measure it; "
            f"allowed: {', '.join(known) or 'none'}"
        )


def _make_domain(run: RunSettings, task: Task, layout: Layout) -> Domain:
    if (
        run.method in (*UNCONSTRAINED, *RIEMANNIAN, *HYBRID)
        or run.domain == WholeSpace.name
    ):
        return _whole_space(run, task)
    allowed = task.domains()
    name = run.domain or next(iter(allowed))
    if "l1-ball" in allowed:  # then x is any vector, and other sets of vectors fit too
        allowed |= {key: 0.0 for key in VECTOR_SETS if key not in allowed}
    sets = [key for key in DOMAINS if key != "product"]
    check_choice("domain", name, [*sets, WholeSpace.name])
    if name not in allowed:
        raise SettingsError(
            f"domain = {name!r} does not fit task {task.name!r}; "
            f"allowed: {', '.join(allowed)}"
        )
    radius = run.radius or allowed[name]
    if radius == 0.0 and name not in ("box", "birkhoff-polytope"):
        raise SettingsError(
            f"radius = {run.radius}: task {task.name!r} has none of its own for domain "
            f"{name!r}; set one above 0"
        )
    parameters: dict[str, Any] = {"radius": radius}
    if name == "box":
        parameters = {"lower": run.lower, "upper": run.upper}
    elif name == "birkhoff-polytope":
        if run.radius:
            raise SettingsError(f"radius = {run.radius}: {name} has none; allowed: 0")
        parameters = {}
    elif name == "k-support-ball":
        parameters["k"] = run.sparsity
    elif name == "group-l1-ball":
        parameters["groups"] = run.group_size
    try:
        domain = make_domain(name, **parameters)
        if run.layers == "product" and len(layout.shapes) > 1:
            domain = Product([domain] * len(layout.shapes), list(layout.shapes))
        domain.check_shape(layout.point_shape)
    except ValueError as error:
        raise SettingsError(f"domain = {name!r}: {error}") from None
    return domain


def _whole_space(run: RunSettings, task: Task) -> WholeSpace:
    """No constraint, if method and task can do without."""
    if run.domain not in ("", WholeSpace.name):
        raise SettingsError(
            f"domain = {run.domain!r} does not fit method {run.method!r}, which has no "
            f"domain; allowed: {WholeSpace.name}"
        )
    if run.method in FRANK_WOLFE:
        raise SettingsError(
            f"domain = {run.domain!r} does not fit method {run.method!r}, which needs "
            "a bounded set"
        )
    if run.radius:
        raise SettingsError(
            f"radius = {run.radius}: {WholeSpace.name} has none; allowed: 0"
        )
    on_manifold = run.method in RIEMANNIAN and task.manifold() is not None
    if not task.bounded_below and not on_manifold:
        raise SettingsError(
            f"task = {task.name!r} has no minimum without a constraint; method "
            f"{run.method!r} needs one"
        )
    return WholeSpace()


def make_strategy(setup: Setup, **options: Any) -> LoopStrategy:
    """The server's half of the run's method."""
    method, domain = setup.method, setup.domain
    schedule = method.schedule or setup.task.schedule
    options |= {
        "participation": method.participation,
        "sampling": method.sampling,
        "seed": setup.run.seed,
    }
    if setup.run.method == "fedfw":
        return FedFW(
            domain,
            penalty=setup.task.penalty if method.penalty < 0 else method.penalty,
            variant=method.variant,
            schedule=schedule,
            step_size=method.step_size,
            averaging=method.averaging,
            dual_penalty=None if method.dual_penalty < 0 else method.dual_penalty,
            batch_size=method.batch_size,
            lmo_noise=method.lmo_noise,
            **options,
        )
    if setup.run.method == "naive-frank-wolfe":
        return NaiveFrankWolfe(
            domain, schedule=schedule, step_size=method.step_size, **options
        )
    if setup.run.method == "fedgia":
        return FedGiA(
            sigma=method.sigma or None,
            sigma_scale=method.sigma_scale
            or (1.0 if method.sigma else setup.task.sigma_scale()),
            local_steps=method.local_steps,
            selected_fraction=method.selected_fraction,
            hessian=method.hessian,
            tolerance=method.tolerance,
            **options,
        )
    if setup.manifold is not None:
        options |= {
            "step_size": method.local_step_size,
            "server_step_size": method.server_step_size or None,
            "local_steps": method.local_steps,
            "batch_size": method.local_batch_size,
            "correction": method.correction,
            "tolerance": method.step_tolerance,
        }
        if setup.run.method == "first-order-rfl":
            return FirstOrderRFL(setup.manifold, **options)
        return ZerothOrderRFL(
            setup.manifold,
            samples=method.samples,
            smoothing=method.smoothing,
            upload=method.upload,
            shared_samples=method.shared_samples,
            **options,
        )
    if setup.run.method in UNCONSTRAINED:
        options |= {
            "local_steps": method.local_steps,
            "step_size": method.local_step_size,
            "step_schedule": method.step_schedule,
        }
        if setup.run.method == "local-sgd":
            return LocalSGD(batch_fraction=method.batch_fraction, **options)
        if setup.run.method == "fedprox":
            return FedProx(proximal_weight=method.proximal_weight, **options)
        return FedAvgGD(**options)
    if isinstance(setup.task, HybridTask):
        return _hybrid_strategy(setup, setup.task, options)
    local: dict[str, Any] = {
        "local_steps": method.local_steps,
        "local_step_size": method.local_step_size,
        "batch_size": method.local_batch_size,
    }
    if setup.run.method == "projected-fedavg":
        return ProjectedFedAvg(domain, **local, **options)
    return FedDR(
        domain,
        relaxation=method.relaxation,
        proximal_step=method.proximal_step,
        **local,
        **options,
    )


def _hybrid_strategy(
    setup: Setup, task: HybridTask, options: dict[str, Any]
) -> LoopStrategy:
    """The methods for data that is split by samples and features."""
    method = setup.method
    options |= {
        "loss": task.make_loss().name,
        "regularization": task.regularization,
        "smoothing": getattr(task, "smoothing", 1.0),
        "feature_names": task.feature_names() or None,
        # dealt entry by entry, a column without any belongs to nobody
        "allow_unheld": task.partition == "entries" and not task.on_nodes,
    }
    if setup.run.method == "hyfdca":
        return HyFDCA(
            step=method.dual_step,
            local_fraction=method.local_fraction,
            memory=method.memory,
            slots=method.slots,
            local_passes=method.local_passes,
            parts=method.parts,
            secure_sum=method.secure_sum,
            cyclic_groups=method.cyclic_groups,
            tolerance=method.gap_tolerance,
            encryption=method.encryption,
            context=method.context_file or None,
            backup_every=method.backup_every,
            retries=method.retries,
            **options,
        )
    options |= {
        "local_steps": method.local_steps,
        "step_size": method.local_step_size,
        "step_offset": method.step_offset,
    }
    if setup.run.method == "hyfem":
        return HyFEM(matching=method.matching, **options)
    return HybridFedAvg(**options)


# --------------------------------------------------------------------- the client app


def client_fn(context: Context) -> NumPyClient:
    """The client of one node; its data is loaded once per process."""
    node = context.node_config
    if _on_nodes(context.run_config):
        return _own_data_client(context)
    if "data" in node:
        _warn_of_unused_data()
    for key in ("partition-id", "num-partitions"):
        if not isinstance(node.get(key), int):
            raise SettingsError(
                f"node config: {key} = {node.get(key)!r} must be a whole number; start "
                'the node with --node-config "partition-id=0 num-partitions=2"'
            )
    index, n = int(node["partition-id"]), int(node["num-partitions"])
    setup = make_setup(context.run_config, n)
    if isinstance(setup.task, HybridTask):
        test = setup.task.test_client_data(index)
        return _hybrid_client(context, setup, setup.task.client_data(index), test)
    objective = setup.task.client_objective(index)
    return _client(context, setup, objective, setup.client_domain(index))


@lru_cache(maxsize=1)
def _warn_of_unused_data() -> None:
    log(WARNING, "node config: data is not used, as this run brings its own")


def _client(
    context: Context, setup: Setup, objective: Any, domain: Domain
) -> MethodClient:
    if "outer-domain" in context.node_config:
        # this node asks for a larger set of its own
        name = str(context.node_config["outer-domain"])
        domain = enclosing_ball(name, setup.domain, setup.shape)
    client: MethodClient
    if setup.run.method == "fedfw":
        client = FedFWClient(context, objective, domain)
    elif setup.run.method == "naive-frank-wolfe":
        client = NaiveFrankWolfeClient(context, objective, domain)
    elif setup.run.method == "fedgia":
        client = FedGiAClient(context, objective, setup.method.curvature or None)
    elif setup.manifold is not None:
        riemannian = {
            "first-order-rfl": FirstOrderRFLClient,
            "zeroth-order-rfl": ZerothOrderRFLClient,
        }[setup.run.method]
        client = riemannian(context, objective, setup.manifold)
    else:
        client = _OTHER_CLIENTS[setup.run.method](context, objective)
    return client


def _on_nodes(config: Mapping[str, Any]) -> bool:
    """Whether every node has its own data, by the run config alone."""
    name = config.get("task", RunSettings.task)
    return bool(config.get(f"{name}.dataset") == NODES)


def _own_data_client(context: Context) -> NumPyClient:
    """The client of a node that has its own data."""
    node = context.node_config
    if "client-id" not in node and "partition-id" not in node:
        raise SettingsError(
            "node config: client-id is missing; with data of its own a node needs a "
            "name that stays the same over restarts: "
            '--node-config \'client-id="NAME" data="/absolute/path"\''
        )
    path = node_path(node)
    # n is that of the run config: a node does not know how many are connected
    setup = make_setup(
        context.run_config, parse(RunSettings, context.run_config).min_nodes
    )
    task = setup.task
    assert isinstance(task, NodeDataTask)
    if isinstance(task, HybridTask):
        new = None
        if "test-data" in node:
            new = task.node_client_data(node_path(node, "test-data"))
        data = task.node_client_data(path)
        if new is not None and new.feature_names != data.feature_names:
            raise SettingsError(
                f"{node['test-data']}: the feature columns must be those of "
                f"{node['data']}, in one order"
            )
        return _hybrid_client(context, setup, data, new)
    if "test-data" in node:
        raise SettingsError("node config: test-data is for hybrid tasks")
    objective = task.node_objective(path)
    client = _client(context, setup, objective, setup.domain)
    client.announcement = task.announcement(path)
    client.weigh_evaluation = task.weigh_evaluation
    return client


def _hybrid_client(
    context: Context, setup: Setup, data: ClientData, test: ClientData | None
) -> NumPyClient:
    if setup.run.method != "hyfdca":
        kind = HyFEMClient if setup.run.method == "hyfem" else HybridFedAvgClient
        return kind(context, *data)
    new = None
    if test is not None and len(test.sample_ids):
        new = NewSamples(test.features, test.sample_ids, test.labels)
    return HyFDCAClient(
        context,
        *data,
        new_samples=new,
        on_scores=_score_writer(context.node_config.get("scores-file")),
    )


def _score_writer(path: Any) -> Callable[[Sequence[str], FloatArray], None] | None:
    """What writes a node's new samples' scores to the file that its config names."""
    if not path:
        return None

    def write(ids: Sequence[str], scores: FloatArray) -> None:
        lines = [
            f"{name},{score:.17g}" for name, score in zip(ids, scores, strict=True)
        ]
        Path(str(path)).write_text("\n".join(["id,score", *lines, ""]), "utf-8")

    return write


_OTHER_CLIENTS: dict[str, Callable[[Context, Any], MethodClient]] = {
    "projected-fedavg": ProjectedFedAvgClient,
    "feddr": FedDRClient,
    "fedavg-gd": FedAvgGDClient,
    "local-sgd": LocalSGDClient,
    "fedprox": FedProxClient,
}


client_app = make_client_app(client_fn)


# --------------------------------------------------------------------- the server app

server_app = ServerApp()


class CheckPartitions(Callback):
    """Stop a run whose nodes do not hold the whole data between them."""

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Compare what the nodes say with how many there are."""
        n = strategy.num_clients
        for name in strategy.clients:
            parts = strategy.client_properties(name).get("num-partitions")
            if parts != n:
                reasons = "".join(f"; {who}: {why}" for who, why in strategy.refused)
                raise SettingsError(
                    f"client {name} has one of {parts} parts of the data, but {n} "
                    f"clients can be used; num-partitions must be {n} on every node"
                    f"{reasons}"
                )


class CheckNodeData(Callback):
    """Stop a run whose nodes' own data does not go together, before round 1.

    Parameters
    ----------
    min_nodes : int
        How many nodes have to be usable.
    examples : int
        Of all of them together; 0: that does not matter.
    """

    def __init__(self, min_nodes: int, examples: int) -> None:
        self.min_nodes = min_nodes
        self.examples = examples

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Compare what the nodes say of their data."""
        n = strategy.num_clients
        if n < self.min_nodes:
            reasons = "; ".join(f"{who}: {why}" for who, why in strategy.refused)
            raise SettingsError(
                f"min-nodes = {self.min_nodes}, and {n} nodes can be used: {reasons}"
            )
        told = {name: strategy.client_properties(name) for name in strategy.clients}
        # files in LIBSVM's or MNIST's formats have no names to compare
        named = {n: p["data-columns"] for n, p in told.items() if "data-columns" in p}
        first = next(iter(named), "")
        for name, digest in named.items():
            if digest != named[first]:
                raise SettingsError(
                    f"the files of clients {first} and {name} have other feature "
                    "columns, or in another order; with data.feature-names every node "
                    "puts them in one order"
                )
        if not self.examples:
            return
        if n != self.min_nodes:
            raise SettingsError(
                f"min-nodes = {self.min_nodes}, and {n} nodes are connected: with "
                "data.examples a node's weight depends on their number, and min-nodes "
                "must be it"
            )
        total = sum(int(p.get("num-examples", 0)) for p in told.values())
        if total != self.examples:
            raise SettingsError(
                f"data.examples = {self.examples}, and the nodes have {total} examples"
            )


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says, and print how it went."""
    if parse(RunSettings, context.run_config).log_format == "text":
        run(grid, context.run_config)
        return
    try:
        with json_log():
            run(grid, context.run_config)
    except BaseException as error:
        print_json("error", error=f"{type(error).__name__}: {error}")
        raise


def run(grid: Grid, config: Mapping[str, Any]) -> Path:
    """Run on any grid; return the directory of the run's record."""
    settings = parse(RunSettings, config)
    for key, value in (
        ("results-dir", settings.results_dir),
        ("resume", settings.resume),
    ):
        # relative to what? a bundle's folder, or that of a SuperLink started long ago
        if value and not Path(value).expanduser().is_absolute():
            raise SettingsError(f"{key} = {value!r} must be an absolute path")
    Registry().wait_for(grid, settings.min_nodes, timeout=600.0)
    resume = _checkpoint_of(settings.resume, config) if settings.resume else None
    if resume is not None:
        _wait_for_all(grid, resume)
    setup = make_setup(config, len(list(grid.get_node_ids())))
    make_strategy(setup)  # for what only it can find wrong, before there is a record
    task, domain = setup.task, setup.domain
    reference = _reference(setup)
    layout = Layout(tuple(task.shapes()))
    point = layout.point(task.initial_point())
    if setup.manifold is not None:
        point = setup.manifold.project(point)
    elif not domain.contains(point):
        point = domain.project(point)
    client_evaluate_every = settings.client_evaluate_every
    if task.on_nodes and not isinstance(task, HybridTask):
        client_evaluate_every = client_evaluate_every or settings.evaluate_every
    if settings.stop_metric and not (task.on_nodes or client_evaluate_every):
        known = evaluate(setup, layout, layout.layers(point))
        check_choice("stop-metric", settings.stop_metric, known)

    parent = Path(settings.results_dir) if settings.results_dir else None
    parent = parent or default_results_dir()
    try:
        name = f"{settings.method}-{settings.task}"
        record = RunRecord.create(parent, name, config)
    except OSError as error:
        raise SettingsError(
            f"results-dir = {str(parent)!r} cannot be written: {error}"
        ) from None
    record.reference = reference
    record.title = f"{settings.method} on {settings.task}, {setup.manifold or domain!r}"
    if isinstance(task, HybridTask):
        loss = task.make_loss().name
        record.title = f"{settings.method} on {settings.task}, {loss} loss"
        if settings.method == "hyfdca" and setup.method.encryption == "none":
            record.warnings.append(
                "NOTHING WAS ENCRYPTED: encryption = 'none' is for debugging"
            )
    first: Callback = CheckPartitions()
    if isinstance(task, NodeDataTask) and task.on_nodes:
        first = CheckNodeData(settings.min_nodes, task.nodes.examples)
    as_json = settings.log_format == "json"
    progress = JsonLines(*_json_fields(record, config)) if as_json else Progress()
    callbacks: list[Callback] = [first, record, progress]
    if settings.stop_metric:
        callbacks.append(EarlyStop(settings.stop_metric, settings.stop_tolerance))
    try:
        strategy = make_strategy(
            setup,
            callbacks=callbacks,
            checkpoint=record.checkpoint,
            checkpoint_every=settings.checkpoint_every,
            resume=resume,
            evaluate_every=settings.evaluate_every,
            client_evaluate_every=client_evaluate_every,
            min_nodes=settings.min_nodes,
            max_failed_rounds=settings.max_failed_rounds,
        )

        def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            return MetricRecord(evaluate(setup, layout, record_arrays(arrays)))

        strategy.start(
            grid,
            array_record(layout.layers(point)),
            num_rounds=settings.rounds,
            timeout=settings.timeout,
            evaluate_fn=None if task.on_nodes else evaluate_fn,
        )
    except BaseException as error:
        record.fail(error, [])
        raise
    if not as_json:
        _print_summary(record, strategy)
    return record.directory


def _json_fields(
    record: RunRecord, config: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first and the last line of a JSON log have besides the strategy's."""
    where = str(record.directory)
    end: dict[str, Any] = {"record": where, "warnings": record.warnings}
    if record.reference is not None:
        end["reference_optimum"] = record.reference
    return {"record": where, "settings": dict(config)}, end


def _reference(setup: Setup) -> float | None:
    """F* where the task knows it, or by a central solver if that is asked for."""
    task = setup.task
    if isinstance(task, HybridTask) and setup.run.reference:
        optimum = task.optimum()
        log(INFO, "P* = %.9g, certified to %.1e", optimum.value, optimum.gap)
        return optimum.value
    known = task.reference_optimum(setup.domain)
    if known is not None or not setup.run.reference:
        return known
    if not setup.convex:
        raise SettingsError(
            "reference = true is for convex tasks and models of one array; "
            f"task {task.name!r} is set to another"
        )
    if setup.manifold is not None:
        raise SettingsError("reference = true is not for methods on manifolds")
    start = setup.task.initial_point()[0]
    if isinstance(setup.domain, WholeSpace):
        lowest = unconstrained_minimum(task.objective(), start)
        log(INFO, "F* = %.9g, where ‖∇F‖ = %.1e", lowest.value, lowest.gradient_norm)
        return lowest.value
    best = certified_minimum(task.objective(), setup.domain, start, tolerance=1e-7)
    log(INFO, "F* = %.9g, certified to %.1e", best.value, best.gap)
    return best.value


def evaluate(setup: Setup, layout: Layout, arrays: list[Any]) -> dict[str, Any]:
    """F, the gap or ‖∇F‖², and the task's own metrics, on the whole data."""
    task, point = setup.task, layout.point(arrays)
    x = layout.objective_point(point)
    metrics: dict[str, Any] = {"loss": float(task.value(x))}
    if setup.run.evaluate_gap:
        gradient: FloatArray = layout.objective_gradient(task.gradient(x))
        if setup.manifold is not None:
            # ‖G_η̃(x)‖ = ‖x − P_M(x − η̃ grad F(x))‖/η̃, the measure of the theory
            tangent = setup.manifold.project_tangent(point, gradient)
            moved = setup.manifold.project(point - setup.step * tangent)
            norm = float(np.linalg.norm(point - moved)) / setup.step
            metrics["gradient-map-norm"] = norm
        elif isinstance(task, HybridTask):
            pass  # P need not be smooth: its certificate is the duality gap
        elif isinstance(setup.domain, WholeSpace):
            metrics["squared-gradient-norm"] = float(np.vdot(gradient, gradient))
        else:
            metrics["gap"] = setup.domain.gap(gradient, point)
    return metrics | task.metrics(x)


def _checkpoint_of(resume: str, config: Mapping[str, Any]) -> Path:
    """The checkpoint in a record's directory, if it is of a run like this one."""
    directory = Path(resume).expanduser()
    if not (directory / "config.toml").is_file():
        raise SettingsError(f"resume = {resume!r} is not the record of a run")
    # what says how long and where to run, but not what is computed; the strategy
    # compares the key of the context-file itself
    free = {"resume", "results-dir", "rounds", "timeout", "checkpoint-every"}
    free |= {"min-nodes", "max-failed-rounds", "context-file", "log-format"}
    saved = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    for key, value in flatten(saved).items():
        if key not in free and config.get(key) != value:
            raise SettingsError(
                f"resume: {key} = {config.get(key)!r}, but the run had {value!r}; "
                f"give its settings again with {directory.resolve() / 'resume.toml'}"
            )
    checkpoint = directory / "checkpoint.npz"
    if not checkpoint.is_file():
        raise SettingsError(
            f"resume = {resume!r}: the run ended before its first checkpoint, after "
            f"checkpoint-every = {saved.get('checkpoint-every')} rounds"
        )
    return checkpoint


def _wait_for_all(grid: Grid, checkpoint: Path) -> None:
    """Wait for as many nodes as a run to go on with had.

    After a SuperLink was started anew its nodes come back one by one. If there are
    still too few then, the strategy says so.
    """
    # nodes in this process are there or will never be
    if not isinstance(grid, LocalGrid):
        count = len(checkpoint_clients(checkpoint))
        with contextlib.suppress(TimeoutError):
            Registry().wait_for(grid, count, timeout=90.0)


def _print_summary(record: RunRecord, strategy: LoopStrategy) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=record.title, show_header=False, title_justify="left")
    rows = summary_rows(strategy.history)
    if record.reference is not None:
        rows.insert(1, ("loss − F*", f"{_last_loss(strategy) - record.reference:.6g}"))
    for name, value in rows:
        table.add_row(name, value)
    console = Console(soft_wrap=True)
    console.print(table)
    for warning in record.warnings:
        console.print(warning, style="bold red", markup=False)
    # one unbroken line, to be copied
    print(f"Record: {record.directory}", flush=True)


def _last_loss(strategy: LoopStrategy) -> float:
    return next(
        record.metrics["loss"]
        for record in reversed(strategy.history)
        if "loss" in record.metrics
    )


# ----------------------------------------------------------------------- python sim.py


def _list_everything() -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, rows in (
        ("Methods (method = ...)", list(METHODS.items())),
        ("Tasks (task = ...)", [(name, t.summary) for name, t in TASKS.items()]),
        ("Domains (domain = ...)", _domain_rows()),
    ):
        table = Table(title=title, show_header=False, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    groups: list[tuple[str, type[Any], str]] = [
        ("Settings of the run", RunSettings, ""),
        ("Settings of the methods", MethodSettings, ""),
        ("Settings of nodes' own data", DataSettings, "data."),
    ]
    groups += [(f"Settings of task {n}", t, f"{n}.") for n, t in TASKS.items()]
    for title, group, prefix in groups:
        rows3 = describe(group, prefix)
        if rows3:
            table = Table(title=title, title_justify="left")
            table.add_column("key", no_wrap=True)
            table.add_column("default")
            table.add_column("")
            for key, default, text in rows3:
                table.add_row(key, default, text)
            console.print(table)


def _node_configs(arguments: Sequence[str], nodes: int) -> list[dict[str, Any]] | None:
    """The entries of ``--node-config``, with each node's number in the texts."""
    if not arguments or nodes < 1:
        return None
    entries = read_config(arguments)
    return [
        {
            key: value.replace("{partition}", str(number))
            if isinstance(value, str)
            else value
            for key, value in entries.items()
        }
        for number in range(nodes)
    ]


def _domain_rows() -> list[tuple[str, str]]:
    rows = []
    for name in DOMAINS:
        if name == "product":  # made by layers = "product"
            continue
        fitting = []
        for task_name, task in TASKS.items():
            allowed = parse(task, {}, num_clients=1, seed=0).domains()
            if name in allowed or (name in VECTOR_SETS and "l1-ball" in allowed):
                fitting.append(task_name)
        rows.append((name, "for " + ", ".join(fitting)))
    rows.append(
        (
            WholeSpace.name,
            "no constraint: for projected-fedavg and feddr, and the only choice of "
            f"{', '.join((*UNCONSTRAINED, *RIEMANNIAN))}",
        )
    )
    return rows


def command_line(arguments: Sequence[str] | None = None) -> int:
    """``python sim.py``: exit status 0, or 1 after one line that says what failed."""
    parser = argparse.ArgumentParser(
        prog="python sim.py",
        description="Run a federated method in this process, as Flower would run it.",
    )
    parser.add_argument("--nodes", type=int, default=10, help="simulated nodes [10]")
    parser.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="'key=value ...'|FILE.toml",
        help="settings; may be given several times",
    )
    parser.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="'key=value ...'",
        help="entries of every node's config, as flower-supernode takes them; "
        "{partition} in a text becomes the node's number from 0",
    )
    parser.add_argument("--out", metavar="DIR", help="where the run's record goes")
    parser.add_argument(
        "--format",
        choices=LOG_FORMATS,
        help="text, or JSON objects, one a line: the setting log-format",
    )
    parser.add_argument("--list", action="store_true", help="what can be set, and stop")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.parse_args(arguments)
    config = default_config()
    if options.format is not None:
        config["log-format"] = options.format
    try:
        if options.list:
            _list_everything()
            return 0
        overrides = read_config(options.run_config)
        for key in overrides:
            if key not in config:
                close = difflib.get_close_matches(key, config, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise SettingsError(
                    f"-c key = {key!r} is not known{hint}; "
                    "python sim.py --list prints all"
                )
        if overrides.get("resume"):
            # a record knows its own settings; what is given here comes on top
            saved = Path(str(overrides["resume"])).expanduser() / "config.toml"
            if saved.is_file():
                config |= read_config([str(saved)])
        config |= overrides
        if options.format is not None:
            config["log-format"] = options.format
        if options.out is not None:
            config["results-dir"] = str(Path(options.out).expanduser().resolve())
        if config["resume"]:
            config["resume"] = str(Path(str(config["resume"])).expanduser().resolve())
        # checked here, so that a bad value is reported before anything is built
        seed = parse(RunSettings, config).seed
        grid = LocalGrid(
            client_app,
            options.nodes,
            seed=seed,
            run_config=config,
            node_configs=_node_configs(options.node_config, options.nodes),
        )
        context = Context(
            run_id=0,
            node_id=0,
            node_config={},
            state=RecordDict(),
            run_config=config,
        )
        server_app(grid, context)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        if config["log-format"] == "json":
            print_json("error", file=sys.stderr, error=f"{error}")
        else:
            print(f"sim.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command_line())
