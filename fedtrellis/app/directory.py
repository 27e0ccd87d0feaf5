"""A Flower app from its directory: its two objects, its run config, and overrides."""

from __future__ import annotations

import importlib
import operator
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedtrellis.settings import SettingsError

__all__ = ["AppDirectory", "flatten", "load_app", "one_line", "read_config"]


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A run config's tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as flwr has it


def read_config(arguments: Sequence[str], option: str = "-c") -> dict[str, Any]:
    """Overrides from ``-c``: TOML files, or ``key=value`` pairs as flwr reads them.

    SettingsError if one cannot be read; ``option`` is where they stood, for that.
    """
    overrides: dict[str, Any] = {}
    for argument in arguments:
        try:
            if argument.endswith(".toml"):
                text = Path(argument).expanduser().read_text(encoding="utf-8")
                overrides |= flatten(tomllib.loads(text))
                continue
            rest = _PAIR.sub("", argument).strip()
            pairs = _PAIR.findall(argument)
            if rest or not pairs:
                raise ValueError(f"{rest!r} is no key=value")
            for key, value in pairs:
                overrides |= flatten(_read_pair(key, value))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{option} {argument!r}: {error}") from None
    return overrides


def _read_pair(key: str, value: str) -> dict[str, Any]:
    """A pair as TOML; a shell takes the quotes of ``-c method="fedgia"``."""
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        bare = value.strip("'\"")
        raise ValueError(
            "a text stands in double quotes, all of it in single ones: "
            f"'{key}=\"{bare}\"'"
        ) from None


class AppDirectory(NamedTuple):
    """A Flower app: its project's name, its two objects, its run config's defaults."""

    name: str
    server_app: ServerApp
    client_app: ClientApp
    config: dict[str, Any]


@lru_cache(maxsize=1)
def load_app(directory: Path) -> AppDirectory:
    """Load an app's two objects from its directory.

    SettingsError if there is no app, if it cannot be loaded, or if it has no
    ``results-dir``, under which a ServerApp that is to be tuned writes its record.
    """
    path = directory / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"APP_DIR {str(directory)!r} is no app: {error}") from None
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    server_app = _load(path, "serverapp", components.get("serverapp"), ServerApp)
    made = _load(path, "clientapp", components.get("clientapp"), ClientApp)
    config = flatten(app.get("config", {}))
    if "results-dir" not in config:
        raise SettingsError(
            f"{path}: [tool.flwr.app.config] has no key 'results-dir', under which the "
            "ServerApp writes its run's record (fedtrellis.server.records.RunRecord)"
        )
    name = str(project.get("project", {}).get("name", directory.name))
    return AppDirectory(name, server_app, made, config)


def _load(path: Path, key: str, reference: Any, kind: type[Any]) -> Any:
    if not isinstance(reference, str) or ":" not in reference:
        raise SettingsError(
            f"{path}: [tool.flwr.app.components] {key} = {reference!r} must be "
            "'module:object'"
        )
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module, _, name = reference.partition(":")
    try:
        loaded = operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:
        raise SettingsError(
            f"{key} = {reference!r} of {directory} cannot be loaded: {one_line(error)}"
        ) from None
    if not isinstance(loaded, kind):
        raise SettingsError(
            f"{key} = {reference!r} of {directory} is a {type(loaded).__name__}, not a "
            f"{kind.__name__}"
        )
    return loaded


def one_line(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, SettingsError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
