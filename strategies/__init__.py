"""The server's half of every method."""

from .compressed_sgd import CompressedSGD
from .fedavg_gd import FedAvgGD
from .feddr import FedDR
from .fedfw import FedFW
from .fedgia import FedGiA
from .fedlmo import FedLMO
from .fedopt import FedOpt
from .fedprox import FedProx
from .first_order_rfl import FirstOrderRFL
from .hybrid_fedavg import HybridFedAvg
from .hyfdca import HyFDCA
from .hyfem import HyFEM
from .local_sgd import LocalSGD
from .naive_frank_wolfe import NaiveFrankWolfe
from .projected_fedavg import ProjectedFedAvg
from .scaffold import Scaffold
from .zeroth_order_rfl import ZerothOrderRFL
from .zeroth_order_sgd import ZerothOrderSGD

__all__ = [
    "CompressedSGD",
    "FedAvgGD",
    "FedDR",
    "FedFW",
    "FedGiA",
    "FedLMO",
    "FedOpt",
    "FedProx",
    "FirstOrderRFL",
    "HyFDCA",
    "HyFEM",
    "HybridFedAvg",
    "LocalSGD",
    "NaiveFrankWolfe",
    "ProjectedFedAvg",
    "Scaffold",
    "ZerothOrderRFL",
    "ZerothOrderSGD",
]
