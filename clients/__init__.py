"""The client's half of every method."""

from .fedavg_gd import FedAvgGDClient
from .feddr import FedDRClient
from .fedfw import FedFWClient
from .fedgia import FedGiAClient
from .fedprox import FedProxClient
from .first_order_rfl import FirstOrderRFLClient
from .local_sgd import LocalSGDClient
from .naive_frank_wolfe import NaiveFrankWolfeClient
from .projected_fedavg import ProjectedFedAvgClient
from .zeroth_order_rfl import ZerothOrderRFLClient

__all__ = [
    "FedAvgGDClient",
    "FedDRClient",
    "FedFWClient",
    "FedGiAClient",
    "FedProxClient",
    "FirstOrderRFLClient",
    "LocalSGDClient",
    "NaiveFrankWolfeClient",
    "ProjectedFedAvgClient",
    "ZerothOrderRFLClient",
]
