"""Classes whose fields are declared: checked, described and documented from one place.

Subclasses of :class:`Declared`, such as every strategy, are dataclasses of their own
accord: their fields are their constructor's keyword arguments, checked when an object
is made, and listed in their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, dataclass_transform

from fedtrellis.settings import (
    AUTO,
    SettingsError,
    checked,
    described_line,
    given,
    hints_of,
    shown_default,
)

__all__ = ["Declared", "misplaced", "refuse_misplaced"]


# type checkers take a setting for a default, and know no positional one of a specifier
@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(given,))
class Declared:
    """Base of classes whose fields are their constructor's keyword arguments.

    A subclass becomes a dataclass when it is defined; what its fields declare is
    checked when an object is made, before its ``__post_init__`` goes on, and its
    docstring gets their list. A class with an ``__init__`` of its own is left as it is.

    The fields of a class defined with ``options=True`` are those that all below it
    share: their docstrings only refer to it, and run configs set them without a prefix.
    """

    def __init_subclass__(cls, options: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if options:
            cls.__options__ = cls  # type: ignore[attr-defined]
        makers = (base for base in cls.__mro__ if "__init__" in base.__dict__)
        maker = next(makers)
        # below a class with an __init__ of its own nothing is generated either
        if maker is object or "__declared__" in maker.__dict__:
            annotations = inspect.get_annotations(cls)
            # what is annotated only is no field
            cls.__annotations__ = {
                name: kind
                for name, kind in annotations.items()
                if isinstance(cls.__dict__.get(name), dataclasses.Field)
            }
            dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
            cls.__annotations__ = annotations
            cls.__declared__ = True  # type: ignore[attr-defined]
            _document(cls)

    def __post_init__(self) -> None:
        """Check and convert every field."""
        cls: Any = type(self)
        hints = hints_of(cls)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if "help" not in field.metadata:
                continue
            value = checked(
                field.name, getattr(self, field.name), field, hints[field.name]
            )
            if value is None:
                value = field.metadata.get("auto")
            setattr(self, field.name, value)
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        refuse_misplaced(cls, values)

    def described(self) -> dict[str, Any]:
        """Its fields' values, by name and symbol; "auto" for what is not settled."""
        values = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.metadata.get("shown", "help" in field.metadata):
                name = f"{field.name.replace('_', ' ')} {field.metadata['symbol']}"
                value = getattr(self, field.name)
                values[name.strip()] = AUTO if value is None else value
        return values


def misplaced(
    cls: type[Any], values: Mapping[str, Any]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Settings that do not apply beside the others, and yet are said.

    Parameters
    ----------
    cls : type
        A :class:`Declared` one.
    values : mapping
        Of its fields; a missing one has its default.

    Returns
    -------
    dict
        By name: which other setting that is because of, and what that would have to be.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    found = {}
    for name, field in fields.items():
        default = field.metadata.get("auto") if field.default is None else field.default
        if values.get(name, default) in (None, default):
            continue
        for other, allowed in (field.metadata.get("only") or {}).items():
            value = values.get(other)
            if value is None:
                value = fields[other].metadata.get("auto") or fields[other].default
            if value not in allowed:
                found[name] = other, tuple(allowed)
    return found


def refuse_misplaced(
    cls: type[Any], values: Mapping[str, Any], prefix: str = ""
) -> None:
    """Raise SettingsError if there is a setting of :func:`misplaced`.

    Parameters
    ----------
    cls, values
        As :func:`misplaced` takes them; ``values`` has every field.
    prefix : str
        What the error puts before a setting's name, such as ``"digits."``.
    """
    for name, (other, allowed) in misplaced(cls, values).items():
        raise SettingsError(
            f"{prefix}{name} = {values[name]!r} applies where {prefix}{other} is "
            f"{' or '.join(allowed)}; here it is {values[other]!r}"
        )


_SECTIONS = ("Attributes", "Returns", "Raises", "Notes", "Examples")


def _document(cls: type[Any]) -> None:
    """Put the fields into the docstring, as numpydoc's Parameters."""
    # a dataclass without a docstring gets its signature for one
    text = inspect.cleandoc(cls.__doc__ or "")
    if not text or text.startswith(f"{cls.__name__}("):
        return
    root = getattr(cls, "__options__", cls)
    common = set() if root is cls else {f.name for f in dataclasses.fields(root)}
    declared = [f for f in dataclasses.fields(cls) if "help" in f.metadata]
    own = [field for field in declared if field.name not in common]
    lines = ["Parameters", "----------"]
    for field in own:
        lines += _parameter(field)
    if common:
        name = f"{root.__module__}.{root.__qualname__}"
        lines += ["**options", f"    Those of :class:`~{name}`."]
    section = "\n".join(lines)
    for title in _SECTIONS:
        head, found, rest = text.partition(f"\n{title}\n{'-' * len(title)}\n")
        if found:
            cls.__doc__ = f"{head}\n{section}\n{found}{rest}"
            return
    cls.__doc__ = f"{text}\n\n{section}\n"


def _capital(text: str, meta: Mapping[str, Any] = MappingProxyType({})) -> str:
    """A sentence begins with a capital, but a symbol stays as it is."""
    return text if meta.get("symbol") else text[:1].upper() + text[1:]


def _parameter(field: dataclasses.Field[Any]) -> list[str]:
    meta = field.metadata
    default = ""
    if field.default is not dataclasses.MISSING:
        shown = repr(field.default) if meta["given"] else shown_default(field)
        default = f", default {shown}"
    told = _capital(described_line(field), meta), _capital(meta.get("note", ""))
    text = ". ".join(part.rstrip(".") for part in told if part)
    body = textwrap.wrap(
        f"{text}.", 84, initial_indent="    ", subsequent_indent="    "
    )
    # which values a text may have is said with the help
    kind = "str" if meta["choices"] is not None else field.type
    return [f"{field.name} : {kind}{default}", *body]
