"""One run, from its settings: checked once, and made into its parts."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from logging import INFO
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedtrellis.app.registry import MethodEntry
from fedtrellis.app.settings import RunSettings
from fedtrellis.app.warm_start import read_model
from fedtrellis.declared import misplaced
from fedtrellis.domains import Domain
from fedtrellis.domains.enclosing import enclosing_ball
from fedtrellis.manifolds import Manifold
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import StrategyOptions
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout, array_record, record_arrays
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.grid_options import GridOptions
from fedtrellis.wire.local_grid import LocalGrid

__all__ = ["Experiment"]


@dataclass(frozen=True, eq=False)
class Experiment:
    """A run config, checked and made into the run's parts.

    Attributes
    ----------
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
    client_app : ClientApp
        What runs on every node.

    Examples
    --------
    >>> from fedtrellis.builtin import installed_app
    >>> experiment = installed_app().experiment({"task": "lasso"}, 4)
    >>> experiment.domain.name, experiment.strategy().name
    ('l1-ball', 'fedfw')
    """

    config: dict[str, Any]
    run: RunSettings
    options: dict[str, Any]
    entry: MethodEntry
    settings: dict[str, Any]
    client_settings: dict[str, Any]
    task: Any
    domain: Domain
    layout: Layout
    manifold: Manifold | None
    client_app: ClientApp = field(repr=False)

    @property
    def name(self) -> str:
        """The method's."""
        return self.entry.name

    @property
    def convex(self) -> bool:
        """Whether F is known to be convex."""
        return self.task.convex and len(self.layout.shapes) == 1

    # ---------------------------------------------------------------- the server's part

    def suggestions(self) -> dict[str, Any]:
        """What the task suggests for settings that are left to themselves, by field."""
        said = {name for name, value in self.settings.items() if value is not None}
        suggested: dict[str, Any] = self.task.suggestions(self.name, said)
        # what the user says may leave a suggestion without a purpose
        together = {**self.settings, **suggested}
        idle = misplaced(self.entry.strategy, together)
        return {name: value for name, value in suggested.items() if name not in idle}

    def strategy(self, **options: Unpack[StrategyOptions]) -> LoopStrategy:
        """The server's half of the method; ``options`` are those of every strategy."""
        cls = self.entry.strategy
        parts: dict[str, Any] = {"domain": self.domain, "manifold": self.manifold}
        if self.run.outer_domain:
            # whoever takes it says so
            parts["client_domains"] = [self._enclosing(self.run.outer_domain)]
        parts |= self.task.method_options()
        wanted = {f.name for f in dataclasses.fields(cls)}
        known = wanted | set(self.entry.client_arguments)
        for name in self.task.required_options:
            if name in parts and name not in known:
                key = self.task.option_key(name)
                raise SettingsError(
                    f"method {self.name!r} does not know {key}, which is set: it "
                    "would solve another problem"
                )
        values = {name: v for name, v in self.settings.items() if v is not None}
        return cls(
            **{
                name: part
                for name, part in parts.items()
                if name in wanted and name not in values
            },
            **values,
            **self.suggestions(),
            **{**self.options, **options},
        )

    @cached_property
    def _strategy(self) -> LoopStrategy:
        """One that is never started: it answers for the method."""
        return self.strategy()

    @property
    def about(self) -> str:
        """Where the model lives, or the loss of split data: for titles."""
        if self.task.split_data:
            return f"{self.task.method_options()['loss']} loss"
        return repr(self.manifold or self.domain)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the record must not overlook."""
        return self._strategy.warnings()

    def check(self) -> None:
        """Find what only the strategy can find wrong, before there is a record."""
        _ = self._strategy

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
                step = self._measuring_step()
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

    def _measuring_step(self) -> float:
        strategy: Any = self._strategy  # one on a manifold
        return float(strategy.measuring_step(self.task.num_clients))

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

        Parameters
        ----------
        strategy : LoopStrategy, optional
            By default :meth:`strategy`.
        grid : Grid, optional
            By default :meth:`grid`.
        point : ndarray, optional
            Where to start, by default :meth:`start_point`.
        evaluate_fn : callable, optional
            By default :meth:`evaluate_fn` where the server has the data.
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
        if not self.convex:
            raise SettingsError(
                "reference = true is for convex tasks and models of one array; "
                f"task {task.name!r} is set to another"
            )
        if self.manifold is not None:
            raise SettingsError("reference = true is not for methods on manifolds")
        start = task.initial_point()[0]
        if not self.domain.bounded:
            lowest = unconstrained_minimum(task.objective(), start)
            log(
                INFO, "F* = %.9g, where ‖∇F‖ = %.1e", lowest.value, lowest.gradient_norm
            )
            return lowest.value
        best = certified_minimum(task.objective(), self.domain, start, tolerance=1e-7)
        log(INFO, "F* = %.9g, certified to %.1e", best.value, best.gap)
        return best.value

    # ---------------------------------------------------------------- the clients' part

    def client_domain(self, client: int) -> Domain:
        """D, or the larger set of one of the last ⌊fraction · n⌋ clients."""
        n = self.task.num_clients
        if client < n - int(self.run.outer_fraction * n):
            return self.domain
        return self._enclosing(self.run.outer_domain)

    def _enclosing(self, name: str) -> Domain:
        return enclosing_ball(name, self.domain, self.layout.point_shape)

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
            "on_predictions": prediction_writer(node.get("scores-file")),
            **parts,
            **self.client_settings,
        }
        wanted = self.entry.client_arguments
        missing = [
            name for name, needed in wanted.items() if needed and name not in there
        ]
        if missing:
            raise SettingsError(
                f"the client of method {self.name!r} needs {', '.join(missing)}, which "
                f"task {self.task.name!r} does not have"
            )
        return self.entry.client(
            **{name: part for name, part in there.items() if name in wanted}
        )


def prediction_writer(path: Any) -> Callable[[Any], None] | None:
    """What writes what a node predicts to the file that its config names.

    A line for each new sample: its id, its score, the class or value predicted, its
    probability and the calibrated one; scores and probabilities of several classes
    have a column each. Fields of what is not known are empty.
    """
    if not path:
        return None

    def write(found: Any) -> None:
        columns: list[tuple[str, Any]] = []
        for name, values in (
            ("score", found.scores),
            ("predicted", found.predicted),
            ("probability", found.probabilities),
            ("calibrated", found.calibrated),
        ):
            if values is None:
                values = np.full_like(found.scores, np.nan)
            several = values.ndim == 2
            rows = values.T if several else values[None]
            names = [f"{name}-{c}" for c in range(len(rows))] if several else [name]
            columns += zip(names, rows, strict=True)
        with Path(str(path)).open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(["id", *(name for name, _ in columns)])
            for i, sample in enumerate(found.sample_ids):
                numbers = [own[i] for _, own in columns]
                fields = ("" if np.isnan(x) else f"{x:.17g}" for x in numbers)
                lines.writerow([sample, *fields])

    return write
