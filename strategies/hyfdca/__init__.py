"""The server's half of HyFDCA."""

from .strategy import HyFDCA

__all__ = ["HyFDCA"]
