"""The client's half of HyFDCA."""

from .client import HyFDCAClient
from .preparation import LabelError
from .run import NewSamples, Predictions

__all__ = ["HyFDCAClient", "LabelError", "NewSamples", "Predictions"]
