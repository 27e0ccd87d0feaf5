"""ρ of the corrective variant, fixed or balanced by the server from what it replays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Balance"]


class Balance:
    """The weight ρ of the consensus penalty.

    Parameters
    ----------
    fixed : float or None
        ρ for good; None: found by itself.
    """

    def __init__(self, fixed: float | None) -> None:
        self.fixed = fixed
        self.penalty = 1.0 if fixed is None else fixed

    def observe(self, primal: float, dual: float) -> None:
        """Take a round's residuals into account."""

    def state(self) -> NDArray[np.float64]:
        """What a checkpoint needs."""
        return np.array([self.penalty])

    def load_state(self, state: NDArray[np.float64]) -> None:
        """Inverse of :meth:`state`."""
        self.penalty = float(state[0])
