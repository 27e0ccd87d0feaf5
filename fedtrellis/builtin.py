"""The app of the installed package, or of a directory, as ``fedtrellis`` runs it."""

from __future__ import annotations

import importlib
import operator
import sys
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedtrellis.app import App, pairs
from fedtrellis.app.command_line import flatten
from fedtrellis.settings import SettingsError


@lru_cache(maxsize=1)
def installed_app() -> App:
    """Make the app that ``sim.py`` makes in a checkout."""
    # in a wheel they lie in this package, and only there under these names
    names = (f"fedtrellis.{name}" for name in ("strategies", "clients", "tasks"))
    strategies, clients, tasks = map(importlib.import_module, names)
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
        module, _, name = reference.partition(":")
        try:
            loaded.append(operator.attrgetter(name)(importlib.import_module(module)))
            if not isinstance(loaded[-1], kind):
                found = type(loaded[-1]).__name__
                raise TypeError(f"it is a {found}, not a {kind.__name__}")
        except Exception as error:
            raise SettingsError(
                f"{path}: {key} = {reference!r} cannot be loaded: {one_line(error)}"
            ) from None
    config = flatten(app.get("config", {}))
    if "results-dir" not in config:
        raise SettingsError(
            f"{path}: [tool.flwr.app.config] has no key 'results-dir', under which the "
            "ServerApp writes its run's record (fedtrellis.server.records.RunRecord)"
        )
    name = str(project.get("project", {}).get("name", directory.name))
    server_app, made = loaded
    return FlowerApp(name, server_app, made, config)


def one_line(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, SettingsError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
