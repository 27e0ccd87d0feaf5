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

__all__ = ["CompressedSGDClient", "FedAvgGDClient", "FedDRClient", "FedFWClient"]
__all__ += ["FedGiAClient", "FedLMOClient", "FedOptClient", "FedProxClient"]
__all__ += ["FirstOrderRFLClient", "HyFDCAClient", "HyFEMClient", "HybridFedAvgClient"]
__all__ += ["LocalSGDClient", "NaiveFrankWolfeClient", "ProjectedFedAvgClient"]
__all__ += ["ScaffoldClient", "ZerothOrderRFLClient", "ZerothOrderSGDClient"]
