"""The client's half of HyFDCA."""

from .base import NewSamples
from .client import HyFDCAClient
from .predictions import Predictions
from .preparation import LabelError

__all__ = ["HyFDCAClient", "LabelError", "NewSamples", "Predictions"]
