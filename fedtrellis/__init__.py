"""Constrained and structured federated optimisation for Flower."""

from fedtrellis.callbacks import Callback, EarlyStop, RoundRecord
from fedtrellis.client import StatefulClient, client_app
from fedtrellis.local import LocalGrid
from fedtrellis.loop import RoundStrategy
from fedtrellis.method import Answer
from fedtrellis.progress import JsonLines, Progress
from fedtrellis.settings import SettingsError

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Callback",
    "EarlyStop",
    "JsonLines",
    "LocalGrid",
    "Progress",
    "RoundRecord",
    "RoundStrategy",
    "SettingsError",
    "StatefulClient",
    "__version__",
    "client_app",
]
