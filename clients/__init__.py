"""The client's half of every method."""

from .fedavg import (
    CompressedSGDClient,
    FedAvgClient,
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

__all__ = ["CompressedSGDClient", "FedAvgClient", "FedAvgGDClient", "FedDRClient"]
__all__ += ["FedFWClient", "FedGiAClient", "FedLMOClient", "FedOptClient"]
__all__ += ["FedProxClient", "FirstOrderRFLClient", "HyFDCAClient", "HyFEMClient"]
__all__ += ["HybridFedAvgClient", "LocalSGDClient", "NaiveFrankWolfeClient"]
__all__ += ["ProjectedFedAvgClient", "ScaffoldClient", "ZerothOrderRFLClient"]
__all__ += ["ZerothOrderSGDClient"]
