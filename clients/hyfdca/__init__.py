"""The client's half of HyFDCA."""

from .client import HyFDCAClient
from .node import NewSamples
from .preparation import LabelError
from .scoring import Predictions

__all__ = ["HyFDCAClient", "LabelError", "NewSamples", "Predictions"]
