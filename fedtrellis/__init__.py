"""Constrained and structured federated optimisation for Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtrellis.runs import load_run, run
    from fedtrellis.server.aggregation import (
        Aggregation,
        Clipping,
        Mean,
        Median,
        Private,
        TrimmedMean,
    )
    from fedtrellis.server.callbacks import (
        Callback,
        EarlyStop,
        JsonLines,
        Progress,
        RoundRecord,
    )
    from fedtrellis.server.conversation import Answer
    from fedtrellis.server.loop import LoopStrategy
    from fedtrellis.server.options import RunOptions
    from fedtrellis.server.rounds import RoundStrategy
    from fedtrellis.server.secure_sum import SecureSum, SecureSums
    from fedtrellis.settings import SettingsError, given, setting
    from fedtrellis.wire.client import MethodClient, StatefulClient, client_app
    from fedtrellis.wire.local_grid import LocalGrid
    from fedtrellis.wire.local_work import Gradient, MiniBatches
    from fedtrellis.wire.summing import secure_sum_mod

__version__ = "0.2.0"

__all__ = ["Aggregation", "Answer", "Callback", "Clipping", "EarlyStop", "Gradient"]
__all__ += ["JsonLines", "LocalGrid", "LoopStrategy", "Mean", "Median", "MethodClient"]
__all__ += ["MiniBatches", "Private", "Progress", "RoundRecord", "RoundStrategy"]
__all__ += ["RunOptions", "SecureSum", "SecureSums", "SettingsError", "StatefulClient"]
__all__ += ["TrimmedMean", "__version__", "client_app", "given", "load_run"]
__all__ += ["run", "secure_sum_mod", "setting"]

# Imported when they are asked for: a node starts a process for every message, and needs
# nothing of the server's, nor a server of the nodes'.
_HOMES = {
    "runs": ("load_run", "run"),
    "server.aggregation": (
        *("Aggregation", "Clipping", "Mean", "Median", "Private", "TrimmedMean"),
    ),
    "server.conversation": ("Answer",),
    "server.callbacks": (
        *("Callback", "EarlyStop", "JsonLines", "Progress", "RoundRecord"),
    ),
    "server.loop": ("LoopStrategy",),
    "server.options": ("RunOptions",),
    "server.rounds": ("RoundStrategy",),
    "server.secure_sum": ("SecureSum", "SecureSums"),
    "settings": ("SettingsError", "given", "setting"),
    "wire.client": ("MethodClient", "StatefulClient", "client_app"),
    "wire.local_grid": ("LocalGrid",),
    "wire.local_work": ("Gradient", "MiniBatches"),
    "wire.summing": ("secure_sum_mod",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
