"""The server's half of every method."""

from .fedavg import (
    CompressedSGD,
    FedAvg,
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

__all__ = ["CompressedSGD", "FedAvg", "FedAvgGD", "FedDR", "FedFW", "FedGiA", "FedLMO"]
__all__ += ["FedOpt", "FedProx", "FirstOrderRFL", "HyFDCA", "HyFEM", "HybridFedAvg"]
__all__ += ["LocalSGD", "NaiveFrankWolfe", "ProjectedFedAvg", "Scaffold"]
__all__ += ["ZerothOrderRFL", "ZerothOrderSGD"]
