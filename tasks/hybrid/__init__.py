"""Tasks whose samples and features are split over the clients."""

from .shares import ClientData
from .task import HybridLinear, HybridLogistic, HybridSVM, HybridTask

__all__ = ["ClientData", "HybridLinear", "HybridLogistic", "HybridSVM", "HybridTask"]
