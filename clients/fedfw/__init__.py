"""The client's half of federated Frank-Wolfe."""

from .client import FedFWClient

__all__ = ["FedFWClient"]
