"""Where modules of version 0.1 are now: their old names work for one version more."""

from __future__ import annotations

import sys

from fedtrellis._alias import Alias

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
    "local": "wire.local_grid",
    "local_dual_passes": "dual.local_passes",
    "loop": "server.rounds",
    "losses": "objectives.losses",
    "low_rank_network": "objectives.low_rank_network",
    "mean_objective": "objectives.mean_objective",
    "method": "server.method",
    "mirror": "wire.replay",
    "nonconvex_logistic": "objectives.nonconvex_logistic",
    "plots": "server.plots",
    "principal_components": "objectives.principal_components",
    "progress": "server.progress",
    "protocol": "wire.protocol",
    "records": "server.records",
    "reference": "objectives.reference",
    "regularized_loss": "dual.regularized_loss",
    "shifted_systems": "admm.shifted_systems",
    "sizes": "wire.message_size",
    "torch_objective": "objectives.torch_objective",
    "universal_perturbation": "objectives.universal_perturbation",
}

# What has another name in the new place, or is in a third one.
_RENAMED = {
    "app_directory": {"App": "AppDirectory"},
    "loop": {"SAMPLINGS": "fedtrellis.server.method.SAMPLINGS"},
    "method": {"Answer": "fedtrellis.server.answers.Answer"},
    "mirror": {"Mirror": "ReplayedIterate"},
    "protocol": {"PHASES": "fedtrellis.wire.client.PHASES"},
}


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(f, Alias) and f.warn for f in sys.meta_path):
        for old, new in _MOVED.items():
            renamed = _RENAMED.get(old, {})
            sys.meta_path.append(
                Alias(f"fedtrellis.{old}", f"fedtrellis.{new}", renamed, warn=True)
            )
