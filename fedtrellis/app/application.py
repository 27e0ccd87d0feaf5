"""A Flower app of methods, tasks and domains: server_app, client_app, command line."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.serverapp import Grid, ServerApp

from fedtrellis.app.experiment import Experiment
from fedtrellis.app.nodes import make_client
from fedtrellis.app.registry import Pair, Registry
from fedtrellis.app.settings import RunSettings
from fedtrellis.app.setup import make_experiment
from fedtrellis.domains import RUN_DOMAINS, Domain
from fedtrellis.wire.client import by_name, client_app, name_of

__all__ = ["App"]

# Settings alive in one process: more only in tests and sweeps.
_KEPT = 4


@dataclass
class _Known:
    """A run config that has been read, and the experiments made of it.

    Attributes
    ----------
    config : dict
    on_nodes : bool
        Whether every node has its own data.
    experiments : dict
        By the number of clients.
    """

    config: dict[str, Any]
    on_nodes: bool
    experiments: dict[int, Experiment] = field(default_factory=dict)


class App:
    """Methods, tasks and domains, made into the two halves of a Flower app.

    ::

        app = App(methods=pairs(strategies, clients), tasks=TASKS.values())
        server_app, client_app = app.server_app, app.client_app

    What packages with an entry point in the group ``fedtrellis.plugins`` bring along
    is known to it, too.

    Parameters
    ----------
    methods : sequence of (strategy class, client class)
        The first is the default.
    tasks : sequence of type
        Subclasses of ``fedtrellis.tasks.Task``; the first is the default.
    domains : mapping of str to type
        Sets by name.

    Attributes
    ----------
    registry : Registry
        All that there is, by name.
    server_app, client_app : flwr.serverapp.ServerApp, flwr.clientapp.ClientApp

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
        self._made_of = tuple(methods), tuple(tasks), dict(domains)
        self.registry = Registry(*self._made_of)
        self.client_app = client_app(self.client_fn)
        self.server_app = ServerApp()
        self.server_app.main()(self._main)
        self._configs: OrderedDict[Any, _Known] = OrderedDict()

    def __reduce__(self) -> Any:
        """By its name, or as what it was made of; never with what it caches."""
        name = name_of(self)
        if name is None:
            return _remade, (self._token, type(self), *self._made_of)
        return by_name, name

    @cached_property
    def _token(self) -> str:
        """What tells this app from others, in whatever process it arrives."""
        return secrets.token_hex(8)

    def default_config(self) -> dict[str, Any]:
        """Every key of a run config with its default."""
        return self.registry.default_config()

    def experiment(
        self, config: Mapping[str, Any], num_clients: int = 10
    ) -> Experiment:
        """A run config, checked and made into the run's parts; kept for a while.

        Parameters
        ----------
        config : mapping
            Flat. Keys that are not there have their defaults.
        num_clients : int

        Raises
        ------
        SettingsError, FileNotFoundError
            Something is wrong with the settings; one line says what.
        """
        known = self._known(config)
        if num_clients not in known.experiments:
            known.experiments[num_clients] = make_experiment(
                self.registry, self.client_app, known.config, num_clients
            )
        return known.experiments[num_clients]

    def client_fn(self, context: Context) -> NumPyClient:
        """The client of one node; its data is loaded once per process."""
        known = self._known(context.run_config)
        return make_client(self.experiment, known.on_nodes, context)

    def _known(self, config: Mapping[str, Any]) -> _Known:
        """What has been read of a run config; a node asks for it with every message."""
        key = tuple(config.items())
        found = self._configs.get(key)
        if found is None:
            self.registry.check_known(config, "run config:")
            kind = self.registry.choose("task", config.get("task", RunSettings.task))
            found = _Known(dict(config), kind.from_config(config, 1, 0).on_nodes)
            self._configs[key] = found
            while len(self._configs) > _KEPT:
                self._configs.popitem(last=False)
        return found

    def run(self, grid: Grid, config: Mapping[str, Any]) -> Path:
        """Run on any grid; return the directory of the run's record."""
        from fedtrellis.app.run import run

        return run(self.registry, self.experiment, grid, config)

    def _main(self, grid: Grid, context: Context) -> None:
        """Run what the run config says, and print how it went."""
        from fedtrellis.app.run import run_and_report

        run_and_report(self.registry, self.experiment, grid, context.run_config)

    def command_line(self, arguments: Sequence[str] | None = None) -> int:
        """``python sim.py``: its exit status."""
        from fedtrellis.app.command_line import main

        return main(self, arguments)


# Of apps that no module holds, made anew in this process: one each.
_REMADE: dict[str, App] = {}


def _remade(token: str, kind: type[App], *made_of: Any) -> App:
    """An app that another process has; the same one each time that it arrives."""
    if token not in _REMADE:
        _REMADE.clear()
        _REMADE[token] = kind(*made_of)
    return _REMADE[token]
