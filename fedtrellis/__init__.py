"""Constrained and structured federated optimisation for Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtrellis.runs.load import load_run
    from fedtrellis.server.aggregation import Clipping, Mean, Median, TrimmedMean
    from fedtrellis.server.answers import Answer
    from fedtrellis.server.callbacks import Callback, EarlyStop, RoundRecord
    from fedtrellis.server.loop import LoopStrategy
    from fedtrellis.server.private import Private
    from fedtrellis.server.progress import JsonLines, Progress
    from fedtrellis.server.rounds import RoundStrategy
    from fedtrellis.server.secure_sum import SecureSum
    from fedtrellis.settings import SettingsError, setting
    from fedtrellis.wire.client import MethodClient, StatefulClient, client_app
    from fedtrellis.wire.local_grid import LocalGrid
    from fedtrellis.wire.local_work import Gradient, MiniBatches

__version__ = "0.2.0"

__all__ = [
    "Answer",
    "Callback",
    "Clipping",
    "EarlyStop",
    "Gradient",
    "JsonLines",
    "LocalGrid",
    "LoopStrategy",
    "Mean",
    "Median",
    "MethodClient",
    "MiniBatches",
    "Private",
    "Progress",
    "RoundRecord",
    "RoundStrategy",
    "SecureSum",
    "SettingsError",
    "StatefulClient",
    "TrimmedMean",
    "__version__",
    "client_app",
    "load_run",
    "setting",
]

# Imported when they are asked for: a node starts a process for every message, and needs
# nothing of the server's, nor a server of the nodes'.
_HOMES = {
    "Answer": "server.answers",
    "Callback": "server.callbacks",
    "Clipping": "server.aggregation",
    "EarlyStop": "server.callbacks",
    "Gradient": "wire.local_work",
    "JsonLines": "server.progress",
    "LocalGrid": "wire.local_grid",
    "LoopStrategy": "server.loop",
    "Mean": "server.aggregation",
    "Median": "server.aggregation",
    "MethodClient": "wire.client",
    "MiniBatches": "wire.local_work",
    "Private": "server.private",
    "Progress": "server.progress",
    "RoundRecord": "server.callbacks",
    "RoundStrategy": "server.rounds",
    "SecureSum": "server.secure_sum",
    "SettingsError": "settings",
    "StatefulClient": "wire.client",
    "TrimmedMean": "server.aggregation",
    "client_app": "wire.client",
    "load_run": "runs.load",
    "setting": "settings",
}


def __getattr__(name: str) -> Any:
    """Import the module that has it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """With what is imported when it is asked for."""
    return sorted({*globals(), *__all__})
