"""The server's half of every method."""

from .feddr import FedDR
from .fedfw import FedFW
from .naive_frank_wolfe import NaiveFrankWolfe
from .projected_fedavg import ProjectedFedAvg

__all__ = ["FedDR", "FedFW", "NaiveFrankWolfe", "ProjectedFedAvg"]
