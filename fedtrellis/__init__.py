"""Constrained and structured federated optimisation for Flower."""

from typing import TYPE_CHECKING, Any

from fedtrellis import _moved
from fedtrellis.server.answers import Answer
from fedtrellis.server.callbacks import Callback, EarlyStop, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import JsonLines, Progress
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.client import StatefulClient, client_app
from fedtrellis.wire.local_grid import LocalGrid

if TYPE_CHECKING:
    from fedtrellis.runs.load import load_run

__version__ = "0.2.0"

_moved.install()

__all__ = [
    "Answer",
    "Callback",
    "EarlyStop",
    "JsonLines",
    "LocalGrid",
    "LoopStrategy",
    "Progress",
    "RoundRecord",
    "RoundStrategy",
    "SettingsError",
    "StatefulClient",
    "__version__",
    "client_app",
    "load_run",
]


def __getattr__(name: str) -> Any:
    """What only somebody at a keyboard needs is imported when it is asked for."""
    if name == "load_run":
        from fedtrellis.runs.load import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With what is imported when it is asked for."""
    return sorted({*globals(), *__all__})
