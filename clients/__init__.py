"""The client's half of every method."""

from .feddr import FedDRClient
from .fedfw import FedFWClient
from .naive_frank_wolfe import NaiveFrankWolfeClient
from .projected_fedavg import ProjectedFedAvgClient

__all__ = [
    "FedDRClient",
    "FedFWClient",
    "NaiveFrankWolfeClient",
    "ProjectedFedAvgClient",
]
