"""A Flower app from its directory: its two objects, its run config, and overrides.

An app is a directory whose pyproject.toml names a ServerApp and a ClientApp. To be
tuned, the ServerApp has to write the run's record
(:class:`fedtrellis.server.records.RunRecord`) under the directory that its setting
``results-dir`` names.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedtrellis.settings import SettingsError
from fedtrellis.wire.flower_internals import parse_config_args

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


def read_config(arguments: Sequence[str], option: str = "-c") -> dict[str, Any]:
    """Overrides from ``-c``: TOML files, or ``key=value`` pairs as flwr reads them.

    Parameters
    ----------
    arguments : sequence of str
    option : str
        Where they stood, for errors.

    Raises
    ------
    SettingsError
        If one cannot be read.
    """
    overrides: dict[str, Any] = {}
    for argument in arguments:
        try:
            if argument.endswith(".toml"):
                text = Path(argument).expanduser().read_text(encoding="utf-8")
                overrides |= flatten(tomllib.loads(text))
            else:
                pairs = parse_config_args([argument])
                # flwr passes over what it cannot read; the same pattern finds it
                rest = re.sub(r"\S+?=('[^']*'|\"[^\"]*\"|\S+)", "", argument).strip()
                if rest or not pairs:
                    raise ValueError(f"{rest!r} is no key=value")
                overrides |= pairs
        except (OSError, tomllib.TOMLDecodeError, ValueError) as error:
            raise SettingsError(f"{option} {argument!r}: {error}") from None
        except Exception as error:  # click's, whose message lies elsewhere
            message = _unquoted(argument) or getattr(error, "message", str(error))
            raise SettingsError(f"{option} {argument!r}: {message}") from None
    return overrides


def _unquoted(argument: str) -> str:
    """What to write instead of the first text without quotes; empty if all have some.

    A shell takes the quotes of ``-c method="fedgia"``, which has none around it all.
    """
    for key, value in re.findall(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", argument):
        try:
            tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError:
            said = f'{key}="{value.strip(chr(39) + chr(34))}"'
            return f"a text stands in double quotes, all of it in single ones: '{said}'"
    return ""


@dataclass(frozen=True)
class AppDirectory:
    """A Flower app: what its directory holds.

    Attributes
    ----------
    name : str
        The project's.
    server_app, client_app : flwr.serverapp.ServerApp, flwr.clientapp.ClientApp
    config : dict
        Every key of its run config with its default, flat.
    """

    name: str
    server_app: ServerApp
    client_app: ClientApp
    config: dict[str, Any]


@lru_cache(maxsize=1)
def load_app(directory: Path) -> AppDirectory:
    """Load an app's two objects from its directory.

    Raises
    ------
    SettingsError
        If there is no app, if it cannot be loaded, or if it has no ``results-dir``.
    """
    path = directory / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"APP_DIR {str(directory)!r} is no app: {error}") from None
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    objects = []
    for key, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        reference = components.get(key)
        if not isinstance(reference, str) or ":" not in reference:
            raise SettingsError(
                f"{path}: [tool.flwr.app.components] {key} = {reference!r} must be "
                "'module:object'"
            )
        objects.append(_load(directory, key, reference, kind))
    config = flatten(app.get("config", {}))
    if "results-dir" not in config:
        raise SettingsError(
            f"{path}: [tool.flwr.app.config] has no key 'results-dir', under which the "
            "ServerApp writes its run's record (fedtrellis.server.records.RunRecord)"
        )
    name = str(project.get("project", {}).get("name", directory.name))
    return AppDirectory(name, objects[0], objects[1], config)


def _load(directory: Path, key: str, reference: str, kind: type[Any]) -> Any:
    module, _, name = reference.partition(":")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        loaded = importlib.import_module(module)
        for part in name.split("."):
            loaded = getattr(loaded, part)
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
