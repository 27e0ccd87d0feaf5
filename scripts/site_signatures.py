"""What only the running package knows, for the API reference.

A strategy's docstring and constructor are made of its declared fields when its class is
defined (:mod:`fedtrellis.settings`). The reference is read from the source, where
neither stands, so this extension of Griffe, which mkdocs.yml names, puts them in.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

from fedtrellis.settings import Declared

__all__ = ["Declarations"]


# :class:`~fedtrellis.app.App` is App, :func:`fedtrellis.client_app` all of it
_ROLE = re.compile(r":[\w:]+:`(?:~[\w.]*\.)?([^`]+)`")
_LITERAL = re.compile(r"::(?=\n)")


class Declarations(griffe.Extension):
    """Gives declared classes their generated docstring and signature."""

    def on_object(self, *, obj: Any, **more: Any) -> None:
        """Write roles and literal blocks as Markdown does."""
        if obj.docstring is not None:
            obj.docstring.value = _markdown(obj.docstring.value)

    def on_class(self, *, cls: Any, **more: Any) -> None:
        """Compare a class in the source with itself at run time."""
        if not cls.path.startswith("fedtrellis.strategies."):
            return
        found = getattr(import_module(cls.module.path), cls.name, None)
        if not (isinstance(found, type) and issubclass(found, Declared)):
            return
        text = inspect.getdoc(found)
        if cls.docstring is not None and text:
            line = cls.docstring.lineno
            cls.docstring = griffe.Docstring(_markdown(text), lineno=line, parent=cls)
        if "__init__" not in cls.members:
            made = griffe.Function("__init__", parameters=_parameters(found))
            cls.set_member("__init__", made)


def _markdown(text: str) -> str:
    return _LITERAL.sub(":", _ROLE.sub(r"`\1`", text))


def _parameters(cls: type[Any]) -> griffe.Parameters:
    """The constructor's own parameters; those that all methods share last, as one."""
    root = getattr(cls, "__options__", None)
    shared = set(inspect.signature(root).parameters) if root else set()
    kinds = griffe.ParameterKind
    listed = [griffe.Parameter("self", kind=kinds.positional_or_keyword)]
    more = False
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in shared:
            more = True
            continue
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        empty = parameter.default is parameter.empty
        listed.append(
            griffe.Parameter(
                name,
                annotation=str(parameter.annotation),
                kind=kinds.keyword_only if keyword else kinds.positional_or_keyword,
                default=None if empty else repr(parameter.default),
            )
        )
    if more:
        listed.append(griffe.Parameter("options", kind=kinds.var_keyword))
    return griffe.Parameters(*listed)
