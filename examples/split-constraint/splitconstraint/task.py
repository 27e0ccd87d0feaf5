"""What is learnt: a portfolio that follows an index, its shares under a cap."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedtrellis.domains import Box, CappedSimplex, Domain, Simplex
from fedtrellis.objectives import LeastSquares

ASSETS, DAYS = 30, 60
CAP = 0.06

#: D: shares that are not negative, add up to 1 and do not exceed the cap.
DOMAIN = CappedSimplex(CAP, radius=1.0)
#: What a node has instead. The two have D in common, and nothing else.
NODE_DOMAINS: tuple[Domain, Domain] = (Simplex(1.0), Box(0.0, CAP))


def node_domain(partition_id: int) -> Domain:
    """Return a node's set: one knows that shares add up to 1, the next one the cap."""
    return NODE_DOMAINS[partition_id % 2]


@lru_cache
def load_objective(partition_id: int) -> LeastSquares:
    """Return a node's loss, half the mean square of what its days are off by.

    Returns in per cent: the market's, and each asset's own. In the index a few assets
    have more than the cap.
    """
    shares = np.random.default_rng(7).lognormal(sigma=1.2, size=ASSETS)
    shares /= shares.sum()
    rng = np.random.default_rng([7, partition_id])
    returns = rng.normal(size=(DAYS, 1)) + rng.normal(size=(DAYS, ASSETS))
    return LeastSquares(returns, returns @ shares, scale="half-mean")
