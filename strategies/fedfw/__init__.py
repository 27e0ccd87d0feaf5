"""The server's half of federated Frank-Wolfe."""

from .settings import VARIANTS
from .strategy import FedFW

__all__ = ["VARIANTS", "FedFW"]
