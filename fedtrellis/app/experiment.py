"""One run, from its settings: checked once, and made into its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from logging import INFO
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedtrellis.app.nodes import write_predictions
from fedtrellis.app.registry import AppRegistry, MethodEntry, RunSettings
from fedtrellis.domains import Domain, Product, WholeSpace, fitting_domains
from fedtrellis.domains.product import enclosing_ball
from fedtrellis.manifolds import Euclidean
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import AGGREGATIONS, RunOptions
from fedtrellis.settings import (
    SettingsError,
    keys,
    misplaced,
    parse,
    parse_values,
    refuse_misplaced,
)
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, record_arrays
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.local_grid import GridOptions, LocalGrid


class Experiment:
    """A run config, checked and made into the run's parts by :meth:`App.experiment`.

    SettingsError if something is wrong with the settings; one line says what.

    Attributes
    ----------
    client_app : ClientApp
        What runs on every node.
    config : dict
        Every key of the run config, flat.
    run : RunSettings
    options : dict
        The options of every strategy, by field.
    entry : MethodEntry
        The method's two classes.
    settings : dict
        The method's own settings, by field; None where they find themselves.
    client_settings : dict
        Those that the method's client declares, by field.
    task : Task
    domain : Domain
        The whole space for methods without a constraint.
    layout : Layout
        Shapes of the model's arrays.
    manifold : Manifold or None
        For methods on one.

    Examples
    --------
    >>> from fedtrellis.builtin import installed_app
    >>> experiment = installed_app().experiment({"task": "lasso"}, 4)
    >>> experiment.domain.name, experiment.strategy().name
    ('l1-ball', 'fedfw')
    """

    def __init__(
        self,
        registry: AppRegistry,
        client_app: ClientApp,
        config: Mapping[str, Any],
        num_clients: int,
    ) -> None:
        registry.check_known(config, "run config:")
        self.client_app, self.config = client_app, {**registry.defaults, **config}
        self.run = run = parse(RunSettings, config)
        self.options = parse_values(RunOptions, config)
        self.entry: MethodEntry = registry.choose("method", run.method)
        kind, method = registry.choose("task", run.task), self.entry.strategy
        self.settings, self.client_settings = (
            parse_values(cls, config, f"{run.method}.") if cls else {}
            for cls in (method, getattr(self.entry.client, "Settings", None))
        )
        self._choose_aggregation(registry, config)
        if run.outer_fraction > 0.0 and not run.outer_domain:
            raise SettingsError(
                f"outer-fraction = {run.outer_fraction} needs an outer-domain, the "
                "larger set that these clients have"
            )
        split = method.space == "split"
        if kind.split_data != split:
            fitting = [n for n, t in registry.tasks.items() if t.split_data == split]
            raise SettingsError(
                f"task = {run.task!r} does not fit method {run.method!r}; allowed: "
                f"{', '.join(fitting)}"
            )
        # a task that knows of no other computes in float64
        dtype = self.options["dtype"] or "float64"
        more: dict[str, Any] = {} if dtype == "float64" else {"dtype": dtype}
        if method._values_only:
            more["values_only"] = True
        task = kind.from_config(config, num_clients, self.options["seed"], **more)
        refuse_misplaced(kind, vars(task), f"{kind.name}.")
        task.check()
        self.task, self.layout = task, Layout(tuple(task.shapes()))
        self.domain = self._make_domain(registry, config)
        shape, self.manifold = self.layout.point_shape, None
        if method.space == "manifold":
            self.manifold = task.manifold() or Euclidean(shape)
        if task.on_nodes:
            self._check_for_nodes()
        if run.outer_domain:
            if "domain" not in self.entry.client_arguments:
                raise SettingsError(f"outer-domain is not for method {run.method!r}")
            enclosing_ball(run.outer_domain, self.domain, shape)

    def _choose_aggregation(
        self, registry: AppRegistry, config: Mapping[str, Any]
    ) -> None:
        name = self.options["aggregation"]
        used = {"method": self.run.method, "task": self.run.task, "aggregation": name}
        registry.refuse_foreign(config, used)
        rule = next(rule for rule in AGGREGATIONS if rule.name == name)
        if keys(rule):  # else its name says all
            self.options["aggregation"] = parse(rule, config, f"{name}.")

    def _check_for_nodes(self) -> None:
        """Refuse what needs data on the server, which has none."""
        run, task = self.run, self.task
        where = f"does not fit {task.name}.dataset = {task.dataset!r}"
        if run.reference:
            raise SettingsError(
                f"reference = true {where}: F* would be that of data which only the "
                "nodes have; allowed: false"
            )
        if run.outer_fraction:
            raise SettingsError(
                f"outer-fraction = {run.outer_fraction} {where}: the nodes have no "
                "order; those whose own config has outer-domain too have the larger set"
            )
        known = self.entry.strategy._measures
        if not task.split_data:
            known = (*known, "loss", *task.node_metrics)
        if run.stop_metric and run.stop_metric not in known:
            raise SettingsError(
                f"stop-metric = {run.stop_metric!r} {where}: nobody can measure it; "
                f"allowed: {', '.join(known) or 'none'}"
            )

    def _make_domain(self, registry: AppRegistry, config: Mapping[str, Any]) -> Domain:
        """Where the model lives: the run's set, the task's, or the whole space."""
        run, task, method = self.run, self.task, self.entry.strategy
        unfit = f"domain = {run.domain!r} does not fit method {run.method!r}, which"
        chosen: type[Domain] = WholeSpace
        if method.space == "domain":
            chosen = registry.choose("domain", run.domain or next(iter(task.domains())))
        elif run.domain not in ("", WholeSpace.name):
            raise SettingsError(f"{unfit} has no domain; allowed: {WholeSpace.name}")
        name, radius = chosen.name, run.radius
        if radius and not chosen.has_radius():
            raise SettingsError(f"radius = {radius}: {name} has none; allowed: 0")
        registry.refuse_foreign(config, {"domain": name})
        if issubclass(chosen, WholeSpace):
            if method._bounded:
                raise SettingsError(f"{unfit} needs a bounded set")
            on_manifold = method.space == "manifold" and task.manifold() is not None
            if not task.bounded_below and not on_manifold:
                raise SettingsError(
                    f"task = {task.name!r} has no minimum without a constraint; method "
                    f"{run.method!r} needs one"
                )
            return WholeSpace()
        allowed = fitting_domains(task.domains(), registry.domains)
        if name not in allowed:
            raise SettingsError(
                f"domain = {name!r} does not fit task {task.name!r}; "
                f"allowed: {', '.join(allowed)}"
            )
        radius = radius or allowed[name]
        if chosen.has_radius() and radius == 0.0:
            raise SettingsError(
                f"radius = {run.radius}: task {task.name!r} has none of its own for "
                f"domain {name!r}; set one above 0"
            )
        shapes = self.layout.shapes
        try:
            domain = chosen.from_config(config, radius)
            if run.layers == "product" and len(shapes) > 1:
                domain = Product([domain] * len(shapes), list(shapes))
            domain.check_shape(self.layout.point_shape)
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(f"domain = {name!r}: {error}") from None
        return domain

    # ---------------------------------------------------------------- the server's part

    def suggestions(self) -> dict[str, Any]:
        """What the task suggests for settings that are left to themselves, by field."""
        given = {name for name, value in self.settings.items() if value is not None}
        suggested: dict[str, Any] = self.task.suggestions(self.run.method, given)
        # what the user sets may leave a suggestion without a purpose
        together = {**self.settings, **suggested}
        idle = misplaced(self.entry.strategy, together)
        return {name: value for name, value in suggested.items() if name not in idle}

    def strategy(self, **options: Any) -> LoopStrategy:
        """The server's half of the method; ``options`` are ``RunOptions``' fields."""
        cls = self.entry.strategy
        parts: dict[str, Any] = {"domain": self.domain, "manifold": self.manifold}
        if self.run.outer_domain:
            parts["client_domains"] = [self._enclosing(self.run.outer_domain)]
        parts |= self.task.method_options()
        wanted = set(inspect.signature(cls).parameters)
        known = wanted | set(self.entry.client_arguments)
        for name in self.task.required_options:
            if name in parts and name not in known:
                key = self.task.option_key(name)
                raise SettingsError(
                    f"method {self.run.method!r} does not know {key}, which is set: it "
                    "would solve another problem"
                )
        values = {name: v for name, v in self.settings.items() if v is not None}
        parts = {name: part for name, part in parts.items() if name in wanted}
        values = {**parts, **values, **self.suggestions(), **self.options, **options}
        return cls(**values)

    @cached_property
    def example(self) -> LoopStrategy:
        """A strategy that is never started: it answers for the method."""
        return self.strategy()

    def start_point(self) -> FloatArray:
        """The task's point, or a given model, projected to where the model lives."""
        given = self.run.initial_model
        if given and self.task.split_data:
            raise SettingsError(
                f"initial-model = {given!r} does not fit split data, whose methods "
                "start from the clients' own variables"
            )
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

    def grid(self, **options: Unpack[GridOptions]) -> LocalGrid:
        """The nodes in this process; ``options`` are those of ``LocalGrid``."""
        own: GridOptions = {"seed": self.options["seed"], "run_config": self.config}
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
        """Run without a record.

        By default with :meth:`strategy` on :meth:`grid`, from the point that
        :meth:`start_point` gives, and with :meth:`evaluate_fn` where the server has the
        data.
        """
        strategy = self.strategy() if strategy is None else strategy
        if evaluate_fn is None and not self.task.on_nodes:
            evaluate_fn = self.evaluate_fn
        return strategy.start(
            self.grid() if grid is None else grid,
            self.initial_arrays(point),
            num_rounds=self.run.rounds,
            timeout=self.run.timeout,
            evaluate_fn=evaluate_fn,
        )

    def reference(self) -> float | None:
        """F* where the task knows it, or by a central solver if that is asked for."""
        from fedtrellis.objectives.reference import (
            certified_minimum,
            unconstrained_minimum,
        )

        task = self.task
        certified = task.certified_optimum() if self.run.reference else None
        if certified is not None:
            log(INFO, "P* = %.9g, certified to %.1e", certified.value, certified.gap)
            return float(certified.value)
        known: float | None = task.reference_optimum(self.domain)
        if known is not None or not self.run.reference:
            return known
        if not (task.convex and len(self.layout.shapes) == 1):
            raise SettingsError(
                "reference = true is for convex tasks and models of one array; "
                f"task {task.name!r} is set to another"
            )
        if self.manifold is not None:
            raise SettingsError("reference = true is not for methods on manifolds")
        f, start = task.objective(), task.initial_point()[0]
        if self.domain.bounded:
            best = certified_minimum(f, self.domain, start, tolerance=1e-7)
            log(INFO, "F* = %.9g, certified to %.1e", best.value, best.gap)
            return best.value
        lowest = unconstrained_minimum(f, start)
        log(INFO, "F* = %.9g, where ‖∇F‖ = %.1e", lowest.value, lowest.gradient_norm)
        return lowest.value

    # ---------------------------------------------------------------- the clients' part

    def _enclosing(self, name: str) -> Domain:
        return enclosing_ball(name, self.domain, self.layout.point_shape)

    def node(self, context: Context) -> Any:
        """The client of one node: its share of the task's data, or data of its own."""
        task, node, domain = self.task, context.node_config, self.domain
        if task.on_nodes:
            client = self.client(context, task.node_parts(node), domain)
            for name, value in task.node_attributes(node).items():
                setattr(client, name, value)
            return client
        index, n = int(node["partition-id"]), task.num_clients
        if index >= n - int(self.run.outer_fraction * n):
            # one of the last ⌊fraction · n⌋ clients
            domain = self._enclosing(self.run.outer_domain)
        return self.client(context, task.client_parts(index), domain)

    def client(self, context: Context, parts: Mapping[str, Any], domain: Domain) -> Any:
        """The client's half of the method, of what its constructor's arguments name."""
        node = context.node_config
        if "outer-domain" in node:
            # this node asks for a larger set of its own
            domain = self._enclosing(str(node["outer-domain"]))
        there: dict[str, Any] = {
            "context": context,
            "domain": domain,
            "manifold": self.manifold,
            **parts,
            **self.client_settings,
        }
        if file := node.get("scores-file"):
            there["on_predictions"] = partial(write_predictions, str(file))
        wanted = self.entry.client_arguments
        missing = [n for n, needed in wanted.items() if needed and n not in there]
        if missing:
            raise SettingsError(
                f"the client of method {self.run.method!r} needs {', '.join(missing)}, "
                f"which task {self.task.name!r} does not have"
            )
        return self.entry.client(**{n: x for n, x in there.items() if n in wanted})


def read_model(path: str, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """The arrays of a ``.npz`` file, or of a record's ``model.npz``, in float64.

    SettingsError names a file that is missing or that holds a model of other shapes.
    """
    file, key = Path(path).expanduser(), f"initial-model = {path!r}"
    if file.is_dir():
        file = file / "model.npz"
    if not file.is_file():
        raise SettingsError(
            f"{key}: there is no such file, nor a record of a completed run"
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = [np.asarray(archive[name], np.float64) for name in archive.files]
    except Exception as error:  # NumPy's or its archive's: it is something else
        why = " ".join(str(error).split())
        raise SettingsError(f"{key} is no .npz of arrays: {why}") from None
    found = [array.shape for array in arrays]
    if found != list(shapes):
        raise SettingsError(
            f"{key} has arrays of shapes {found}; this run's model has {list(shapes)}"
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise SettingsError(f"{key} is not finite")
    return arrays
