"""The server's half of every method."""

from .fedfw import FedFW

__all__ = ["FedFW"]
