"""Modules under a second name: those that moved, and the app's packages.

In a checkout the app's packages are ``strategies``, ``clients`` and ``tasks``; a
plug-in, which knows only the installed package, imports ``fedtrellis.strategies`` and
so on. Where both are in one process these names have to give the same modules, or there
would be two copies of every class.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType

__all__ = ["Alias", "unify_roots"]


class Alias(MetaPathFinder, Loader):
    """Finds a module, and what lies in it, under another name.

    Parameters
    ----------
    old, new : str
        Full names.
    renamed : mapping
        Old names of what has another in the module, or in the one that it names.
    warn : bool
        Whether to say that the old name will go.
    """

    def __init__(
        self,
        old: str,
        new: str,
        renamed: Mapping[str, str] = MappingProxyType({}),
        warn: bool = False,
    ) -> None:
        self.old, self.new, self.renamed, self.warn = old, new, renamed, warn

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the old name and all below it."""
        if name != self.old and not name.startswith(f"{self.old}."):
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name."""
        new = self.new + spec.name.removeprefix(self.old)
        if self.warn:
            warnings.warn(
                f"{spec.name} is now {new}; the old name goes with the next version",
                FutureWarning,
                stacklevel=2,
            )
        module = importlib.import_module(new)
        for before, now in self.renamed.items():
            elsewhere, _, name = now.rpartition(".")
            holder = importlib.import_module(elsewhere) if elsewhere else module
            setattr(module, before, getattr(holder, name))
        # one module under two names, which must go on saying the same of itself
        self._kept = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more: the module has been executed."""
        module.__spec__, module.__loader__ = self._kept


def unify_roots(packages: Iterable[str]) -> None:
    """Let ``fedtrellis.NAME`` be the package ``NAME`` that the app was made of."""
    for name in packages:
        full = f"fedtrellis.{name}"
        known = any(isinstance(f, Alias) and f.old == full for f in sys.meta_path)
        if not known and full not in sys.modules:
            sys.meta_path.insert(0, Alias(full, name))
