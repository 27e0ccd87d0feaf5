"""The app of the installed package: all its methods and tasks, and plug-ins'."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from fedtrellis.app import App, pairs
from fedtrellis.app.directory import AppDirectory

__all__ = ["installed_app", "own_app"]


@lru_cache(maxsize=1)
def installed_app() -> App:
    """Make the app that ``sim.py`` makes in a checkout."""
    # in a wheel they lie in this package, and only there under these names
    strategies = import_module("fedtrellis.strategies")
    clients = import_module("fedtrellis.clients")
    tasks = import_module("fedtrellis.tasks")
    return App(methods=pairs(strategies, clients), tasks=tasks.TASKS.values())


def own_app() -> AppDirectory:
    """The same, as ``fedtrellis tune`` takes an app."""
    app = installed_app()
    config = app.default_config()
    return AppDirectory("fedtrellis", app.server_app, app.client_app, config)
