"""The server's half of every method."""

from .fedavg import (
    CompressedSGD,
    FedAvgGD,
    FedDR,
    FedOpt,
    FedProx,
    LocalSGD,
    ProjectedFedAvg,
    Scaffold,
)
from .fedfw import FedFW, NaiveFrankWolfe
from .fedgia import FedGiA
from .fedlmo import FedLMO
from .hybrid_fedavg import HybridFedAvg, HyFEM
from .hyfdca import HyFDCA
from .riemannian import FirstOrderRFL, ZerothOrderRFL
from .zeroth_order_sgd import ZerothOrderSGD

__all__ = ["CompressedSGD", "FedAvgGD", "FedDR", "FedFW", "FedGiA", "FedLMO", "FedOpt"]
__all__ += ["FedProx", "FirstOrderRFL", "HyFDCA", "HyFEM", "HybridFedAvg", "LocalSGD"]
__all__ += ["NaiveFrankWolfe", "ProjectedFedAvg", "Scaffold", "ZerothOrderRFL"]
__all__ += ["ZerothOrderSGD"]
