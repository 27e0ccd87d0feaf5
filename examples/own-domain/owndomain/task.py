"""What is learnt: coefficients of sensors that come in groups, from spoilt data."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from owndomain.domain import GroupMaxBall
from owndomain.objective import Huber

GROUP, GROUPS, ROWS = 4, 10, 60
#: Two groups matter: sensors 0 to 3 with 1.5 each, 4 to 7 with -1 each.
TRUTH = np.repeat([1.5, -1.0, *[0.0] * (GROUPS - 2)], GROUP)


def make_domain() -> GroupMaxBall:
    """Return the set, just large enough for the truth; the same on every node."""
    return GroupMaxBall(GROUP, float(np.abs(TRUTH[::GROUP]).sum()))


@lru_cache
def load_objective(partition_id: int) -> Huber:
    """Return a node's loss; the sensors of a group measure nearly the same."""
    rng = np.random.default_rng([7, partition_id])
    common = rng.normal(size=(ROWS, GROUPS))
    features = np.repeat(common, GROUP, axis=1)
    features += 0.1 * rng.normal(size=features.shape)
    targets = features @ TRUTH + 0.1 * rng.normal(size=ROWS)
    # every tenth measurement is wrong
    spoilt = rng.random(ROWS) < 0.1
    targets[spoilt] += rng.normal(scale=10.0, size=int(spoilt.sum()))
    return Huber(features, targets)
