"""The settings that a search tries: a TOML file of keys with values or bounds.

A table for each key of the app's run config that is to be searched over::

    trials = 20                  # optional

    [fedgia.local-steps]
    values = [1, 2, 5, 10]

    [fedgia.sigma-scale]
    low = 0.1                    # both inclusive
    high = 10.0
    scale = "log"                # the default; or "linear"

Whether a number is whole is what the key's default in the app's pyproject.toml is.
Where that is ``"auto"``, bounds are those of numbers that need not be whole, and values
are for the app to check.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fedtrellis.settings import AUTO, SettingsError, check_choice

__all__ = ["check_key", "read_space"]


def read_space(
    path: Path, config: Mapping[str, Any]
) -> tuple[dict[str, BaseDistribution], int | None]:
    """Read a search file: what each key may be, and the number of trials if it has it.

    ``config`` has all keys of the app's run config with their defaults. SettingsError
    if the file cannot be read, or has what is not allowed.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--search {str(path)!r}: {error}") from None
    trials = content.pop("trials", None)
    if trials is not None and (type(trials) is not int or trials < 1):
        raise SettingsError(
            f"--search: trials = {trials!r} must be a whole number, at least 1"
        )
    space = {}
    for key, table in _tables(content):
        check_key(f"--search {path.name!r}: key", key, config)
        space[key] = _distribution(key, table, config[key])
    if not space:
        raise SettingsError(
            f"--search {str(path)!r} names no key; it needs tables with values = "
            "[...], or low = ... and high = ..."
        )
    return space, trials


def check_key(where: str, key: str, config: Mapping[str, Any]) -> None:
    """Raise SettingsError, with the closest match, for a key that the app has not."""
    if key not in config:
        close = difflib.get_close_matches(key, config, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "its run config has no such"
        raise SettingsError(f"{where} = {key!r} is not known to the app ({hint})")


def _tables(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and their tables; a table of tables only is part of a dotted key."""
    for name, value in content.items():
        key = prefix + name
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"--search: {key} = {value!r} must be a table with values = [...], or "
                "low and high; a setting of all trials goes into -c"
            )
        if value and all(isinstance(entry, Mapping) for entry in value.values()):
            yield from _tables(value, f"{key}.")
        else:
            yield key, value


def _distribution(key: str, table: Mapping[str, Any], default: Any) -> BaseDistribution:
    """What a key may be, of the type of its default."""
    allowed = ("values",) if "values" in table else ("low", "high", "scale")
    for name in table:
        check_choice(f"{key}: entry", name, allowed)
    if "values" in table:
        values = table["values"]
        if not isinstance(values, list) or not values:
            raise SettingsError(f"{key}: values = {values!r} must be a list of some")
        return CategoricalDistribution([_typed(key, v, default) for v in values])
    if isinstance(default, bool | str) and default != AUTO:
        raise SettingsError(f"{key}: its default {default!r} is no number; give values")
    if not {"low", "high"} <= table.keys():
        raise SettingsError(f"{key} needs low and high, or values = [...]")
    number = 0.0 if default == AUTO else default
    low, high = (_typed(key, table[name], number) for name in ("low", "high"))
    scale = check_choice(f"{key}: scale", table.get("scale", "log"), ("log", "linear"))
    kind = IntDistribution if isinstance(default, int) else FloatDistribution
    try:
        return kind(low, high, log=scale == "log")
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def _typed(key: str, value: Any, default: Any) -> Any:
    """Return a value as the type of the key's default."""
    kind = type(default)
    if default == AUTO:
        return value  # the app checks it
    if kind is float and type(value) is int:
        value = float(value)
    names = {float: "a number", int: "a whole number", bool: "true or false"}
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise SettingsError(
            f"{key} = {value!r} must be {names.get(kind, 'a text')}, as its default "
            f"{default!r} is"
        )
    return value
