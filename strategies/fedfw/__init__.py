"""The server's half of federated Frank-Wolfe."""

from .paper import one_atom
from .strategy import VARIANTS, FedFW

__all__ = ["VARIANTS", "FedFW", "one_atom"]
