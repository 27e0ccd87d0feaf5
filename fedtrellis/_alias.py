"""The app's packages under a second name, in which no class exists twice.

In a checkout they are ``strategies``, ``clients`` and ``tasks``; a plug-in imports
``fedtrellis.strategies`` and so on, and in one process both give the same modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Alias(MetaPathFinder, Loader):
    """Finds the package ``name``, and what lies in it, as ``fedtrellis.name``, too."""

    def __init__(self, name: str) -> None:
        self.alias = f"fedtrellis.{name}"

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of the second name and all below it."""
        within = name == self.alias or name.startswith(f"{self.alias}.")
        return ModuleSpec(name, self) if within else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name."""
        module = importlib.import_module(spec.name.removeprefix("fedtrellis."))
        # one module under two names, which keeps what it has of itself
        self._kept = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more: the module has been executed."""
        module.__spec__, module.__loader__ = self._kept


def unify_root(name: str) -> None:
    """Let ``fedtrellis.NAME`` be the package ``NAME`` that the app was made of."""
    aliases = [finder.alias for finder in sys.meta_path if isinstance(finder, Alias)]
    if f"fedtrellis.{name}" not in (*aliases, *sys.modules):
        sys.meta_path.insert(0, Alias(name))
