"""One run, from its settings: checked once, and made into its parts, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis.app.registry import AppRegistry, Config, MethodEntry, RunSettings
from fedtrellis.domains import Domain, Product, WholeSpace, fitting_domains
from fedtrellis.files import read_arrays
from fedtrellis.manifolds import Euclidean
from fedtrellis.server.callbacks import Callback
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import AGGREGATIONS, RunOptions
from fedtrellis.server.records import refusing
from fedtrellis.settings import (
    SettingsError,
    arguments_of,
    misplaced,
    parse,
    parse_values,
    refused,
)
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, record_arrays
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.local_grid import LocalGrid


class Experiment:
    """A run config, checked and made into the run's parts by :meth:`App.experiment`.

    SettingsError if something is wrong with the settings; one line says what.

    Attributes
    ----------
    config, own_config, run : dict, dict, RunSettings
        Every key of the run config, flat; those that the run goes by, without other
        methods', tasks', sets' and aggregations'; and what they say of the run.
    options, settings : dict
        Of every strategy and of the method, by field; None where they find themselves.
    entry, client_app, task, layout, domain, manifold
        What it is made of; a domain is the whole space, and a manifold None, for
        methods without.

    Examples
    --------
    >>> from fedtrellis.app.application import installed_app
    >>> experiment = installed_app().experiment({"task": "lasso"}, 4)
    >>> experiment.domain.name, experiment.strategy().name
    ('l1-ball', 'fedfw')
    """

    def __init__(self, app: Any, config: Config, num_clients: int) -> None:
        registry: AppRegistry = app.registry
        registry.check_known(config, "run config:")
        self.client_app: ClientApp = app.client_app
        self.config = {**registry.defaults, **config}
        self.run = run = parse(RunSettings, config)
        self.options = parse_values(RunOptions, config)
        self.entry: MethodEntry = registry.choose("method", run.method)
        method, task_class = self.entry.strategy, registry.choose("task", run.task)
        prefix = f"{run.method}."
        self.settings = parse_values(method, config, prefix)
        # what the client's constructor may take, and what it must be given
        self._client_arguments = arguments_of(self.entry.client)
        self._client_settings: dict[str, Any] = {}
        for declared in self.entry.classes[1:]:
            self._client_settings |= parse_values(declared, config, prefix)
        rule: str = self.options["aggregation"]
        used = {"method": run.method, "task": run.task, "aggregation": rule}
        registry.refuse_foreign(config, **used)
        chosen = next(kind for kind in AGGREGATIONS if kind.name == rule)
        self.options["aggregation"] = parse(chosen, config, f"{rule}.")
        split = method.space == "split"
        if task_class.split_data != split:
            fitting = [n for n, t in registry.tasks.items() if t.split_data == split]
            why = f"does not fit method {run.method!r}"
            raise refused("task", run.task, why, fitting)
        self.task = task = self._make_task(task_class, num_clients)
        self.layout = Layout(tuple(task.shapes()))
        self.domain = self._make_domain(registry)
        self.manifold = None
        if method.space == "manifold":
            self.manifold = task.manifold() or Euclidean(self.layout.point_shape)
        if task.on_nodes:
            # nodes evaluate where a server would, if they show as much in training
            shown = self.options["aggregation"].exposed == "accept"
            shown &= self.options["privacy"] == "none" and not task.split_data
            self._check_for_nodes(shown)
            if shown:
                every = self.options["client_evaluate_every"]
                every = every or self.options["evaluate_every"]
                self.options["client_evaluate_every"] = every

    def _make_task(self, kind: type[Any], num_clients: int) -> Any:
        task = kind.from_config(
            self.config,
            num_clients,
            self.options["seed"],
            dtype=self.options["dtype"] or "float64",
            in_set=self.entry.strategy.space == "domain"
            and self.run.domain != WholeSpace.name,
        )
        if task.on_nodes:
            # a node does not know how many are connected
            task = replace(task, num_clients=self.options["min_nodes"])
        for why in misplaced(kind, vars(task), f"{kind.name}.").values():
            raise SettingsError(why)
        task.check()
        return task

    def _check_for_nodes(self, shown: bool) -> None:
        """Refuse what needs data on the server, which has none."""
        run, task = self.run, self.task
        unfit = f"does not fit {task.name}.dataset = {task.dataset!r}:"
        if run.reference:
            why = f"{unfit} F* would be that of data which only the nodes have"
            raise refused("reference", run.reference, why, ["false"])
        known = self.entry.strategy._measures
        if shown:
            known = (*known, "loss", *task.node_metrics)
        if run.stop_metric and run.stop_metric not in known:
            why = f"{unfit} nobody can measure it"
            raise refused("stop-metric", run.stop_metric, why, known)

    def _make_domain(self, registry: AppRegistry) -> Domain:
        """Where the model lives: the run's set, the task's, or the whole space."""
        run, task, method = self.run, self.task, self.entry.strategy
        unfit = f"does not fit method {run.method!r}, which"
        chosen: type[Domain] = WholeSpace
        if method.space == "domain":
            chosen = registry.choose("domain", run.domain or next(iter(task.domains())))
        elif run.domain not in ("", WholeSpace.name):
            why = f"{unfit} has no domain"
            raise refused("domain", run.domain, why, [WholeSpace.name])
        name, radius = chosen.name, run.radius
        if radius and not chosen.has_radius():
            raise SettingsError(f"radius = {radius}: {name} has none; allowed: 0")
        shapes = self.layout.shapes
        if run.layers == "product" and (len(shapes) < 2 or name == WholeSpace.name):
            why = "needs a set, and several arrays; the model has "
            why += f"{len(shapes)}, and domain = {name!r}"
            raise refused("layers", run.layers, why, ["whole"])
        registry.refuse_foreign(self.config, domain=name)
        self.own_config = registry.without_foreign(self.config, domain=name)
        if issubclass(chosen, WholeSpace):
            if method._bounded:
                raise refused("domain", name, f"{unfit} needs a bounded set")
            on_manifold = method.space == "manifold" and task.manifold() is not None
            if not task.bounded_below and not on_manifold:
                why = "has no minimum without a constraint; method "
                raise refused("task", task.name, f"{why}{run.method!r} needs one")
            return WholeSpace()
        allowed = fitting_domains(task.domains(), registry.domains)
        if name not in allowed:
            raise refused("domain", name, f"does not fit task {task.name!r}", allowed)
        radius = radius or allowed[name]
        if chosen.has_radius() and radius == 0.0:
            free = "" if method._bounded else f", or domain = {WholeSpace.name!r}"
            why = f"task {task.name!r} has none of its own for domain {name!r}"
            raise SettingsError(f"radius = {run.radius}: {why}; set one above 0{free}")
        try:
            domain: Domain = chosen.from_config(self.config, radius)
            if run.layers == "product":
                domain = Product([domain] * len(shapes), list(shapes))
            domain = task.model_set(domain)
            domain.check_shape(self.layout.point_shape)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"domain = {name!r}: {error}") from None
        return domain

    def suggestions(self) -> dict[str, Any]:
        """What the task suggests for settings that are left to themselves, by field."""
        suits: Mapping[str, Any] = self.task.suggestions(self.run.method)
        suggested = {n: v for n, v in suits.items() if self.settings[n] is None}
        # what the user sets may leave a suggestion without a purpose
        idle = misplaced(self.entry.strategy, {**self.settings, **suggested})
        return {name: value for name, value in suggested.items() if name not in idle}

    def strategy(self, **options: Any) -> LoopStrategy:
        """The server's half of the method; ``options`` are ``RunOptions``' fields."""
        cls, of_task = self.entry.strategy, self.task.method_options()
        wanted = arguments_of(cls)
        for name in self.task.required_options:
            if name in of_task and name not in (wanted | self._client_arguments):
                key, method = self.task.option_key(name), self.run.method
                raise SettingsError(f"method {method!r} does not know {key}, a set key")
        parts = {"domain": self.domain, "manifold": self.manifold, **of_task}
        values = {name: part for name, part in parts.items() if name in wanted}
        values |= {name: v for name, v in self.settings.items() if v is not None}
        return cls(**{**values, **self.suggestions(), **self.options, **options})

    @cached_property
    def example(self) -> LoopStrategy:
        """A strategy that is never started: it answers for the method."""
        return self.strategy()

    def start_point(self) -> FloatArray:
        """The task's point, or a given model, projected to where the model lives."""
        given = self.run.initial_model
        if given and self.task.split_data:
            raise refused("initial-model", given, "does not fit data that is split")
        # what a run goes on with stands in its checkpoint
        if given and not self.run.resume:
            point = self.layout.point(read_model(given, self.layout.shapes))
        else:
            point = self.layout.point(self.task.initial_point())
        if self.manifold is not None:
            return self.manifold.project(point)
        return point if self.domain.contains(point) else self.domain.project(point)

    def initial_arrays(self, point: FloatArray | None = None) -> ArrayRecord:
        """The start, or another point, as a strategy takes it."""
        point = self.start_point() if point is None else point
        dtype = self.options["dtype"] or "float64"
        # F is evaluated in float64, whatever the model is of
        made = Layout(self.layout.shapes, dtype)
        return array_record(made.layers(made.rounded(point)))

    def grid(self, **options: Any) -> LocalGrid:
        """The nodes in this process; ``options`` are those of ``LocalGrid``."""
        own = {"seed": self.options["seed"], "run_config": self.config}
        return LocalGrid(self.client_app, self.task.num_clients, **(own | options))

    def evaluate(self, arrays: ArrayRecord | list[Any]) -> dict[str, float]:
        """F, the gap or ‖∇F‖², and the task's own metrics, on the whole data."""
        if isinstance(arrays, ArrayRecord):
            arrays = record_arrays(arrays)
        task, point = self.task, self.layout.point(arrays)
        x = self.layout.objective_point(point)
        metrics: dict[str, float] = {"loss": float(task.value(x))}
        # P of split data need not be smooth: its certificate is the duality gap
        if self.run.evaluate_gap and not task.split_data:
            gradient = self.layout.objective_gradient(task.gradient(x))
            if self.manifold is not None:
                # ‖G_η̃(x)‖ = ‖x − P_M(x − η̃ grad F(x))‖/η̃, the measure of the theory
                strategy: Any = self.example  # one on a manifold
                step = float(strategy.measuring_step(self.task.num_clients))
                tangent = self.manifold.project_tangent(point, gradient)
                norm = float(np.linalg.norm(tangent))  # the limit for small steps
                if step:
                    moved = self.manifold.project(point - step * tangent)
                    norm = float(np.linalg.norm(point - moved)) / step
                metrics["gradient-map-norm"] = norm
            elif not self.domain.bounded:
                metrics["squared-gradient-norm"] = float(np.vdot(gradient, gradient))
            else:
                metrics["gap"] = self.domain.gap(gradient, point)
        metrics |= task.metrics(x)
        return metrics

    def evaluate_fn(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """:meth:`evaluate`, as Flower's strategies call it."""
        return MetricRecord({**self.evaluate(arrays)})

    def start(
        self,
        strategy: LoopStrategy | None = None,
        grid: Any = None,
        *,
        point: FloatArray | None = None,
        evaluate_fn: Callable[..., Any] | None = None,
    ) -> Result:
        """Run without a record; :meth:`evaluate` if the server has the data."""
        strategy = self.strategy() if strategy is None else strategy
        if evaluate_fn is None and not self.task.on_nodes:
            evaluate_fn = self.evaluate_fn
        stops = getattr(strategy, "tolerance", 0.0) > 0.0
        usual = max(self.task.rounds, strategy._usual_rounds)
        return strategy.start(
            self.grid() if grid is None else grid,
            self.initial_arrays(point),
            num_rounds=self.run.rounds or (1000 if stops else usual),
            timeout=self.run.timeout,
            evaluate_fn=evaluate_fn,
        )

    def reference(self) -> float | None:
        """F* where the task knows it, or by a central solver if that is asked for."""
        from fedtrellis.objectives import reference as central

        task, solved, method = self.task, self.run.reference, self.example
        h = any(getattr(method, name) for name in method._beside_f)
        certified = task.certified_optimum() if solved and not h else None
        if certified is None:
            known = None if h else task.reference_optimum(self.domain)
            if known is not None or not solved:
                return known
            if task.split_data or h:
                why = "has no solver for such a penalty, for bounds or scales"
                raise refused("reference", solved, why, ["false"])
            if not task.convex or len(self.layout.shapes) > 1:
                why = "reference = true is for convex tasks and models of one array;"
                raise SettingsError(f"{why} task {task.name!r} is set to another")
            if self.manifold is not None:
                raise SettingsError("reference = true is not for methods on manifolds")
            f, start = task.objective(), task.initial_point()[0]
            if not self.domain.bounded:
                lowest = central.unconstrained_minimum(f, start)
                norm = lowest.gradient_norm
                log(INFO, "F* = %.9g, where ‖∇F‖ = %.1e", lowest.value, norm)
                return lowest.value
            certified = central.certified_minimum(f, self.domain, start, tolerance=1e-7)
        log(INFO, "F* = %.9g, certified to %.1e", certified.value, certified.gap)
        return float(certified.value)

    def node(self, context: Context) -> Any:
        """The client of one node: its share of the task's data, or data of its own."""
        task, node = self.task, context.node_config
        check_node(node, task.on_nodes)
        if task.on_nodes:
            client = self.client(context, task.node_parts(node))
            for name, value in task.node_attributes(node).items():
                setattr(client, name, value)
            return client
        return self.client(context, task.client_parts(int(node["partition-id"])))

    def client(self, context: Context, parts: Mapping[str, Any]) -> Any:
        """The client's half of the method, of what its constructor's arguments name."""
        there: dict[str, Any] = {
            "context": context,
            "domain": self.domain,
            "manifold": self.manifold,
            **parts,
            **self._client_settings,
        }
        wanted = self._client_arguments
        missing = [n for n, needed in wanted.items() if needed and n not in there]
        if missing:
            needs = f"the client of method {self.run.method!r} needs"
            lacks = f"which task {self.task.name!r} does not have"
            raise SettingsError(f"{needs} {', '.join(missing)}, {lacks}")
        return self.entry.client(**{n: x for n, x in there.items() if n in wanted})


def read_model(path: str, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """The arrays of a ``.npz`` file, or of a record's ``model.npz``, in float64."""
    file, wanted = Path(path).expanduser(), list(shapes)
    file = file / "model.npz" if file.is_dir() else file
    why = "is no .npz of arrays, nor the record of a completed run"
    with refusing(f"initial-model = {path!r} {why}"):
        arrays = [np.asarray(one, np.float64) for one in read_arrays(file).values()]
        found = [array.shape for array in arrays]
        if found != wanted:
            raise ValueError(f"it has shapes {found}; this run's model has {wanted}")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("it is not finite")
    return arrays


def check_node(config: Config, on_nodes: bool) -> None:
    """Raise SettingsError if a node's config lacks what the run needs."""
    if on_nodes and "client-id" in config:
        return
    needed = ["partition-id"]
    if not on_nodes:
        needed.append("num-partitions")
        if "data" in config:
            _warn("node config: data is not used, as this run brings its own")
    for key in needed:
        if not isinstance(config.get(key), int):
            why = "must be a whole number; with its own data a node may have client-id"
            raise refused(f"node config: {key}", config.get(key), why)


_warn = lru_cache(maxsize=1)(partial(log, WARNING))  # once a process


class CheckNodes(Callback):
    """Stop a run before round 1 if the nodes' data does not go together.

    ``examples`` of all nodes are 0 where their number does not matter, and None where
    the nodes have parts of the task's data, which must be all of it.
    """

    def __init__(self, min_nodes: int = 1, examples: int | None = None) -> None:
        self.min_nodes, self.examples = min_nodes, examples

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Compare the properties that the nodes gave of their data."""
        n, least, examples = strategy.num_clients, self.min_nodes, self.examples
        clients = strategy.conversation.clients
        known = {name: clients[name].properties for name in sorted(clients)}
        left_out = "; ".join(f"{who}: {why}" for who, why in strategy.refused)
        if examples is None:
            strategy.conversation.refuse = lambda properties: (
                "the data is dealt among the clients of the start"
            )
            parts = {name: p.get("num-partitions") for name, p in known.items()}
            if set(parts.values()) != {n}:
                why = f"num-partitions must be {n} on every node; it is {parts}"
                raise SettingsError(f"{why}; {left_out}")
            return
        if n < least:
            why = f"min-nodes = {least}, and {n} nodes can be used"
            raise SettingsError(f"{why}: {left_out}")
        # files in LIBSVM's or MNIST's formats have no names to compare
        named = {n: p["data-columns"] for n, p in known.items() if "data-columns" in p}
        first = next(iter(named), "")
        for name, digest in named.items():
            if digest != named[first]:
                why = "have other feature columns, or in another order"
                hint = "data.feature-names can order them"
                raise SettingsError(f"clients {first} and {name} {why}; {hint}")
        total = sum(int(p.get("num-examples", 0)) for p in known.values())
        # a node's weight depends on both
        if examples and (n, total) != (least, examples):
            why = f"does not fit min-nodes = {least}: {n} nodes have {total}"
            raise refused("data.examples", examples, why)
