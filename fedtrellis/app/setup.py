"""From a run config to its experiment: everything is checked here, before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flwr.clientapp import ClientApp

from fedtrellis.app.experiment import Experiment
from fedtrellis.app.registry import MethodEntry, Registry
from fedtrellis.app.settings import RunSettings
from fedtrellis.declared import refuse_misplaced
from fedtrellis.domains import Domain, Product, WholeSpace, fitting_domains
from fedtrellis.domains.enclosing import enclosing_ball
from fedtrellis.manifolds import Euclidean
from fedtrellis.server.guarded import AGGREGATIONS
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.settings import SettingsError, keys, parse, parse_values
from fedtrellis.wire.arrays import Layout

__all__ = ["make_experiment"]


def make_experiment(
    registry: Registry,
    client_app: ClientApp,
    config: Mapping[str, Any],
    num_clients: int,
) -> Experiment:
    """Check a whole run config; SettingsError says in one line what is wrong."""
    run = parse(RunSettings, config)
    options = parse_values(keys(LoopStrategy), LoopStrategy, config)
    aggregation = options["aggregation"]
    entry: MethodEntry = registry.choose("method", run.method)
    kind = registry.choose("task", run.task)
    settings = parse_values(entry.fields, entry.strategy, config)
    client_settings: dict[str, Any] = {}
    if entry.client_settings is not None:
        client_settings = parse_values(
            entry.client_fields, entry.client_settings, config
        )
    used = {"method": run.method, "task": run.task, "aggregation": aggregation}
    _refuse_foreign(registry, config, used)
    made = next(kind for kind in AGGREGATIONS if kind.name == aggregation)
    if keys(made):  # else its name says all
        options["aggregation"] = parse(made, config, f"{aggregation}.")
    if run.outer_fraction > 0.0 and not run.outer_domain:
        raise SettingsError(
            f"outer-fraction = {run.outer_fraction} needs an outer-domain, the larger "
            "set that these clients have"
        )
    split = entry.strategy.space == "split"
    if kind.split_data != split:
        fitting = [n for n, t in registry.tasks.items() if t.split_data == split]
        raise SettingsError(
            f"task = {run.task!r} does not fit method {run.method!r}; allowed: "
            f"{', '.join(fitting)}"
        )
    dtype = options["dtype"] or "float64"
    # a task that knows of no other computes in float64
    more: dict[str, Any] = {} if dtype == "float64" else {"dtype": dtype}
    if entry.strategy.values_only:
        more["values_only"] = True
    task = kind.from_config(config, num_clients, options["seed"], **more)
    values = {field.name: getattr(task, field.name) for field in fields(task)}
    refuse_misplaced(kind, values, f"{kind.name}.")
    task.check()
    layout = Layout(tuple(task.shapes()))
    domain = _make_domain(registry, run, entry, task, layout, config)
    manifold = None
    if entry.strategy.space == "manifold":
        manifold = task.manifold() or Euclidean(layout.point_shape)
    if task.on_nodes:
        _check_for_nodes(run, entry, task)
    if run.outer_domain:
        if "domain" not in entry.client_arguments:
            raise SettingsError(f"outer-domain is not for method {run.method!r}")
        enclosing_ball(run.outer_domain, domain, layout.point_shape)
    return Experiment(
        {**registry.default_config(), **config},
        run,
        options,
        entry,
        settings,
        client_settings,
        task,
        domain,
        layout,
        manifold,
        client_app,
    )


def _refuse_foreign(
    registry: Registry, config: Mapping[str, Any], used: Mapping[str, str]
) -> None:
    """Refuse settings of methods, tasks and so on that the run does not use.

    ``flwr run`` passes every key of pyproject.toml, so a key counts as set where its
    value is not the default.
    """
    for key, group in registry.foreign(config, used).items():
        if not group.is_default(key, config[key]):
            raise SettingsError(
                f"{key} = {config[key]!r} is a setting of {group.kind} "
                f"{group.owner!r}, and this run's {group.kind} is {used[group.kind]!r}"
            )


def _check_for_nodes(run: RunSettings, entry: MethodEntry, task: Any) -> None:
    """Refuse what needs data on the server, which has none."""
    where = f"does not fit {task.name}.dataset = {task.dataset!r}"
    if run.reference:
        raise SettingsError(
            f"reference = true {where}: F* would be that of data which only the nodes "
            "have; allowed: false"
        )
    if run.outer_fraction:
        raise SettingsError(
            f"outer-fraction = {run.outer_fraction} {where}: the nodes have no order; "
            "those whose own config has outer-domain too have the larger set"
        )
    known = entry.strategy.measures
    if not task.split_data:
        known = (*known, "loss", *task.node_metrics)
    if run.stop_metric and run.stop_metric not in known:
        raise SettingsError(
            f"stop-metric = {run.stop_metric!r} {where}: nobody can measure it; "
            f"allowed: {', '.join(known) or 'none'}"
        )


# ------------------------------------------------------------------------------ domains


def _make_domain(
    registry: Registry,
    run: RunSettings,
    entry: MethodEntry,
    task: Any,
    layout: Layout,
    config: Mapping[str, Any],
) -> Domain:
    """The set that the model lives in."""
    chosen = _chosen_domain(registry, run, entry, task)
    if run.radius and not chosen.has_radius():
        raise SettingsError(
            f"radius = {run.radius}: {chosen.name} has none; allowed: 0"
        )
    _refuse_foreign(registry, config, {"domain": chosen.name})
    if issubclass(chosen, WholeSpace):
        return _whole_space(run, entry, task)
    allowed = fitting_domains(task.domains(), registry.domains)
    if chosen.name not in allowed:
        raise SettingsError(
            f"domain = {chosen.name!r} does not fit task {task.name!r}; "
            f"allowed: {', '.join(allowed)}"
        )
    radius = run.radius or allowed[chosen.name]
    if chosen.has_radius() and radius == 0.0:
        raise SettingsError(
            f"radius = {run.radius}: task {task.name!r} has none of its own for domain "
            f"{chosen.name!r}; set one above 0"
        )
    try:
        domain = chosen.from_config(config, radius)
        if run.layers == "product" and len(layout.shapes) > 1:
            domain = Product([domain] * len(layout.shapes), list(layout.shapes))
        domain.check_shape(layout.point_shape)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"domain = {chosen.name!r}: {error}") from None
    return domain


def _chosen_domain(
    registry: Registry, run: RunSettings, entry: MethodEntry, task: Any
) -> type[Domain]:
    """The set that is asked for, the task's own, or none where the method has none."""
    if entry.strategy.space != "domain":
        if run.domain not in ("", WholeSpace.name):
            raise SettingsError(
                f"domain = {run.domain!r} does not fit method {run.method!r}, which "
                f"has no domain; allowed: {WholeSpace.name}"
            )
        return WholeSpace
    chosen: type[Domain] = registry.choose(
        "domain", run.domain or next(iter(task.domains()))
    )
    return chosen


def _whole_space(run: RunSettings, entry: MethodEntry, task: Any) -> WholeSpace:
    """No constraint, if method and task can do without."""
    if entry.strategy.bounded:
        raise SettingsError(
            f"domain = {run.domain!r} does not fit method {run.method!r}, which needs "
            "a bounded set"
        )
    on_manifold = entry.strategy.space == "manifold" and task.manifold() is not None
    if not task.bounded_below and not on_manifold:
        raise SettingsError(
            f"task = {task.name!r} has no minimum without a constraint; method "
            f"{run.method!r} needs one"
        )
    return WholeSpace()
