"""The client's half of every method."""

from .compressed_sgd import CompressedSGDClient
from .fedavg_gd import FedAvgGDClient
from .feddr import FedDRClient
from .fedfw import FedFWClient
from .fedgia import FedGiAClient
from .fedlmo import FedLMOClient
from .fedopt import FedOptClient
from .fedprox import FedProxClient
from .first_order_rfl import FirstOrderRFLClient
from .hybrid_fedavg import HybridFedAvgClient
from .hyfdca import HyFDCAClient
from .hyfem import HyFEMClient
from .local_sgd import LocalSGDClient
from .naive_frank_wolfe import NaiveFrankWolfeClient
from .projected_fedavg import ProjectedFedAvgClient
from .scaffold import ScaffoldClient
from .zeroth_order_rfl import ZerothOrderRFLClient
from .zeroth_order_sgd import ZerothOrderSGDClient

__all__ = [
    "CompressedSGDClient",
    "FedAvgGDClient",
    "FedDRClient",
    "FedFWClient",
    "FedGiAClient",
    "FedLMOClient",
    "FedOptClient",
    "FedProxClient",
    "FirstOrderRFLClient",
    "HyFDCAClient",
    "HyFEMClient",
    "HybridFedAvgClient",
    "LocalSGDClient",
    "NaiveFrankWolfeClient",
    "ProjectedFedAvgClient",
    "ScaffoldClient",
    "ZerothOrderRFLClient",
    "ZerothOrderSGDClient",
]
