"""Sets with the shape of their points and the kind of their atoms, for all tests."""

from __future__ import annotations

import numpy as np
import pytest

from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    CappedSimplex,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NonNegativeL1Ball,
    NuclearNormBall,
    Permutahedron,
    Product,
    Simplex,
    SortedL1Ball,
    SparseGroupBall,
    Spectrahedron,
    SpectralNormBall,
    TotalVariationBall,
    WeightedL1Ball,
)
from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
)

Shape = tuple[int, ...]
GROUPS = [[0, 8], [1, 3, 5], [2, 4], [6, 7]]
WEIGHTS = np.array([0.25, 3.0, 0.5, 1.0, 2.0, 0.75, 1.5, 2.5, 1.25])

EXAMPLES: list[tuple[Domain, Shape, type[Atom]]] = [
    (L1Ball(2.5), (3, 3), SparseAtom),
    (L2Ball(0.7), (9,), DenseAtom),
    (LInfBall(1.5), (9,), SignAtom),
    (Box(-0.5, 2.0), (9,), SignAtom),
    (Box(-np.arange(9.0), 1.0), (9,), DenseAtom),
    (Simplex(), (9,), SparseAtom),
    (KSupportBall(3, 2.0), (9,), SparseAtom),
    (NuclearNormBall(2.0), (3, 4), RankOneAtom),
    (SpectralNormBall(1.3), (4, 3), DenseAtom),
    (BirkhoffPolytope(), (4, 4), PermutationAtom),
    (GroupL1Ball(2.0, 3), (9,), SparseAtom),
    (GroupL1Ball(2.0, GROUPS), (3, 3), SparseAtom),
    (
        Product([L1Ball(1.0), NuclearNormBall(2.0)], [(3,), (2, 3)]),
        (9,),
        ProductAtom,
    ),
    (NonNegativeL1Ball(2.5), (9,), SparseAtom),
    (CappedSimplex(0.4, 2.5), (9,), SparseAtom),
    (CappedSimplex(0.3, 0.9), (3, 3), SparseAtom),
    (WeightedL1Ball(1.5, 2.5), (3, 3), SparseAtom),
    (WeightedL1Ball(WEIGHTS, 2.5), (9,), SparseAtom),
    (WeightedL1Ball(WEIGHTS.reshape(3, 3), 2.5), (3, 3), SparseAtom),
    (SortedL1Ball(0.3, 2.5), (9,), SparseAtom),
    (
        SortedL1Ball(np.array([2.0, 1, 1, 0.5, 0, 0, 0, 0, 0]), 2.5),
        (3, 3),
        SparseAtom,
    ),
    (SparseGroupBall(2.0, 3, 0.0), (9,), SparseAtom),
    (SparseGroupBall(2.0, GROUPS, 0.6), (3, 3), SparseAtom),
    (TotalVariationBall(2.5), (9,), SignAtom),
    (Permutahedron(2.5), (9,), DenseAtom),
    (
        Permutahedron(np.array([2.0, 0, 0, -1, 0, 0, 0, 1, 0])),
        (3, 3),
        SparseAtom,
    ),
    (Spectrahedron(2.0), (4, 4), RankOneAtom),
]
IDS = [f"{domain.name}-{i}" for i, (domain, _, _) in enumerate(EXAMPLES)]
examples = pytest.mark.parametrize(("domain", "shape", "atom"), EXAMPLES, ids=IDS)

CASES = [(domain, shape) for domain, shape, _ in EXAMPLES]
all_cases = pytest.mark.parametrize(("domain", "shape"), CASES, ids=IDS)
