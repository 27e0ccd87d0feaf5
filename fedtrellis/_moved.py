"""Where modules of version 0.1 are now: their old names work for one version more."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install"]

_MOVED = {
    "alignment": "dual.alignment",
    "app_directory": "app.directory",
    "arrays": "wire.arrays",
    "atoms": "domains.atoms",
    "broadcast": "wire.broadcast",
    "callbacks": "server.callbacks",
    "checkpoint": "server.checkpoint",
    "client": "wire.client",
    "dual_bundle": "dual.bundle",
    "enclosing": "domains.enclosing",
    "factor_file": "admm.factor_file",
    "grey_relational": "tune.grey_relational",
    "local": "wire.local_grid",
    "local_dual_passes": "dual.local_passes",
    "loop": "server.rounds",
    "losses": "objectives.losses",
    "low_rank_network": "objectives.low_rank_network",
    "mean_objective": "objectives.mean_objective",
    "method": "server.answers",
    "mirror": "wire.replay",
    "nonconvex_logistic": "objectives.nonconvex_logistic",
    "plots": "server.plots",
    "principal_components": "objectives.principal_components",
    "progress": "server.progress",
    "protocol": "wire.protocol",
    "records": "server.records",
    "reference": "objectives.reference",
    "regularized_loss": "dual.regularized_loss",
    "search_space": "tune.search_space",
    "shifted_systems": "admm.shifted_systems",
    "sizes": "wire.message_size",
    "torch_objective": "objectives.torch_objective",
    "trials": "tune.trials",
    "tuning": "tune.ranking",
    "tuning_report": "tune.report",
    "universal_perturbation": "objectives.universal_perturbation",
}


class _OldNames(MetaPathFinder, Loader):
    """Finds ``fedtrellis.OLD`` where it is now."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        if package != "fedtrellis" or old not in _MOVED:
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"fedtrellis.{_MOVED[spec.name.removeprefix('fedtrellis.')]}"
        warnings.warn(
            f"{spec.name} is now {new}; the old name goes with the next version",
            FutureWarning,
            stacklevel=2,
        )
        module = importlib.import_module(new)
        # one module under two names, which must go on saying the same of itself
        self._kept = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._kept


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
