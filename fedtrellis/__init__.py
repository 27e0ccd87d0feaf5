"""Constrained and structured federated optimisation for Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # "as" exports them
    from fedtrellis.runs import load_run as load_run
    from fedtrellis.server.aggregation import Aggregation as Aggregation
    from fedtrellis.server.aggregation import Clipping as Clipping
    from fedtrellis.server.aggregation import Mean as Mean
    from fedtrellis.server.aggregation import Median as Median
    from fedtrellis.server.aggregation import TrimmedMean as TrimmedMean
    from fedtrellis.server.answers import Answer as Answer
    from fedtrellis.server.callbacks import Callback as Callback
    from fedtrellis.server.callbacks import EarlyStop as EarlyStop
    from fedtrellis.server.callbacks import RoundRecord as RoundRecord
    from fedtrellis.server.loop import LoopStrategy as LoopStrategy
    from fedtrellis.server.options import RunOptions as RunOptions
    from fedtrellis.server.private import Private as Private
    from fedtrellis.server.progress import JsonLines as JsonLines
    from fedtrellis.server.progress import Progress as Progress
    from fedtrellis.server.rounds import RoundStrategy as RoundStrategy
    from fedtrellis.server.secure_sum import SecureSum as SecureSum
    from fedtrellis.settings import SettingsError as SettingsError
    from fedtrellis.settings import given as given
    from fedtrellis.settings import setting as setting
    from fedtrellis.wire.client import MethodClient as MethodClient
    from fedtrellis.wire.client import StatefulClient as StatefulClient
    from fedtrellis.wire.client import client_app as client_app
    from fedtrellis.wire.local_grid import LocalGrid as LocalGrid
    from fedtrellis.wire.local_work import Gradient as Gradient
    from fedtrellis.wire.local_work import MiniBatches as MiniBatches

__version__ = "0.2.0"

# Imported when they are asked for: a node starts a process for every message, and needs
# nothing of the server's, nor a server of the nodes'.
_HOMES = {
    "runs": ("load_run",),
    "server.aggregation": ("Aggregation", "Clipping", "Mean", "Median", "TrimmedMean"),
    "server.answers": ("Answer",),
    "server.callbacks": ("Callback", "EarlyStop", "RoundRecord"),
    "server.loop": ("LoopStrategy",),
    "server.options": ("RunOptions",),
    "server.private": ("Private",),
    "server.progress": ("JsonLines", "Progress"),
    "server.rounds": ("RoundStrategy",),
    "server.secure_sum": ("SecureSum",),
    "settings": ("SettingsError", "given", "setting"),
    "wire.client": ("MethodClient", "StatefulClient", "client_app"),
    "wire.local_grid": ("LocalGrid",),
    "wire.local_work": ("Gradient", "MiniBatches"),
}
__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    """Import the module that has it."""
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With what is imported when it is asked for."""
    return sorted({*globals(), *__all__})
