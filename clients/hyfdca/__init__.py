"""The client's half of HyFDCA."""

from .client import HyFDCAClient
from .node import NewSamples, Predictions
from .preparation import LabelError

__all__ = ["HyFDCAClient", "LabelError", "NewSamples", "Predictions"]
