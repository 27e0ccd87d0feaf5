"""A run with its record, on any grid."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedtrellis.app.directory import flatten
from fedtrellis.app.experiment import Experiment
from fedtrellis.app.nodes import CheckNodeData, CheckPartitions
from fedtrellis.app.registry import Registry
from fedtrellis.app.settings import RunSettings
from fedtrellis.server.callbacks import Callback, EarlyStop
from fedtrellis.server.checkpoint import checkpoint_clients
from fedtrellis.server.interruption import ending_in_order, flwr_command
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import JsonLines, Progress, json_log, print_json
from fedtrellis.server.records import RunRecord, default_results_dir, summary_rows
from fedtrellis.settings import SettingsError, check_choice, keys, parse, parse_values
from fedtrellis.trackers import make_trackers, tracker_names
from fedtrellis.wire.exchange import await_nodes
from fedtrellis.wire.flower_internals import log

__all__ = ["read_record", "run", "run_and_report"]

ExperimentOf = Callable[[Mapping[str, Any], int], Experiment]
ResumeCommand = Callable[[Path], str]


def run_and_report(
    registry: Registry,
    experiment_of: ExperimentOf,
    grid: Grid,
    config: Mapping[str, Any],
    resume_command: ResumeCommand = flwr_command,
) -> None:
    """:func:`run`; with a JSON log everything is a line of JSON, errors too."""
    if parse(RunSettings, config).log_format == "text":
        run(registry, experiment_of, grid, config, resume_command)
        return
    try:
        with json_log():
            run(registry, experiment_of, grid, config, resume_command)
    except BaseException as error:
        print_json("error", error=f"{type(error).__name__}: {error}")
        raise


def run(
    registry: Registry,
    experiment_of: ExperimentOf,
    grid: Grid,
    config: Mapping[str, Any],
    resume_command: ResumeCommand = flwr_command,
) -> Path:
    """Run on any grid; return the directory of the run's record.

    Parameters
    ----------
    registry : Registry
    experiment_of : callable
        Makes the experiment of a run config and a number of clients.
    grid : Grid
    config : mapping
        Flat.
    resume_command : callable
        Makes what an interrupted run tells of how to go on.
    """
    config = {**registry.default_config(), **config}
    settings = parse(RunSettings, config)
    for key, value in (
        ("results-dir", settings.results_dir),
        ("resume", settings.resume),
        ("initial-model", settings.initial_model),
    ):
        # relative to what? a bundle's folder, or that of a SuperLink started long ago
        if value and not Path(value).expanduser().is_absolute():
            raise SettingsError(f"{key} = {value!r} must be an absolute path")
    tracked = tracker_names(settings.track)
    options = parse_values(keys(LoopStrategy), LoopStrategy, config)
    for kind, name in (("method", settings.method), ("task", settings.task)):
        registry.choose(kind, name)
    resume = None
    if settings.resume:
        resume = _checkpoint_of(registry, settings.resume, config)
        # after a SuperLink was started anew its nodes come back one by one; if there
        # are still too few then, the strategy says so
        with contextlib.suppress(TimeoutError):
            await_nodes(grid, len(checkpoint_clients(resume)), timeout=90.0)
    count = await_nodes(grid, options["min_nodes"], timeout=600.0)
    experiment = experiment_of(config, count)
    experiment.check()
    reference = experiment.reference()
    point = experiment.start_point()
    task = experiment.task
    client_evaluate_every = options["client_evaluate_every"]
    if task.on_nodes and not task.split_data:
        client_evaluate_every = client_evaluate_every or options["evaluate_every"]
    if settings.stop_metric and not (task.on_nodes or client_evaluate_every):
        known = experiment.evaluate(experiment.layout.layers(point))
        check_choice("stop-metric", settings.stop_metric, known)

    record = _new_record(settings, config)
    record.reference, record.picture = reference, settings.picture
    if settings.picture and find_spec("matplotlib") is None:
        log(INFO, 'no convergence.png: pip install "fedtrellis[plots]" draws one')
        record.picture = False
    record.title = f"{settings.method} on {settings.task}, {experiment.about}"
    record.warnings += experiment.warnings
    first: Callback = CheckPartitions()
    if task.on_nodes:
        first = CheckNodeData(options["min_nodes"], task.node_examples)
    as_json = settings.log_format == "json"
    progress = JsonLines(*_json_fields(record, config)) if as_json else Progress()
    callbacks: list[Callback] = [first, record, progress]
    callbacks += make_trackers(tracked, record.directory)
    if settings.stop_metric:
        callbacks.append(EarlyStop(settings.stop_metric, settings.stop_tolerance))
    with ending_in_order(record, resume_command, as_json):
        strategy = experiment.strategy(
            callbacks=callbacks,
            checkpoint=record.checkpoint,
            resume=resume,
            client_evaluate_every=client_evaluate_every,
        )
        experiment.start(strategy, grid, point=point)
    if not as_json:
        _print_summary(record, strategy)
    return record.directory


def _new_record(settings: RunSettings, config: Mapping[str, Any]) -> RunRecord:
    parent = Path(settings.results_dir) if settings.results_dir else None
    parent = parent or default_results_dir()
    try:
        return RunRecord.create(parent, f"{settings.method}-{settings.task}", config)
    except OSError as error:
        raise SettingsError(
            f"results-dir = {str(parent)!r} cannot be written: {error}"
        ) from None


def _json_fields(
    record: RunRecord, config: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first and the last line of a JSON log have besides the strategy's."""
    where = str(record.directory)
    end: dict[str, Any] = {"record": where, "warnings": record.warnings}
    if record.reference is not None:
        end["reference_optimum"] = record.reference
    return {"record": where, "settings": dict(config)}, end


# ------------------------------------------------------------------------------- resume

# what says how long and where to run, but not what is computed
_FREE = {
    "resume",
    "results-dir",
    "rounds",
    "timeout",
    "checkpoint-every",
    "min-nodes",
    "max-failed-rounds",
    "answer-bound",
    "client-keys",
    "log-format",
    "picture",
    "track",
}


def read_record(registry: Registry, directory: Path) -> dict[str, Any]:
    """The settings of a record, but for those of other methods and tasks.

    Raises
    ------
    SettingsError
        If the directory is no record.
    """
    try:
        text = (directory / "config.toml").read_text(encoding="utf-8")
        saved = flatten(tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise SettingsError(
            f"resume = {str(directory)!r} is not the record of a run"
        ) from None
    return registry.without_foreign(saved)


def _checkpoint_of(registry: Registry, resume: str, config: Mapping[str, Any]) -> Path:
    """The checkpoint in a record's directory, if it is of a run like this one."""
    directory = Path(resume).expanduser()
    if not (directory / "config.toml").is_file():
        raise SettingsError(f"resume = {resume!r} is not the record of a run")
    saved = read_record(registry, directory)
    method = registry.choose("method", str(config["method"]))
    free = _FREE | {f"{method.name}.{key}" for key in method.strategy.free_to_change}
    for key, value in saved.items():
        if key not in free and key in registry.fields and config.get(key) != value:
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


# ------------------------------------------------------------------------------ the end


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
