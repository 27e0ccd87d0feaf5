"""What tasks whose samples and features are split over the clients have in common."""

from .task import ClientData, HybridTask

__all__ = ["ClientData", "HybridTask"]
