"""The server's half of FedGiA."""

from .strategy import FedGiA

__all__ = ["FedGiA"]
