"""Typed, validated settings read from a Flower run config.

A group of settings is a frozen dataclass whose fields are made by :func:`setting`::

    @dataclass(frozen=True)
    class Penalty:
        penalty: float = setting(1e-3, "the penalty λ_0", minimum=0.0)

    Penalty.penalty                    # the default
    parse(Penalty, {"penalty": 0.5})   # checked, and made a float

Flower checks neither the types nor the ranges of a run config, so all of that happens
here, once, before anything starts: :class:`SettingsError` names the key, its value and
what is allowed, in one line.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

__all__ = ["SettingsError", "check_choice", "describe", "keys", "parse", "setting"]

Scalar = bool | int | float | str | bytes
T = TypeVar("T")


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message says which are."""


def setting(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare one field of a settings dataclass.

    Parameters
    ----------
    default : bool, int, float or str
        The value when the run config does not name the key.
    help : str
        One line for ``python sim.py --list`` and the documentation.
    choices : sequence of str, optional
        The only values allowed.
    minimum, maximum : float, optional
        Inclusive bounds.
    above : float, optional
        Exclusive lower bound.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "choices": tuple(choices) if choices is not None else None,
            "minimum": minimum,
            "maximum": maximum,
            "above": above,
        },
    )


def check_choice(key: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises
    ------
    SettingsError
        Naming the key, the value, what is allowed, and the closest match.
    """
    allowed = list(choices)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise SettingsError(
        f"{key} = {value!r} is not known{hint}; allowed: {', '.join(sorted(allowed))}"
    )


def _convert(key: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not kind:
        names = {float: "a number", int: "a whole number", bool: "true or false"}
        raise SettingsError(
            f"{key} = {value!r} must be {names.get(kind, 'a text')}, "
            f"not a {type(value).__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{key} = {value!r} must be finite")
    return value


def _allowed_range(meta: Mapping[str, Any]) -> str:
    parts = []
    if meta["above"] is not None:
        parts.append(f"greater than {meta['above']:g}")
    if meta["minimum"] is not None:
        parts.append(f"at least {meta['minimum']:g}")
    if meta["maximum"] is not None:
        parts.append(f"at most {meta['maximum']:g}")
    return " and ".join(parts)


def _check(key: str, value: Any, meta: Mapping[str, Any]) -> None:
    if meta["choices"] is not None:
        check_choice(key, value, meta["choices"])
    if isinstance(value, str):
        return
    too_low = meta["minimum"] is not None and value < meta["minimum"]
    too_high = meta["maximum"] is not None and value > meta["maximum"]
    not_above = meta["above"] is not None and not value > meta["above"]
    if too_low or too_high or not_above:
        raise SettingsError(f"{key} = {value!r} must be {_allowed_range(meta)}")


def keys(cls: type[Any], prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Run-config key of every setting of ``cls``: kebab-case, after ``prefix``."""
    return {
        prefix + field.name.replace("_", "-"): field
        for field in dataclasses.fields(cls)
        if "help" in field.metadata
    }


def parse(cls: type[T], config: Mapping[str, Any], prefix: str = "", **fixed: Any) -> T:
    """Make ``cls`` from the keys of ``config`` that belong to it.

    Parameters
    ----------
    cls : type
        A dataclass whose fields were declared with :func:`setting`.
    config : mapping
        A run config, flat: other groups' keys in it are ignored.
    prefix : str
        What stands before the keys, such as ``"lasso."``.
    **fixed
        Fields that do not come from the config.

    Raises
    ------
    SettingsError
        If a value has the wrong type or lies outside what is allowed.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = dict(fixed)
    for key, field in keys(cls, prefix).items():
        if field.name in fixed:
            continue
        value = config.get(key, field.default)
        value = _convert(key, value, hints[field.name])
        _check(key, value, field.metadata)
        values[field.name] = value
    return cls(**values)


def describe(cls: type[Any], prefix: str = "") -> list[tuple[str, str, str]]:
    """Rows of (key, default, help with what is allowed) for a listing."""
    rows = []
    for key, field in keys(cls, prefix).items():
        meta = field.metadata
        allowed = (
            "one of " + ", ".join(meta["choices"])
            if meta["choices"] is not None
            else _allowed_range(meta)
        )
        text = meta["help"] + (f" ({allowed})" if allowed else "")
        rows.append((key, repr(field.default), text))
    return rows
