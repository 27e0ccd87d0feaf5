"""Settings: declared once as a field, checked and described everywhere alike.

    @dataclass(frozen=True)
    class Penalty:
        penalty: float = setting(1e-3, "of the penalty", symbol="λ_0", minimum=0.0)

    Penalty.penalty                    # the default
    parse(Penalty, {"penalty": 0.5})   # checked, and made a float

Flower checks neither the types nor the ranges of a run config, so that happens here,
before anything starts: :class:`SettingsError` names the key, its value and what is
allowed, in one line.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

__all__ = [
    "AUTO",
    "CodedError",
    "SettingsError",
    "check_choice",
    "describe_fields",
    "entries_of",
    "given",
    "keys",
    "parse",
    "parse_values",
    "setting",
]

#: How None, "let it find itself", is written in a run config.
AUTO = "auto"

T = TypeVar("T")


class CodedError(ValueError):
    """An error of one line by which a client says that it will not do something.

    The server acts on the ``code`` of its class; the message is for people.
    """

    #: What the server knows it by.
    code: ClassVar[str] = "refused"


class SettingsError(CodedError):
    """A setting has a value that is not allowed; the message says which are.

    Examples
    --------
    >>> from fedtrellis import SettingsError
    >>> from fedtrellis.strategies import FedGiA
    >>> try:
    ...     FedGiA(selected_fraction=2.0)
    ... except SettingsError as error:
    ...     print(error)
    selected_fraction = 2.0 must be greater than 0 and at most 1
    """

    code = "settings"


def setting(
    default: Any,
    help: str,
    *,
    note: str = "",
    symbol: str = "",
    auto: Any = None,
    choices: Any = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    shown: bool = True,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Declare a setting: a field that Python and run configs can set.

    Parameters
    ----------
    default : bool, int, float, str or None
        The value where nothing is set. None, in a run config ``"auto"``, is allowed
        as a value only where it is the default.
    help : str
        A line for ``--list`` and docstrings.
    note : str
        What docstrings add to that line.
    symbol : str
        The paper's symbol.
    auto : optional
        What None becomes where the task suggests nothing. Without it None stays, and
        the class finds the value when it has what it takes.
    choices : Literal or sequence of str, optional
        The only values allowed. A ``Literal`` is the field's type as well, so that an
        editor completes them: ``rule: Rule = setting("mean", "...", choices=Rule)``.
    minimum, maximum : float, optional
        Inclusive bounds.
    above, below : float, optional
        Exclusive bounds.
    shown : bool
        Whether :meth:`Declared's listing` has it.
    only : mapping, optional
        Values of other settings, by their names, that this one applies to; beside
        others it is refused, and no task's suggestion counts.

    Examples
    --------
    >>> from fedtrellis import RoundStrategy, setting
    >>> class Descent(RoundStrategy):
    ...     step_size: float = setting(0.1, "of a round", symbol="η", above=0.0)
    >>> Descent.step_size
    0.1
    """
    about = dict(locals())
    if choices is not None:
        about["choices"] = get_args(choices) or tuple(choices)
    default = about.pop("default")
    return dataclasses.field(default=default, metadata=about | {"given": False})


def given(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    kw_only: bool = True,
    default_factory: Any = dataclasses.MISSING,
    **about: Any,
) -> Any:
    """Declare a field that a run's task or app fills in, and no run config.

    Parameters
    ----------
    help : str
        A line for docstrings.
    default, default_factory : optional
        Without one the field has to be given.
    kw_only : bool
        False: it may be given by position, too.
    **about
        note, symbol, choices, bounds and shown, as for :func:`setting`.

    Examples
    --------
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import FedFW
    >>> FedFW(L1Ball(radius=2.0)).domain.radius  # it is ``given``, and comes first
    2.0
    """
    metadata = {**setting(None, help, **about).metadata, "given": True}
    made: Any = dataclasses.field  # of two defaults one is missing
    return made(
        default=default,
        default_factory=default_factory,
        kw_only=kw_only,
        metadata=metadata,
    )


# ---------------------------------------------------------------------------- checking


def check_choice(key: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``, or name those and the closest."""
    allowed = list(choices)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise SettingsError(
        f"{key} = {value!r} is not known{hint}; allowed: {', '.join(sorted(allowed))}"
    )


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The types that a field may have, without None; those of a Literal's values."""
    origin = get_origin(annotation)
    if origin is Literal:
        found = [type(value) for value in get_args(annotation)]
    elif origin in (Union, types.UnionType):
        found = [kind for member in get_args(annotation) for kind in _kinds(member)]
    else:  # of Mapping[float, float] the Mapping
        bare = origin or annotation
        found = [bare] if isinstance(bare, type) and bare is not type(None) else []
    return tuple(dict.fromkeys(found))


_NAMES = {float: "a number", int: "a whole number", bool: "true or false"}


def convert(key: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """Make a value of its field's type; numbers of NumPy's are numbers, too."""
    kind = kinds[0]
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and (kind is float or (kind is int and float(value).is_integer())):
        value = kind(value)
    # True is an int, too, but no number of steps
    exact = kind in (int, float)
    if type(value) is not kind and (exact or not isinstance(value, kinds)):
        raise SettingsError(
            f"{key} = {value!r} must be {_NAMES.get(kind, 'a text')}, "
            f"not a {type(value).__name__}"
        )
    return value


_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "above": ("greater than", operator.gt),
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def _bounds(meta: Mapping[str, Any]) -> dict[str, float]:
    return {name: meta[name] for name in _BOUNDS if meta[name] is not None}


def _allowed(meta: Mapping[str, Any]) -> str:
    """The choices or the bounds of a setting, in words."""
    if meta["choices"] is not None:
        return "one of " + ", ".join(filter(None, meta["choices"]))
    bounds = _bounds(meta).items()
    return " and ".join(f"{_BOUNDS[name][0]} {bound:g}" for name, bound in bounds)


def _check(key: str, value: Any, meta: Mapping[str, Any]) -> None:
    if meta["choices"] is not None and isinstance(value, str):
        check_choice(key, value, meta["choices"])
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    allowed = [_allowed(meta)] if _bounds(meta) else []
    if not math.isfinite(value):
        allowed.append("finite")
    elif all(_BOUNDS[name][1](value, b) for name, b in _bounds(meta).items()):
        return
    raise SettingsError(f"{key} = {value!r} must be {' and '.join(allowed)}")


@lru_cache(maxsize=256)
def hints_of(cls: Hashable) -> dict[str, Any]:
    """The types of a class's fields, by name."""
    return get_type_hints(cls)


def checked(key: str, value: Any, field: dataclasses.Field[Any], hint: Any) -> Any:
    """A field's value, converted and checked; None for "auto" where that may be."""
    if field.default is None and (value is None or value == AUTO):
        return None
    kinds = _kinds(hint)
    if not kinds or kinds[0] not in (bool, int, float, str):
        return value  # an object, which its class knows better
    try:
        value = convert(key, value, kinds)
        _check(key, value, field.metadata)
    except SettingsError as error:
        if field.default is None:
            raise SettingsError(f"{error}, or {AUTO!r}") from None
        raise
    return value


# ------------------------------------------------------------------- from a run config


def keys(cls: type[Any], prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Run-config key of every setting of ``cls``: kebab-case, after ``prefix``."""
    return {
        prefix + field.name.replace("_", "-"): field
        for field in dataclasses.fields(cls)
        if "help" in field.metadata and not field.metadata.get("given")
    }


def entries_of(strategy: object, *names: str) -> dict[str, Any]:
    """What a request repeats of a strategy's settings, by their run-config keys."""
    return {name.replace("_", "-"): getattr(strategy, name) for name in names}


def parse_values(
    fields: Mapping[str, dataclasses.Field[Any]], cls: type, config: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of some settings of ``cls``, by field, checked; None for "auto".

    ``fields`` are as of :func:`keys`; other keys in the flat ``config`` are ignored.
    """
    hints = hints_of(cls)
    return {
        field.name: checked(
            key, config.get(key, field.default), field, hints[field.name]
        )
        for key, field in fields.items()
    }


def parse(cls: type[T], config: Mapping[str, Any], prefix: str = "", **fixed: Any) -> T:
    """Make ``cls`` from the keys of a flat ``config`` that belong to it.

    ``prefix`` is what stands before them, such as ``"lasso."``; ``fixed`` are fields
    that do not come from the config.
    """
    fields = {k: f for k, f in keys(cls, prefix).items() if f.name not in fixed}
    return cls(**fixed, **parse_values(fields, cls, config))


def describe_fields(
    fields: Mapping[str, dataclasses.Field[Any]],
) -> list[tuple[str, str, str]]:
    """Rows of (key, default, help with what is allowed) of what :func:`keys` gives."""
    return [(key, shown_default(f), described_line(f)) for key, f in fields.items()]


def shown_default(field: dataclasses.Field[Any]) -> str:
    """How listings write a default."""
    return AUTO if field.default is None else repr(field.default)


def described_line(field: dataclasses.Field[Any]) -> str:
    """What a setting is, and what is allowed, in a line."""
    meta = field.metadata
    text = ", ".join(filter(None, (meta["symbol"], meta["help"])))
    allowed = [_allowed(meta)] if _allowed(meta) else []
    if meta["auto"] is not None:
        allowed.append(f"auto: what the task suggests, or {meta['auto']!r}")
    return text + (f" ({'; '.join(allowed)})" if allowed else "")
