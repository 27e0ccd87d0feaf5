"""The client's half of every method."""

from .fedfw import FedFWClient

__all__ = ["FedFWClient"]
