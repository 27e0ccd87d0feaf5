"""A Flower app of methods, tasks and domains: server_app, client_app, command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from logging import INFO, WARNING
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, cast

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedtrellis.app.command_line import (
    Parser,
    add_run_options,
    flatten,
    perform,
    read_config,
    read_seeds,
)
from fedtrellis.app.experiment import CheckNodes, Experiment
from fedtrellis.app.registry import (
    AppRegistry,
    Config,
    Pair,
    RunSettings,
    pairs,
    print_list,
    write_config_block,
)
from fedtrellis.files import stamp
from fedtrellis.server.callbacks import RISING, Callback, EarlyStop, JsonLines, Progress
from fedtrellis.server.options import RunOptions
from fedtrellis.server.records import (
    DEFAULT_NODES,
    Checkpoint,
    RunRecord,
    default_results_dir,
    ending_in_order,
    flwr_command,
    sim_command,
)
from fedtrellis.settings import (
    CodedError,
    SettingsError,
    check_choice,
    parse,
    parse_values,
    refused,
)
from fedtrellis.signals import Interrupted
from fedtrellis.trackers import make_trackers
from fedtrellis.wire.client import by_name, client_app
from fedtrellis.wire.exchange import RunError, Traffic, await_nodes, exchange
from fedtrellis.wire.flower_internals import is_simulation, log
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.protocol import AGREED
from fedtrellis.wire.summing import hides

# how nodes' tables are prepared
_AGREED_KEY = "data.agreed"
# what says how long and where to run, but not what is computed
_FREE = {
    *("resume", "results-dir", "rounds", "timeout", "checkpoint-every", "min-nodes"),
    *("max-failed-rounds", "answer-bound", "client-keys", "quorum", "max-delay"),
    *("local-deadline", "log-format", "picture", "track"),
}


class App:
    """Methods and tasks, made into the two halves of a Flower app.

    They are its ``server_app`` and its ``client_app``; its ``registry`` has all that
    there is, by name, also of packages with an entry point in ``fedtrellis.plugins``.

    Parameters
    ----------
    methods : sequence of (strategy class, client class)
    tasks : sequence of type
        Subclasses of ``fedtrellis.tasks.Task``.

    Examples
    --------
    >>> from fedtrellis import clients, strategies, tasks
    >>> from fedtrellis.app import App, pairs
    >>> app = App(methods=pairs(strategies, clients), tasks=tasks.TASKS.values())
    >>> app.experiment({"task": "lasso", "rounds": 3}, 4).strategy().name
    'fedfw'
    """

    def __init__(self, methods: Iterable[Pair], tasks: Iterable[type[Any]]) -> None:
        self._made_of = tuple(methods), tuple(tasks)
        self.registry = AppRegistry(*self._made_of)
        self.client_app = client_app(self.client_fn)
        self.client_app.query("table")(self._summarise)
        self.server_app = ServerApp()
        self.server_app.main()(self._main)
        # a node asks for it with every message; more than one are for sweeps
        self._experiment = lru_cache(maxsize=4)(
            lambda items, num_clients, _stamp: Experiment(
                self, dict(items), num_clients
            )
        )

    def __reduce__(self) -> Any:
        """By its name, or as what it was made of; never with what it caches."""
        return by_name(self) or (_remade, self._made_of)

    def _main(self, grid: Grid, context: Context) -> None:
        try:
            self.run(grid, context.run_config)
        except Interrupted:
            # elsewhere Flower's own thread is ending the process
            if threading.current_thread() is threading.main_thread():
                raise
        except (SettingsError, RunError, TimeoutError) as error:
            # Flower prints all of a traceback, which says nothing more
            raise error.with_traceback(None) from None

    def default_config(self) -> dict[str, Any]:
        """Every key of a run config with its default."""
        return dict(self.registry.defaults)

    def experiment(self, config: Config, num_clients: int = 10) -> Experiment:
        """A run config, checked and made into the run's parts; kept for a while.

        SettingsError or FileNotFoundError: one line says which setting is wrong.
        """
        paths = (str(config.get(key, "")) for key in self.registry.paths)
        return self._experiment(tuple(config.items()), num_clients, stamp(*paths))

    def client_fn(self, context: Context) -> NumPyClient:
        """The client of one node; its data is loaded once per process."""
        count = context.node_config.get("num-partitions")
        # a node that needs this and lacks it is refused
        count = count if isinstance(count, int) else 1
        config: Config = context.run_config
        if AGREED in context.state:
            agreed = cast(ConfigRecord, context.state[AGREED])[AGREED]
            config = {**config, _AGREED_KEY: str(agreed)}
        client: NumPyClient = self.experiment(config, count).node(context)
        return client

    def _summarise(self, message: Message, context: Context) -> Message:
        """What a node says of its own table's columns; null if it keeps that."""
        config = {**self.registry.defaults, **context.run_config}
        task = self.registry.choose("task", config["task"]).from_config(config, 1, 0)
        found = None
        if not hides(context):
            asked = cast(ConfigRecord, message.content["config"])["asked"]
            found = task.table_summary(context.node_config, str(asked))
        record = ConfigRecord({"table": json.dumps(found)})
        return Message(RecordDict({"config": record}), reply_to=message)

    def settled(
        self, config: Config, ask: Callable[[str], list[dict[str, Any] | None]]
    ) -> dict[str, Any]:
        """A run config with what nodes agree on of their tables, where they may.

        ``ask`` returns what nodes say of their columns, None for one that keeps it.
        """
        kind = self.registry.choose("task", config["task"])
        task = kind.from_config(config, 1, 0)
        hidden = config["aggregation"] in ("secure-sum", "private")
        hidden |= config["privacy"] != "none"
        # nodes of split data have methods of their own
        wanted = task.prepares and task.on_nodes and not task.split_data
        wanted &= task.nodes.prepare
        if config[_AGREED_KEY] or not wanted:
            return dict(config)
        kept: list[bool] = [hidden]

        def known(asked: str) -> list[dict[str, Any]]:
            found = ask(asked)
            kept.extend(one is None for one in found)
            return [one for one in found if one is not None]

        agreed = "" if hidden else task.agree_on_tables(known)
        if any(kept):
            why = "features are taken as they are, as nodes keep their means (secure "
            why += "sums, noise or keys), or a file has no columns"
            if task.nodes.categories or task.nodes.bad_rows != "refuse":
                raise SettingsError(
                    f"data.categories or data.bad-rows is set, and {why}"
                )
            agreed = ""
            log(INFO, why)
        return {**config, _AGREED_KEY: agreed}

    def run(
        self,
        grid: Grid,
        config: Config,
        resume_command: Callable[[Path], str] | None = None,
    ) -> Path:
        """Run a flat config on any grid; return the directory of the run's record.

        ``resume_command`` makes what an interrupted run names to go on, by default a
        ``flwr run``.
        """
        config = {**self.registry.defaults, **config}
        experiment, resume = self._meet(grid, config)
        task, settings = experiment.task, experiment.run
        # finds what only the strategy can find wrong, before there is a record
        warnings = experiment.example._warnings()
        reference, point = experiment.reference(), experiment.start_point()
        elsewhere = experiment.options["client_evaluate_every"] > 0
        if settings.stop_metric and not task.on_nodes:
            known = {*experiment.evaluate(experiment.layout.layers(point))}
            known |= {*experiment.entry.strategy._measures}
            known |= {"loss", *task.node_metrics} if elsewhere else set()
            check_choice("stop-metric", settings.stop_metric, sorted(known))
        record = _record_of(experiment)
        record.reference, record.warnings = reference, warnings
        record.baseline, record.meaning = task.baseline(), task.meaning()
        if resume_command is None:
            nodes = len(list(grid.get_node_ids())) if is_simulation(grid) else 0
            resume_command = partial(flwr_command, nodes=nodes)
        record.resume = resume_command(record.directory)
        examples = task.nodes.examples if task.on_nodes else None
        called = [
            CheckNodes(experiment.options["min_nodes"], examples),
            record,
            _progress(experiment.config, record),
            *make_trackers(settings.track, record.directory),
        ]
        if settings.stop_metric:
            called.insert(0, EarlyStop(settings.stop_metric, settings.stop_tolerance))
        with ending_in_order(record):
            strategy = experiment.strategy(
                callbacks=called, checkpoint=record.checkpoint, resume=resume
            )
            strategy.agreed = experiment.config[_AGREED_KEY]
            experiment.start(strategy, grid, point=point)
        if settings.log_format == "text":
            for line in (f"Ended: {record.status}", *warnings):
                print(line)
            losses = [r.metrics.get("loss") for r in strategy.history]
            if reference is not None and losses[-1] is not None:
                print(f"loss − F* = {losses[-1] - reference:.6g}")
            print(f"Record: {record.directory}", flush=True)
        return record.directory

    def _meet(self, grid: Grid, config: Config) -> tuple[Experiment, Path | None]:
        """Check what can be before nodes are there; the run, and where it goes on."""
        settings = parse(RunSettings, config)
        for key in ("results-dir", "resume", "initial-model"):
            # relative to what? a bundle's folder, or that of a SuperLink
            if config[key] and not Path(config[key]).expanduser().is_absolute():
                raise refused(key, config[key], "must be an absolute path")
        if settings.stop_tolerance and not settings.stop_metric:
            why = "has no effect without a stop-metric"
            raise refused("stop-tolerance", settings.stop_tolerance, why)
        if settings.stop_metric in RISING and settings.stop_tolerance <= 0.0:
            why = f"would stop the first round by {settings.stop_metric}"
            raise refused("stop-tolerance", settings.stop_tolerance, why)
        options = parse_values(RunOptions, config)
        make_trackers(settings.track, Path())
        self.registry.choose("method", settings.method)
        self.registry.choose("task", settings.task)
        resume = None
        if settings.resume:
            resume = self._checkpoint(settings.resume, config)
            # after a SuperLink was started anew its nodes come back one by one; if
            # there are still too few then, the strategy says so
            with contextlib.suppress(TimeoutError):
                await_nodes(grid, len(Checkpoint(resume).keys), timeout=90.0)
        count = await_nodes(grid, options["min_nodes"], timeout=600.0)
        ask = partial(_ask_for_tables, grid, float(config["timeout"]))
        return self.experiment(self.settled(config, ask), count), resume

    def _saved(self, directory: Path) -> dict[str, Any]:
        """The settings of a record, but for those of other methods and tasks."""
        try:
            text = (directory / "config.toml").read_text(encoding="utf-8")
            saved = flatten(tomllib.loads(text))
        except (OSError, ValueError):
            why = "is not the record of a run"
            raise refused("resume", str(directory), why) from None
        return self.registry.without_foreign(saved)

    def _checkpoint(self, resume: str, config: Config) -> Path:
        """The checkpoint in a record's directory, if it is of a run like this one."""
        directory = Path(resume).expanduser()
        saved, method = self._saved(directory), config["method"]
        free = self.registry.methods[method].strategy._free_to_change
        ignored = {f"{method}.{key}" for key in free} | _FREE
        for key, value in saved.items():
            fixed = key in self.registry.fields and key not in ignored
            if fixed and config.get(key) != value:
                why = f"differs: the run had {value!r}; resume.toml has its settings"
                raise refused(f"resume: {key}", config.get(key), why)
        checkpoint = directory / "checkpoint.npz"
        if not checkpoint.is_file():
            why = "has no checkpoint yet: there is one after"
            every = saved.get("checkpoint-every")
            raise refused("resume", resume, f"{why} checkpoint-every = {every} rounds")
        return checkpoint

    def command_line(self, arguments: Sequence[str] | None = None) -> int:
        """``python sim.py``: its exit status."""
        parser = Parser(
            prog="sim.py",
            usage="python sim.py [options]",
            description="Run a federated method in this process, as Flower would.",
        )
        add_run_options(parser)
        add = parser.add_argument
        text = "what can be set, all or of one method or task, and stop"
        add("--list", nargs="?", const="", metavar="NAME", help=text)
        text = "write every key with its default into ./pyproject.toml, and stop"
        add("--write-config", action="store_true", help=text)

        def act(options: argparse.Namespace) -> None:
            if options.list is not None:
                print_list(self.registry, options.list or None)
            elif options.write_config:
                write_config_block(self.registry, Path("pyproject.toml"))
            else:
                self.run_in_process(options, "python sim.py")

        return perform(act, parser, arguments)

    def run_in_process(self, options: argparse.Namespace, program: str) -> list[Path]:
        """Run what a command line says on a grid in this process; the runs' records."""
        overrides = read_config(options.run_config)
        if options.format is not None:
            overrides["log-format"] = options.format
        if options.out is not None:
            overrides["results-dir"] = options.out
        config = self.default_config()
        if overrides.get("resume"):
            # a record knows its own settings; what is given here comes on top
            record = Path(str(overrides["resume"])).expanduser()
            config |= self._saved(record)
            path = record / "checkpoint.npz"
            if options.nodes is None and path.is_file():
                options.nodes = len(Checkpoint(path).keys)
        nodes = DEFAULT_NODES if options.nodes is None else options.nodes
        known = {key: config[key] for key in ("method", "task")}
        lists = {"fedtrellis run": "fedtrellis list"}.get(program, f"{program} --list")
        self.registry.check_known(known | overrides, "-c", lists)
        config |= overrides
        seeds = [config["seed"]]
        if options.seeds is not None:
            seeds = read_seeds(options.seeds)
            for key in ("seed", "resume"):
                if overrides.get(key) not in (None, ""):
                    raise refused(key, overrides[key], "does not go with --seeds")
        options.format = config["log-format"]
        words = options.node_config
        entries = read_config(words, "--node-config")
        texts = {k: text for k, text in entries.items() if isinstance(text, str)}
        node_configs = []
        for number in map(str, range(nodes)):
            own = {k: text.replace("{partition}", number) for k, text in texts.items()}
            node_configs.append(entries | own)
        again = partial(sim_command, node_configs=words, program=program)
        given = nodes, node_configs, options.workers, again
        return [self.run_on_nodes(config | {"seed": seed}, *given) for seed in seeds]

    def run_on_nodes(
        self,
        config: Config,
        nodes: int,
        node_configs: Sequence[Mapping[str, Any]] = (),
        workers: int = 1,
        resume_command: Callable[[Path], str] | None = None,
    ) -> Path:
        """:meth:`run` a config of all keys on a grid in this process."""
        # here relative paths have a meaning
        for key in ("results-dir", "resume"):
            if config[key]:
                path = Path(str(config[key])).expanduser().resolve()
                config = {**config, key: str(path)}
        grid = LocalGrid(
            self.client_app,
            nodes,
            # checked here, so that a bad value is reported before anything is built
            seed=parse_values(RunOptions, config)["seed"],
            run_config=config,
            node_configs=node_configs or None,
            batched=True,
            workers=workers,
        )
        here = partial(sim_command, node_configs=(), program="fedtrellis run")
        with contextlib.closing(grid):
            return self.run(grid, config, resume_command or here)


@lru_cache(maxsize=1)
def _remade(methods: tuple[Pair, ...], tasks: tuple[type[Any], ...]) -> App:
    """An app of another process; the same one each time that it arrives."""
    return App(methods, tasks)


def _ask_for_tables(grid: Grid, timeout: float, asked: str) -> list[Any]:
    """What the nodes that answer say of their tables' columns."""
    content = RecordDict({"config": ConfigRecord({"asked": asked})})
    nodes = grid.get_node_ids()
    requests = [Message(content, node, "query.table") for node in nodes]
    found, without = list[str](), dict[int, str]()
    for node, reply in exchange(grid, requests, timeout, Traffic()).items():
        if isinstance(reply, Message):
            found.append(str(cast(ConfigRecord, reply.content["config"])["table"]))
        else:
            without[node] = reply
    if without and not found:
        raise RunError(f"no node's table can be used: {next(iter(without.values()))}")
    for node, why in without.items():
        log(WARNING, "tables are prepared without node %s: %s", node, why)
    return list(map(json.loads, sorted(found)))  # nodes have no order of their own


def _record_of(experiment: Experiment) -> RunRecord:
    """A record of a run, where its results-dir says, with its title."""
    run, task = experiment.run, experiment.task
    parent = Path(run.results_dir or default_results_dir())
    name = f"{run.method}-{run.task}"
    try:
        record = RunRecord.create(parent, name, experiment.own_config)
    except OSError as error:
        why = f"cannot be written: {error}"
        raise refused("results-dir", str(parent), why) from None
    record.picture &= run.picture
    if run.picture and not record.picture:
        log(INFO, 'no convergence.png: pip install "fedtrellis[plots]" draws one')
    about = repr(experiment.manifold or experiment.domain)
    if task.split_data:
        about = f"{task.method_options()['loss']} loss"
    record.title = f"{run.method} on {run.task}, {about}"
    return record


def _progress(config: Config, record: RunRecord) -> Callback:
    """What prints a line a round."""
    if config["log-format"] == "text":
        return Progress()
    start = {"record": str(record.directory)}
    end: dict[str, Any] = {**start, "warnings": record.warnings}
    if record.reference is not None:
        end["reference_optimum"] = record.reference
    return JsonLines({**start, "settings": config}, end)


@lru_cache(maxsize=1)
def installed_app() -> App:
    """Make the app that ``sim.py`` makes in a checkout."""
    # in a wheel they lie in this package, and only there under these names
    names = "fedtrellis.strategies", "fedtrellis.clients", "fedtrellis.tasks"
    strategies, clients, tasks = map(import_module, names)
    return App(methods=pairs(strategies, clients), tasks=tasks.TASKS.values())


class FlowerApp(NamedTuple):
    """A Flower app: its project's name, its two objects, its run config's defaults."""

    name: str
    server_app: ServerApp
    client_app: ClientApp
    config: dict[str, Any]


@lru_cache(maxsize=1)
def load_app(directory: Path | None) -> FlowerApp:
    """Load an app from its directory; None: the package's own.

    SettingsError if there is no app, if it cannot be loaded, or if it has no
    ``results-dir``, under which a ServerApp that is to be tuned writes its record.
    """
    if directory is None:
        own = installed_app()
        config = own.default_config()
        return FlowerApp("fedtrellis", own.server_app, own.client_app, config)
    path = directory / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"APP_DIR {str(directory)!r} is no app: {error}") from None
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    sys.path.insert(0, str(directory))
    loaded: list[Any] = []
    for key, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        reference = str(app.get("components", {}).get(key, ""))
        try:
            loaded.append(resolve_name(reference))
            if not isinstance(loaded[-1], kind):
                found = type(loaded[-1]).__name__
                raise TypeError(f"it is a {found}, not a {kind.__name__}")
        except Exception as error:
            why = f"{key} = {reference!r} cannot be loaded: {one_line(error)}"
            raise SettingsError(f"{path}: {why}") from None
    config = flatten(app.get("config", {}))
    if "results-dir" not in config:
        why = "under which the ServerApp writes its run's record, a RunRecord"
        raise SettingsError(f"{path}: its run config has no 'results-dir', {why}")
    name = str(project.get("project", {}).get("name", directory.name))
    server_app, made = loaded
    return FlowerApp(name, server_app, made, config)


def one_line(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, CodedError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
