"""Convex sets: their linear minimisation oracles and projections."""

from collections.abc import Mapping

from fedtrellis.domains.base import Domain

# A line a set, in the order of listings: what stands here is exported and registered.
# isort: off
from fedtrellis.domains.vectors import L1Ball as L1Ball
from fedtrellis.domains.vectors import L2Ball as L2Ball
from fedtrellis.domains.vectors import LInfBall as LInfBall
from fedtrellis.domains.vectors import Box as Box
from fedtrellis.domains.nonnegative import Simplex as Simplex
from fedtrellis.domains.sparse import KSupportBall as KSupportBall
from fedtrellis.domains.matrices import NuclearNormBall as NuclearNormBall
from fedtrellis.domains.matrices import SpectralNormBall as SpectralNormBall
from fedtrellis.domains.matrices import BirkhoffPolytope as BirkhoffPolytope
from fedtrellis.domains.sparse import GroupL1Ball as GroupL1Ball
from fedtrellis.domains.nonnegative import NonNegativeL1Ball as NonNegativeL1Ball
from fedtrellis.domains.nonnegative import CappedSimplex as CappedSimplex
from fedtrellis.domains.weighted import WeightedL1Ball as WeightedL1Ball
from fedtrellis.domains.weighted import SortedL1Ball as SortedL1Ball
from fedtrellis.domains.sparse import SparseGroupBall as SparseGroupBall
from fedtrellis.domains.vectors import TotalVariationBall as TotalVariationBall
from fedtrellis.domains.weighted import Permutahedron as Permutahedron
from fedtrellis.domains.matrices import Spectrahedron as Spectrahedron
from fedtrellis.domains.product import Product as Product
from fedtrellis.domains.product import constrain as constrain
from fedtrellis.domains.vectors import WholeSpace as WholeSpace
# isort: on

_SETS: list[type[Domain]] = [
    thing
    for thing in list(globals().values())
    if isinstance(thing, type) and issubclass(thing, Domain) and thing is not Domain
]

#: Every set that a run config may name, the whole space among them: a product's parts
#: are more than it can give.
RUN_DOMAINS: dict[str, type[Domain]] = {
    cls.name: cls for cls in _SETS if cls is not Product
}

__all__ = ["RUN_DOMAINS", "Domain", "constrain", "fitting_domains"]
__all__ += [cls.__name__ for cls in _SETS]


def fitting_domains(
    suggested: Mapping[str, float], domains: Mapping[str, type[Domain]] = RUN_DOMAINS
) -> dict[str, float]:
    """Return all sets that fit a task, from the names of those that it suggests.

    These come with the radius that the task has for each, or 0.0. Where one of them
    says that the task is one over any vectors (:attr:`Domain.any_vector`), every
    bounded set of vectors among ``domains`` fits, and follows with 0.0.

    Examples
    --------
    >>> from fedtrellis.domains import fitting_domains
    >>> list(fitting_domains({"birkhoff-polytope": 0.0}))
    ['birkhoff-polytope']
    """
    fitting = dict(suggested)
    if any(domains[name].any_vector for name in suggested if name in domains):
        for name, cls in domains.items():
            if cls.of_vectors and cls.bounded:
                fitting.setdefault(name, 0.0)
    return fitting
