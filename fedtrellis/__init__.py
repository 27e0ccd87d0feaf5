"""Constrained and structured federated optimisation for Flower."""

from fedtrellis import _moved
from fedtrellis.server.answers import Answer
from fedtrellis.server.callbacks import Callback, EarlyStop, RoundRecord
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import JsonLines, Progress
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError
from fedtrellis.wire.client import StatefulClient, client_app
from fedtrellis.wire.local_grid import LocalGrid

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
]
