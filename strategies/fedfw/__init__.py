"""The server's half of federated Frank-Wolfe."""

from .strategy import STEP_COUNTS, VARIANTS, FedFW

__all__ = ["STEP_COUNTS", "VARIANTS", "FedFW"]
