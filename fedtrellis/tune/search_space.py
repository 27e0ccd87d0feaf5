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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedtrellis.random import generator
from fedtrellis.settings import AUTO, SettingsError, check_choice

__all__ = ["Dimension", "SearchSpace", "check_key"]

_SCALES = ("log", "linear")
_DRAWS = 1000  # in a row without new settings: then there are none left


@dataclass(frozen=True)
class Dimension:
    """What one key of the run config may be.

    Attributes
    ----------
    key : str
    values : tuple
        All it may be; empty where it has bounds.
    low, high : float
        Inclusive bounds.
    scale : {"log", "linear"}
        What is uniform, log10 of the value (as in the paper) or the value.
    whole : bool
        Whether only whole numbers are allowed.
    """

    key: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    scale: Literal["log", "linear"] = "log"
    whole: bool = False

    @classmethod
    def parse(cls, key: str, table: Mapping[str, Any], default: Any) -> Dimension:
        """Check a key's table; the default's type is the key's.

        Raises
        ------
        SettingsError
            Naming the key, what it says and what is allowed.
        """
        for name in table:
            check_choice(f"{key}: entry", name, ("values", "low", "high", "scale"))
        if "values" in table:
            values = table["values"]
            if len(table) > 1:
                raise SettingsError(f"{key}: values goes without low, high and scale")
            if not isinstance(values, list) or not values:
                raise SettingsError(
                    f"{key}: values = {values!r} must be a list with an entry"
                )
            if default != AUTO:
                values = [_typed(key, value, default) for value in values]
            return cls(key, tuple(values))
        if isinstance(default, bool | str) and default != AUTO:
            raise SettingsError(
                f"{key}: its default {default!r} is no number; give values = [...]"
            )
        for name in ("low", "high"):
            if name not in table:
                raise SettingsError(f"{key}: {name} is missing; or give values = [...]")
        number = 0.0 if default == AUTO else default
        low, high = (_typed(key, table[name], number) for name in ("low", "high"))
        scale = check_choice(f"{key}: scale", table.get("scale", "log"), _SCALES)
        if not low < high:
            raise SettingsError(f"{key}: low = {low!r} must be below high = {high!r}")
        if scale == "log" and low <= 0:
            raise SettingsError(
                f"{key}: low = {low!r} must be above 0 for scale = 'log'; "
                "allowed too: scale = 'linear'"
            )
        whole = isinstance(default, int)
        return cls(key, (), low, high, "log" if scale == "log" else "linear", whole)

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a value; of the type that the run config wants."""
        if self.values:
            return self.values[int(rng.integers(len(self.values)))]
        if self.scale == "log":
            # 10^u, u uniform on [log10 low, log10 high]
            value = 10.0 ** rng.uniform(math.log10(self.low), math.log10(self.high))
        elif self.whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        else:
            value = rng.uniform(self.low, self.high)
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        # digits that a person can copy
        return float(min(max(float(f"{value:.6g}"), self.low), self.high))


def _typed(key: str, value: Any, default: Any) -> Any:
    """Return a value as the type of the key's default."""
    kind = type(default)
    if kind is float and type(value) is int:
        value = float(value)
    names = {float: "a number", int: "a whole number", bool: "true or false"}
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise SettingsError(
            f"{key} = {value!r} must be {names.get(kind, 'a text')}, as its default "
            f"{default!r} is"
        )
    return value


@dataclass(frozen=True)
class SearchSpace:
    """What a search file says.

    Attributes
    ----------
    dimensions : tuple of Dimension
    trials : int or None
        How many, if the file says so.
    """

    dimensions: tuple[Dimension, ...]
    trials: int | None = None

    @classmethod
    def read(cls, path: Path, config: Mapping[str, Any]) -> SearchSpace:
        """Read a search file in TOML.

        Parameters
        ----------
        path : path
        config : mapping
            All keys of the app's run config with their defaults.

        Raises
        ------
        SettingsError
            If the file cannot be read, or says what is not allowed.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"--search {str(path)!r}: {error}") from None
        trials = content.pop("trials", None)
        if trials is not None and (type(trials) is not int or trials < 1):
            raise SettingsError(
                f"--search: trials = {trials!r} must be a whole number, at least 1"
            )
        dimensions = []
        for key, table in _tables(content):
            check_key(f"--search {path.name!r}: key", key, config)
            dimensions.append(Dimension.parse(key, table, config[key]))
        if not dimensions:
            raise SettingsError(
                f"--search {str(path)!r} names no key; it needs tables such as "
                "[local-steps] with values = [...], or low = ... and high = ..."
            )
        return cls(tuple(dimensions), trials)

    def draw(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Draw different settings; fewer than asked for where there are no more.

        The first ones are the same for every ``count``, so that a search can go on.
        """
        rng = generator(seed, "search")
        found: list[dict[str, Any]] = []
        for _ in range(count):
            for _ in range(_DRAWS):
                one = {each.key: each.draw(rng) for each in self.dimensions}
                if one not in found:
                    found.append(one)
                    break
            else:
                return found
        return found


def check_key(where: str, key: str, config: Mapping[str, Any]) -> None:
    """Raise SettingsError, with the closest match, for a key that the app has not."""
    if key not in config:
        close = difflib.get_close_matches(key, config, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "its run config has no such"
        raise SettingsError(f"{where} = {key!r} is not known to the app ({hint})")


def _tables(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Keys and their tables; a table of tables only is part of a dotted key."""
    rows: list[tuple[str, Any]] = []
    for name, value in content.items():
        key = prefix + name
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"--search: {key} = {value!r} must be a table with values = [...], or "
                "low and high; a setting of all trials goes into -c"
            )
        if value and all(isinstance(entry, Mapping) for entry in value.values()):
            rows += _tables(value, f"{key}.")
        else:
            rows.append((key, value))
    return rows
