"""The client's half of every method."""

from .fedavg_gd import FedAvgGDClient
from .feddr import FedDRClient
from .fedfw import FedFWClient
from .fedgia import FedGiAClient
from .fedprox import FedProxClient
from .local_sgd import LocalSGDClient
from .naive_frank_wolfe import NaiveFrankWolfeClient
from .projected_fedavg import ProjectedFedAvgClient

__all__ = [
    "FedAvgGDClient",
    "FedDRClient",
    "FedFWClient",
    "FedGiAClient",
    "FedProxClient",
    "LocalSGDClient",
    "NaiveFrankWolfeClient",
    "ProjectedFedAvgClient",
]
