"""Classes whose fields are declared: checked, described, documented in one place."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
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

    A class defined with ``options=Options``, another declared class, and those below it
    take the fields of ``Options`` as keywords, too: an object's ``options`` has them.
    Docstrings only refer to it, and run configs set them without a prefix.
    """

    def __init_subclass__(
        cls, options: type[Declared] | None = None, **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        if options is not None:
            cls.__options__ = options  # type: ignore[attr-defined]
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
            shared = getattr(cls, "__options__", None)
            if shared is not None:
                cls.__init__ = _with_options(cls.__init__, shared)  # type: ignore[method-assign]
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

    def _described(self) -> dict[str, Any]:
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
    """Settings that are set and do not apply beside the others (``only=``).

    By name: the other setting, and the values that it would need. ``values`` are those
    of the fields of ``cls``; a missing one has its default.
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

    ``values`` has every field; ``prefix``, such as ``"digits."``, is for the error.
    """
    for name, (other, allowed) in misplaced(cls, values).items():
        raise SettingsError(
            f"{prefix}{name} = {values[name]!r} applies where {prefix}{other} is "
            f"{' or '.join(allowed)}; here it is {values[other]!r}"
        )


_SECTION = re.compile(r"\n(Attributes|Returns|Raises|Notes|Examples)\n---")


def _with_options(init: Callable[..., None], shared: type[Any]) -> Callable[..., None]:
    """A constructor that takes the fields of ``shared`` as keywords, too."""
    names = {field.name for field in dataclasses.fields(shared)}

    @functools.wraps(init)
    def construct(self: Any, *arguments: Any, **values: Any) -> None:
        found = {name: values.pop(name) for name in names.intersection(values)}
        self.options = shared(**found)
        init(self, *arguments, **values)

    own, more = inspect.signature(init), inspect.signature(shared).parameters.values()
    construct.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *more]
    )
    return construct


def _document(cls: type[Any]) -> None:
    """Put the fields into the docstring, as numpydoc's Parameters."""
    # a dataclass without a docstring gets its signature for one
    text = inspect.cleandoc(cls.__doc__ or "")
    if not text or text.startswith(f"{cls.__name__}("):
        return
    shared = getattr(cls, "__options__", None)
    lines = ["Parameters", "----------"]
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            lines += _parameter(field)
    if shared is not None:
        name = f"{shared.__module__}.{shared.__qualname__}"
        lines += ["**options", f"    Those of :class:`~{name}`."]
    found = _SECTION.search(text)
    at = found.start() if found else len(text) + 1
    section = "\n".join(lines)
    cls.__doc__ = f"{text[:at].rstrip()}\n\n{section}\n{text[at:]}"


def _parameter(field: dataclasses.Field[Any]) -> list[str]:
    meta = field.metadata
    default = ""
    if field.default is not dataclasses.MISSING:
        shown = repr(field.default) if meta["given"] else shown_default(field)
        default = f", default {shown}"
    about, note = described_line(field), meta["note"]
    if not meta["symbol"]:  # which stays as it is
        about = about[:1].upper() + about[1:]
    parts = about, note[:1].upper() + note[1:]
    text = ". ".join(part.rstrip(".") for part in parts if part)
    indent = "    "
    body = textwrap.wrap(
        f"{text}.", 84, initial_indent=indent, subsequent_indent=indent
    )
    # the help lists the values that a text may have
    kind = "str" if meta["choices"] is not None else field.type
    return [f"{field.name} : {kind}{default}", *body]
