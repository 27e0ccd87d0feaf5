"""A Flower app of methods, tasks and domains: server_app, client_app, command line."""

from __future__ import annotations

import argparse
import contextlib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp

from fedtrellis.app.command_line import (
    add_run_options,
    flatten,
    guarded,
    parse_words,
    read_config,
)
from fedtrellis.app.experiment import Experiment
from fedtrellis.app.listing import print_list, write_config_block
from fedtrellis.app.nodes import CheckNodes, number_of_clients
from fedtrellis.app.registry import AppRegistry, Pair, RunSettings
from fedtrellis.domains import RUN_DOMAINS, Domain
from fedtrellis.server.callbacks import (
    Callback,
    EarlyStop,
    JsonLines,
    Progress,
    RoundRecord,
    json_log,
    summary_rows,
)
from fedtrellis.server.checkpoint import Checkpoint
from fedtrellis.server.options import RunOptions
from fedtrellis.server.records import (
    RunRecord,
    default_results_dir,
    ending_in_order,
    flwr_command,
    sim_command,
)
from fedtrellis.settings import SettingsError, check_choice, parse, parse_values
from fedtrellis.trackers import make_trackers, tracker_names
from fedtrellis.wire.client import by_name, client_app, name_of
from fedtrellis.wire.exchange import await_nodes
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.local_grid import LocalGrid

# what says how long and where to run, but not what is computed
_FREE = {
    *("resume", "results-dir", "rounds", "timeout", "checkpoint-every", "min-nodes"),
    *("max-failed-rounds", "answer-bound", "client-keys"),
    *("log-format", "picture", "track"),
}


class App:
    """Methods, tasks and domains, made into the two halves of a Flower app.

    ::

        app = App(methods=pairs(strategies, clients), tasks=TASKS.values())
        server_app, client_app = app.server_app, app.client_app

    What packages with an entry point in the group ``fedtrellis.plugins`` bring along
    is known to it, too: its ``registry`` has all that there is, by name.

    Parameters
    ----------
    methods : sequence of (strategy class, client class)
        The first is the default.
    tasks : sequence of type
        Subclasses of ``fedtrellis.tasks.Task``; the first is the default.
    domains : mapping of str to type
        Sets by name.

    Examples
    --------
    >>> from fedtrellis import clients, strategies, tasks
    >>> from fedtrellis.app import App, pairs
    >>> app = App(methods=pairs(strategies, clients), tasks=tasks.TASKS.values())
    >>> app.default_config()["method"]
    'fedfw'
    >>> settings = {"task": "lasso", "rounds": 3}
    >>> app.experiment(settings, 4).strategy().name
    'fedfw'
    """

    def __init__(
        self,
        methods: Iterable[Pair],
        tasks: Iterable[type[Any]],
        domains: Mapping[str, type[Domain]] = RUN_DOMAINS,
    ) -> None:
        self._made_of = tuple(methods), tuple(tasks), tuple(domains.items())
        self.registry = AppRegistry(*self._made_of[:2], domains)
        self.client_app = client_app(self.client_fn)
        self.server_app = ServerApp()
        self.server_app.main()(self._main)
        # a node asks for both with every message; more than one are for sweeps
        self._experiment = lru_cache(maxsize=4)(self._make)
        self._on_nodes = lru_cache(maxsize=4)(self._has_data_on_nodes)

    def __reduce__(self) -> Any:
        """By its name, or as what it was made of; never with what it caches."""
        name = name_of(self)
        if name is None:
            return _remade, (type(self), *self._made_of)
        return by_name, name

    def default_config(self) -> dict[str, Any]:
        """Every key of a run config with its default."""
        return dict(self.registry.defaults)

    def experiment(
        self, config: Mapping[str, Any], num_clients: int = 10
    ) -> Experiment:
        """A flat run config, checked and made into the run's parts; kept for a while.

        Keys that are not there have their defaults. SettingsError or FileNotFoundError
        if something is wrong with the settings; one line says what.
        """
        return self._experiment(tuple(config.items()), num_clients)

    def _make(self, items: tuple[tuple[str, Any], ...], num_clients: int) -> Experiment:
        return Experiment(self.registry, self.client_app, dict(items), num_clients)

    def _has_data_on_nodes(self, items: tuple[tuple[str, Any], ...]) -> bool:
        config = dict(items)
        kind = self.registry.choose("task", config.get("task", RunSettings.task))
        return bool(kind.from_config(config, 1, 0).on_nodes)

    def _main(self, grid: Grid, context: Context) -> None:
        self.run(grid, context.run_config)

    def client_fn(self, context: Context) -> NumPyClient:
        """The client of one node; its data is loaded once per process."""
        on_nodes = self._on_nodes(tuple(context.run_config.items()))
        count = number_of_clients(context, on_nodes)
        client: NumPyClient = self.experiment(context.run_config, count).node(context)
        return client

    # --------------------------------------------------------------------------- a run

    def run(
        self,
        grid: Grid,
        config: Mapping[str, Any],
        resume_command: Callable[[Path], str] = flwr_command,
    ) -> Path:
        """Run a flat config on any grid; return the directory of the run's record.

        Keys that are not there have their defaults. ``resume_command`` makes the
        command that an interrupted run names to go on.
        """
        as_json = parse(RunSettings, config).log_format == "json"
        with json_log() if as_json else contextlib.nullcontext():
            return self._run(grid, config, resume_command)

    def _run(
        self,
        grid: Grid,
        config: Mapping[str, Any],
        resume_command: Callable[[Path], str],
    ) -> Path:
        config = {**self.registry.defaults, **config}
        settings = parse(RunSettings, config)
        for key in ("results-dir", "resume", "initial-model"):
            # relative to what? a bundle's folder, or that of a SuperLink
            if config[key] and not Path(config[key]).expanduser().is_absolute():
                raise SettingsError(f"{key} = {config[key]!r} must be an absolute path")
        tracked = tracker_names(settings.track)
        options = parse_values(RunOptions, config)
        for kind in ("method", "task"):
            self.registry.choose(kind, config[kind])
        resume = None
        if settings.resume:
            resume = self._checkpoint(settings.resume, config)
            # after a SuperLink was started anew its nodes come back one by one; if
            # there are still too few then, the strategy says so
            with contextlib.suppress(TimeoutError):
                await_nodes(grid, len(Checkpoint(resume).keys), timeout=90.0)
        count = await_nodes(grid, options["min_nodes"], timeout=600.0)
        experiment = self.experiment(config, count)
        # finds what only the strategy can find wrong, before there is a record
        warnings = experiment.example._warnings()
        reference, point = experiment.reference(), experiment.start_point()
        task = experiment.task
        evaluated = options["client_evaluate_every"]
        hides = experiment.example.aggregator.exposed != "accept"
        if task.on_nodes and not (task.split_data or hides):
            evaluated = evaluated or options["evaluate_every"]
        if settings.stop_metric and not (task.on_nodes or evaluated):
            known = experiment.evaluate(experiment.layout.layers(point))
            check_choice("stop-metric", settings.stop_metric, known)

        parent = Path(settings.results_dir or default_results_dir())
        name = f"{settings.method}-{settings.task}"
        try:
            record = RunRecord.create(parent, name, config)
        except OSError as error:
            why = f"cannot be written: {error}"
            raise SettingsError(f"results-dir = {str(parent)!r} {why}") from None
        record.reference, record.picture = reference, settings.picture
        if settings.picture and find_spec("matplotlib") is None:
            log(INFO, 'no convergence.png: pip install "fedtrellis[plots]" draws one')
            record.picture = False
        about = repr(experiment.manifold or experiment.domain)
        if task.split_data:
            about = f"{task.method_options()['loss']} loss"
        record.title = f"{settings.method} on {settings.task}, {about}"
        record.warnings += warnings
        as_json = settings.log_format == "json"
        progress: Callback = Progress()
        if as_json:
            where = {"record": str(record.directory)}
            end: dict[str, Any] = {**where, "warnings": record.warnings}
            if reference is not None:
                end["reference_optimum"] = reference
            progress = JsonLines(where | {"settings": dict(config)}, end)
        examples = task.node_examples if task.on_nodes else None
        first = CheckNodes(options["min_nodes"], examples)
        callbacks: list[Callback] = [first, record, progress]
        callbacks += make_trackers(tracked, record.directory)
        if settings.stop_metric:
            callbacks.append(EarlyStop(settings.stop_metric, settings.stop_tolerance))
        with ending_in_order(record, resume_command, as_json):
            strategy = experiment.strategy(
                callbacks=callbacks,
                checkpoint=record.checkpoint,
                resume=resume,
                client_evaluate_every=evaluated,
            )
            experiment.start(strategy, grid, point=point)
        if not as_json:
            _print_summary(record, strategy.history)
        return record.directory

    def _saved(self, directory: Path) -> dict[str, Any]:
        """The settings of a record, but for those of other methods and tasks."""
        try:
            text = (directory / "config.toml").read_text(encoding="utf-8")
            saved = flatten(tomllib.loads(text))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            raise SettingsError(
                f"resume = {str(directory)!r} is not the record of a run"
            ) from None
        return self.registry.without_foreign(saved)

    def _checkpoint(self, resume: str, config: Mapping[str, Any]) -> Path:
        """The checkpoint in a record's directory, if it is of a run like this one."""
        directory = Path(resume).expanduser()
        saved = self._saved(directory)
        method = self.registry.choose("method", config["method"])
        free = {f"{method.name}.{key}" for key in method.strategy._free_to_change}
        for key, value in saved.items():
            fixed = key in self.registry.fields and key not in _FREE | free
            if fixed and config.get(key) != value:
                raise SettingsError(
                    f"resume: {key} = {config.get(key)!r}, but the run had {value!r}; "
                    "give its settings again with "
                    f"{directory.resolve() / 'resume.toml'}"
                )
        checkpoint = directory / "checkpoint.npz"
        if not checkpoint.is_file():
            raise SettingsError(
                f"resume = {resume!r}: the run ended before its first checkpoint, "
                f"after checkpoint-every = {saved.get('checkpoint-every')} rounds"
            )
        return checkpoint

    # ---------------------------------------------------------------- the command line

    def command_line(self, arguments: Sequence[str] | None = None) -> int:
        """``python sim.py``: its exit status."""
        parser = argparse.ArgumentParser(
            prog="python sim.py",
            description="Run a federated method in this process, as Flower would.",
        )
        add_run_options(parser)
        parser.add_argument(
            "--list",
            nargs="?",
            const="",
            metavar="NAME",
            help="what can be set, all or of one method or task, and stop",
        )
        parser.add_argument(
            "--write-config",
            action="store_true",
            help="write every key with its default into ./pyproject.toml, and stop",
        )
        options = parse_words(parser, arguments)

        def act() -> None:
            if options.list is not None:
                print_list(self.registry, options.list or None)
            elif options.write_config:
                write_config_block(self.registry, Path("pyproject.toml"))
            else:
                self.run_in_process(options, sim_command)

        return guarded(act, "sim.py", options)

    def run_in_process(
        self,
        options: argparse.Namespace,
        resume_command: Callable[[Path, int, Sequence[str]], str],
    ) -> None:
        """Run what the command line says on a grid in this process."""
        config = self.default_config()
        overrides = read_config(options.run_config)
        if overrides.get("resume"):
            # a record knows its own settings; what is given here comes on top
            config |= self._saved(Path(str(overrides["resume"])).expanduser())
        self.registry.check_known({"method": config["method"]} | overrides, "-c")
        config |= overrides
        if options.format is not None:
            config["log-format"] = options.format
        options.as_json = config["log-format"] == "json"
        if options.out is not None:
            config["results-dir"] = str(Path(options.out).expanduser().resolve())
        if config["resume"]:
            config["resume"] = str(Path(str(config["resume"])).expanduser().resolve())
        nodes, words = options.nodes, options.node_config
        entries = read_config(words, "--node-config")
        texts = {key: text for key, text in entries.items() if type(text) is str}
        node_configs = [
            entries | {k: t.replace("{partition}", str(i)) for k, t in texts.items()}
            for i in range(nodes)
        ]
        grid = LocalGrid(
            self.client_app,
            nodes,
            # checked here, so that a bad value is reported before anything is built
            seed=parse_values(RunOptions, config)["seed"],
            run_config=config,
            node_configs=node_configs if words and nodes > 0 else None,
            batched=True,
            workers=options.workers,
        )
        with contextlib.closing(grid):
            self.run(grid, config, lambda path: resume_command(path, nodes, words))


@lru_cache(maxsize=1)
def _remade(kind: type[App], methods: Any, tasks: Any, domains: Any) -> App:
    """An app of another process; the same one each time that it arrives."""
    return kind(methods, tasks, dict(domains))


def _print_summary(record: RunRecord, history: list[RoundRecord]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=record.title, show_header=False, title_justify="left")
    rows = [("ended", record.status), *summary_rows(history)]
    if record.reference is not None:
        losses = [r.metrics["loss"] for r in history if "loss" in r.metrics]
        rows.insert(2, ("loss − F*", f"{losses[-1] - record.reference:.6g}"))
    for name, value in rows:
        table.add_row(name, value)
    console = Console(soft_wrap=True)
    console.print(table)
    for warning in record.warnings:
        console.print(warning, style="bold red", markup=False)
    # one unbroken line, to be copied
    print(f"Record: {record.directory}", flush=True)
