"""The server's half of HyFDCA."""

from .settings import ENCRYPTIONS, SLOTS, STEPS
from .strategy import HyFDCA

__all__ = ["ENCRYPTIONS", "SLOTS", "STEPS", "HyFDCA"]
