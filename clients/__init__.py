"""The client's half of every method."""

from .fedavg import (
    CompressedSGDClient,
    FedAvgGDClient,
    FedDRClient,
    FedLMOClient,
    FedOptClient,
    FedProxClient,
    LocalSGDClient,
    ProjectedFedAvgClient,
    ScaffoldClient,
)
from .fedfw import FedFWClient, NaiveFrankWolfeClient
from .fedgia import FedGiAClient
from .hybrid_fedavg import HybridFedAvgClient, HyFEMClient
from .hyfdca import HyFDCAClient
from .riemannian import FirstOrderRFLClient, ZerothOrderRFLClient
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
