"""The app's packages under a second name, in which no class exists twice.

In a checkout they are ``strategies``, ``clients`` and ``tasks``; a plug-in imports
``fedtrellis.strategies`` and so on, and in one process both give the same modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Alias(MetaPathFinder, Loader):
    """Finds the module ``name``, and what lies in it, as ``alias``, too."""

    def __init__(self, alias: str, name: str) -> None:
        self.alias, self.name = alias, name

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of the second name and all below it."""
        if name != self.alias and not name.startswith(f"{self.alias}."):
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name."""
        module = importlib.import_module(self.name + spec.name.removeprefix(self.alias))
        # one module under two names, which keeps what it has of itself
        self._kept = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more: the module has been executed."""
        module.__spec__, module.__loader__ = self._kept


def unify_roots(packages: Iterable[str]) -> None:
    """Let ``fedtrellis.NAME`` be the package ``NAME`` that the app was made of."""
    for name in packages:
        full = f"fedtrellis.{name}"
        known = any(isinstance(f, Alias) and f.alias == full for f in sys.meta_path)
        if not known and full not in sys.modules:
            sys.meta_path.insert(0, Alias(full, name))
