"""The server's half of HyFDCA."""

from .strategy import ENCRYPTIONS, SLOTS, STEPS, HyFDCA

__all__ = ["ENCRYPTIONS", "SLOTS", "STEPS", "HyFDCA"]
