"""Settings: declared once as a field, checked and described everywhere alike.

    class Penalty(Declared):
        penalty: float = setting(1e-3, "of the penalty", symbol="λ_0", minimum=0.0)

    Penalty(penalty=0.5)               # checked, and made a float
    parse(Penalty, {"penalty": 0.5})   # the same from a flat run config

Flower checks neither types nor ranges of a run config: that is done here.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import inf, isfinite
from numbers import Real
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

#: How None, "let it find itself", is written in a run config.
AUTO = "auto"

T = TypeVar("T")
Field = dataclasses.Field[Any]


class CodedError(ValueError):
    """An error of one line by which a client says that it will not do something."""

    #: What the server knows it by; the message is for people.
    code: ClassVar[str] = "refused"


class SettingsError(CodedError):
    """A setting has a value that is not allowed; the message says which are.

    Examples
    --------
    >>> from fedtrellis import SettingsError
    >>> from fedtrellis.strategies import FedGiA
    >>> FedGiA(selected_fraction=2.0)
    Traceback (most recent call last):
    fedtrellis.settings.SettingsError: selected_fraction = 2.0 must be greater than ...
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
    minimum: float = -inf,
    maximum: float = inf,
    above: float = -inf,
    below: float = inf,
    shown: bool = True,
    only: Mapping[str, Sequence[str | None]] | None = None,
) -> Any:
    """Declare a setting: a field that Python and run configs can set.

    Parameters
    ----------
    default : bool, int, float, str or None
        The value where nothing is set. None, in a run config ``"auto"``, is allowed
        as a value only where it is the default.
    help, note, symbol : str
        A line for ``--list`` and docstrings, what docstrings add, the paper's symbol.
    auto : optional
        What None becomes where the task suggests nothing; else it stays None.
    choices : Literal or sequence of str, optional
        The only values allowed. A ``Literal`` is the field's type as well, so that an
        editor completes them: ``rule: Rule = setting("mean", "...", choices=Rule)``.
    minimum, maximum, above, below : float
        Bounds, the first two inclusive. A number is always finite.
    shown : bool
        Whether :meth:`Declared's listing` has it.
    only : mapping, optional
        Values of other settings, by name, that it applies beside; else it is refused.

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
    help: str, *, default: Any = dataclasses.MISSING, kw_only: bool = True, **about: Any
) -> Any:
    """Declare a field that a run's task or app fills in, and no run config.

    Parameters
    ----------
    help, **about
        As for :func:`setting`.
    default : optional
        Without it the field has to be given.
    kw_only : bool
        False: it may be given by position, too.

    Examples
    --------
    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import FedFW
    >>> FedFW(L1Ball(radius=2.0)).domain.radius  # it is ``given``, and comes first
    2.0
    """
    metadata = {**setting(None, help, **about).metadata, "given": True}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def refused(
    key: str, value: Any, why: str, allowed: Iterable[str] | None = None
) -> SettingsError:
    """The error of a setting whose value does not fit; ``why`` follows it."""
    rest = "" if allowed is None else f"; allowed: {', '.join(allowed) or 'none'}"
    return SettingsError(f"{key} = {value!r} {why}{rest}")


def check_choice(
    key: str, value: str, choices: Iterable[str], allowed: str = ""
) -> str:
    """Return ``value`` if it is one of ``choices``, or name the closest of them.

    And all of them, where ``allowed`` does not say otherwise what may be given.
    """
    known = list(choices)
    if value in known:
        return value
    close = difflib.get_close_matches(str(value), known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if allowed:
        raise refused(key, value, f"is not known{hint}; {allowed}")
    raise refused(key, value, f"is not known{hint}", sorted(known))


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The types that a field may have, without None; those of a Literal's values."""
    origin = get_origin(annotation)
    if origin is Literal:
        found = [type(value) for value in get_args(annotation)]
    elif origin in (Union, types.UnionType):
        members = get_args(annotation)
        found = [kind for member in members for kind in _kinds(member)]
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
        wanted, found = _NAMES.get(kind, "a text"), type(value).__name__
        raise refused(key, value, f"must be {wanted}, not a {found}")
    return value


_BOUNDS = {
    "above": "greater than",
    "minimum": "at least",
    "maximum": "at most",
    "below": "below",
}


def _allowed(meta: Mapping[str, Any]) -> list[str]:
    """The choices or the bounds of a setting, in words."""
    if meta["choices"] is not None:
        return ["one of " + ", ".join(filter(None, meta["choices"]))]
    bounds = [name for name in _BOUNDS if isfinite(meta[name])]
    return [f"{_BOUNDS[name]} {meta[name]:g}" for name in bounds]


_hints = lru_cache(maxsize=256)(get_type_hints)


def _checked(cls: type, field: Field, key: str, value: Any) -> Any:
    """A field's value, converted and checked; None for "auto" where that may be."""
    meta, auto = field.metadata, field.default is None
    if auto and (value is None or value == AUTO):
        return None
    kinds = _kinds(_hints(cls)[field.name])
    if not kinds or kinds[0] not in (bool, int, float, str):
        return value  # an object, which its class knows better
    try:
        value = convert(key, value, kinds)
        if isinstance(value, str) and meta["choices"] is not None:
            check_choice(key, value, meta["choices"])
        if isinstance(value, int | float) and not isinstance(value, bool):
            within = meta["minimum"] <= value <= meta["maximum"]
            if not (within and meta["above"] < value < meta["below"]):
                allowed = _allowed(meta) + ["finite"] * (not isfinite(value))
                raise refused(key, value, f"must be {' and '.join(allowed)}")
    except SettingsError as error:
        raise SettingsError(f"{error}, or {AUTO!r}" if auto else str(error)) from None
    return value


def need(module: str, what: str, extra: str) -> None:
    """Refuse ``what`` if a module is not installed; name the extra that brings it."""
    if find_spec(module) is None:
        # elsewhere a library is called what its module is
        library = {"sklearn": "scikit-learn"}.get(module, module.replace("_", "-"))
        end = f'pip install "fedtrellis[{extra}]"'
        raise SettingsError(f"{what} needs {library}: {end}")


def keys(cls: type[Any], prefix: str = "") -> dict[str, Field]:
    """Run-config key of every setting of ``cls``: kebab-case, after ``prefix``."""
    return {
        prefix + field.name.replace("_", "-"): field
        for field in dataclasses.fields(cls)
        if "help" in field.metadata and not field.metadata.get("given")
    }


def arguments_of(cls: Any) -> dict[str, bool]:
    """What a constructor takes, and whether it must be given."""
    return {
        name: argument.default is argument.empty
        for name, argument in inspect.signature(cls).parameters.items()
    }


def entries_of(strategy: object, *names: str) -> dict[str, Any]:
    """What a request repeats of a strategy's settings, by their run-config keys."""
    return {name.replace("_", "-"): getattr(strategy, name) for name in names}


def parse_values(
    cls: type, config: Mapping[str, Any], prefix: str = "", without: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of the settings of ``cls``, by field, checked; None for "auto".

    ``prefix``, such as ``"lasso."``, stands before their keys in the flat ``config``.
    """
    return {
        field.name: _checked(cls, field, key, config.get(key, field.default))
        for key, field in keys(cls, prefix).items()
        if field.name not in without
    }


def parse(cls: type[T], config: Mapping[str, Any], prefix: str = "", **fixed: Any) -> T:
    """Make ``cls`` of :func:`parse_values`, and of ``fixed`` fields."""
    return cls(**fixed, **parse_values(cls, config, prefix, fixed))


def describe_fields(fields: Mapping[str, Field]) -> list[tuple[str, str, str]]:
    """Rows of (key, default, help with what is allowed) of what :func:`keys` gives."""
    return [
        (key, AUTO if field.default is None else repr(field.default), _line(field))
        for key, field in fields.items()
    ]


def _line(field: Field) -> str:
    """What a setting is, and what is allowed."""
    meta = field.metadata
    text = ", ".join(filter(None, (meta["symbol"], meta["help"])))
    allowed = " and ".join(_allowed(meta))
    if meta["auto"] is not None:
        auto = f"auto: what the task suggests, or {meta['auto']!r}"
        allowed = f"{allowed}; {auto}" if allowed else auto
    return f"{text} ({allowed})" if allowed else text


# type checkers take a setting for a default, and know no positional one of a specifier
@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(given,))
class Declared:
    """Base of classes whose fields are their constructor's keyword arguments.

    A subclass becomes a dataclass when it is defined; what its fields declare is
    checked when an object is made, before its ``__post_init__`` goes on, and its
    docstring gets their list. A class with an ``__init__`` of its own keeps that.

    A class defined with ``options=Options``, another declared class, and those below it
    take the fields of ``Options`` as keywords, too: an object's ``options`` has them.
    A keyword of another library's is an option by ``Options._same``, or refused with
    ``Options._page``, which has what stands for it.
    """

    _page: ClassVar[str] = ""
    _same: ClassVar[Mapping[str, Callable[[Any], dict[str, Any]]]] = {}

    def __init_subclass__(
        cls, options: type[Declared] | None = None, **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        if options is not None:
            cls.__options__ = options  # type: ignore[attr-defined]
        by_hand = "__init__" in vars(cls)
        annotations = inspect.get_annotations(cls)
        # what is annotated only is no field
        cls.__annotations__ = {
            name: kind
            for name, kind in annotations.items()
            if isinstance(vars(cls).get(name), dataclasses.Field)
        }
        dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
        cls.__annotations__ = annotations
        if not by_hand:
            shared = getattr(cls, "__options__", None)
            if shared is not None:
                cls.__init__ = _with_options(cls.__init__, shared)  # type: ignore[method-assign]
            _document(cls)

    def __post_init__(self) -> None:
        """Check and convert every field."""
        cls: Any = type(self)
        for field in dataclasses.fields(cls):
            if "help" in field.metadata:
                value = _checked(cls, field, field.name, getattr(self, field.name))
                if value is None:
                    value = field.metadata["auto"]
                setattr(self, field.name, value)
        for why in misplaced(cls, vars(self)).values():
            raise SettingsError(why)

    def _shown(self) -> Iterator[tuple[Field, Any]]:
        """Fields for listings, and their values; "auto" for what is not settled."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.metadata.get("shown", "help" in field.metadata):
                value = getattr(self, field.name)
                yield field, AUTO if value is None else value

    def _described(self) -> dict[str, Any]:
        """What is shown, by name and symbol."""
        return {
            f"{f.name.replace('_', ' ')} {f.metadata['symbol']}".strip(): value
            for f, value in self._shown()
        }


def misplaced(cls: Any, values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings that are set and do not apply beside the others (``only=``), and why.

    Of the fields of ``cls`` that ``values`` lacks, the defaults count.
    """
    fields = dataclasses.fields(cls)
    defaults = {
        f.name: f.metadata.get("auto") if f.default is None else f.default
        for f in fields
    }
    given = {name: value for name, value in values.items() if value is not None}
    settled = {**defaults, **given}
    found = {}
    for field in fields:
        name = field.name
        for other, allowed in (field.metadata.get("only") or {}).items():
            if settled[name] != defaults[name] and settled[other] not in allowed:
                found[name] = (
                    f"{prefix}{name} = {settled[name]!r} applies where {prefix}{other} "
                    f"is {' or '.join(v or 'auto' for v in allowed)}; here it is "
                    f"{settled[other]!r}"
                )
    return found


def _with_options(init: Callable[..., None], shared: type[Any]) -> Callable[..., None]:
    """A constructor that takes the fields of ``shared`` as keywords, too."""
    names = {field.name for field in dataclasses.fields(shared)}

    @functools.wraps(init)
    def construct(self: Any, *arguments: Any, **values: Any) -> None:
        found = {name: values.pop(name) for name in names.intersection(values)}
        for name in values.keys() - own.parameters.keys():
            value = values.pop(name)
            try:
                same = shared._same[name](value)
            except KeyError:
                why = f"is no option of {type(self).__name__}; {shared._page}"
                raise refused(name, value, why) from None
            if twice := sorted(same.keys() & found.keys()):
                raise SettingsError(f"{name} and {twice[0]} are one option")
            found |= same
        self.options = shared(**found)
        init(self, *arguments, **values)

    own, more = inspect.signature(init), inspect.signature(shared)
    parameters = [*own.parameters.values(), *more.parameters.values()]
    construct.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return construct


_SECTION = re.compile(r"\n(Attributes|Returns|Raises|Notes|Examples)\n---")


def _document(cls: type[Any]) -> None:
    """Put the fields into the docstring, as numpydoc's Parameters."""
    # a dataclass without a docstring gets its signature for one
    text = inspect.cleandoc(cls.__doc__ or "")
    if not text or text.startswith(f"{cls.__name__}("):
        return
    lines = ["Parameters", "----------"]
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        meta, default = field.metadata, ""
        if field.default is not dataclasses.MISSING:
            auto = field.default is None and not meta["given"]
            default = f", default {AUTO if auto else repr(field.default)}"
        about, note = _line(field), meta["note"]
        if not meta["symbol"]:  # which stays as it is
            about = about[:1].upper() + about[1:]
        parts = about, note[:1].upper() + note[1:]
        told = ". ".join(part.rstrip(".") for part in parts if part)
        # the help lists the values that a text may have
        kind = "str" if meta["choices"] is not None else field.type
        body = textwrap.indent(textwrap.fill(f"{told}.", 80), "    ")
        lines += [f"{field.name} : {kind}{default}", body]
    shared = getattr(cls, "__options__", None)
    if shared is not None:
        name = f"{shared.__module__}.{shared.__qualname__}"
        lines += ["**options", f"    Those of :class:`~{name}`."]
    found = _SECTION.search(text)
    at = found.start() if found else len(text) + 1
    section = "\n".join(lines)
    cls.__doc__ = f"{text[:at].rstrip()}\n\n{section}\n{text[at:]}"
