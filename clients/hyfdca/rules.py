"""What a node allows in a run of HyFDCA, whatever the server says."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.losses import DualLoss
from fedtrellis.settings import SettingsError, keys, parse, setting
from fedtrellis.wire.arrays import FloatArray

__all__ = ["NodeRules", "entry_counts"]

EXPOSED = ("refuse", "leave-out", "accept")


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """A node's own rules, in its node config under these names.

    Without a key of its own (in a simulation) a node takes the run's wishes instead.
    """

    least: int = setting(
        3,
        "least number of holders of a feature, of samples of a group, and of this "
        "node's non-zero entries of a feature; 2 more than may collude with the server",
        minimum=2,
    )
    exposed: str = setting(
        "refuse",
        "what to do where a sum over fewer would give single numbers away: refuse the "
        "run, leave out this node's rare entries, or accept it",
        choices=EXPOSED,
    )
    noise: float = setting(
        0.0,
        "standard deviation of the Gaussian noise on each number of v_k, in units of "
        "what one sample adds to it at most; the certificate does not hold then",
        minimum=0.0,
    )
    answers: int | None = setting(
        None,
        "different questions that this node answers in a run; auto: as many as the run "
        "declares before round 1, its rounds and a tenth more",
        minimum=1,
    )
    refusals: int = setting(
        64,
        "refused ciphertexts, of all holders of a key together, after which a BFV key "
        "is not used any more",
        minimum=1,
    )
    resumes: int = setting(
        10, "how often a run may go back to an earlier iteration", minimum=0
    )
    max_weight_norm: float | None = setting(
        None,
        "largest norm of w at this node's features; auto: 2√(2 l(0)/λ), twice what an "
        "honest run can come to",
        above=0.0,
    )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NodeRules:
        """Read the rules that a mapping has, by their names.

        Raises
        ------
        SettingsError
            One has a value that is not allowed; or a key looks like a rule's, and is
            none: a rule with a slip in its name would protect nothing.
        """
        for key in set(config) - set(keys(cls)):
            meant = get_close_matches(str(key).replace("_", "-"), keys(cls), 1, 0.8)
            if meant:
                raise SettingsError(
                    f"{key} = {config[key]!r} in the node config is not known; did you "
                    f"mean {meant[0]!r}?"
                )
        return parse(cls, config)

    def weight_bound(
        self,
        loss: DualLoss,
        regularization: float,
        labels: FloatArray,
        weights: FloatArray | None = None,
    ) -> float:
        """Return the largest norm of w that this node answers at.

        D(α) ≥ D(0) = 0 holds throughout a run of the safe steps, so

            (λ/2)‖w‖² ≤ −(1/N) Σ l_i*(−α_i) ≤ (1/N) Σ l_i(0).

        Twice that leaves room for other nodes' noise. For a loss of signs l_i(0) is one
        number. For the squared loss this node knows its own labels only, and allows
        ten times the mean of its own, weighted if samples have weights.
        """
        if self.max_weight_norm is not None:
            return self.max_weight_norm
        values = loss.value(np.zeros_like(labels), labels)
        if weights is not None and not weights.any():
            weights = None
        at_zero = float(np.average(values, weights=weights))
        slack = 1.0 if loss.labels == "signs" else 10.0
        return 2.0 * sqrt(2.0 * slack * at_zero / regularization)


# Of data that is alive: counting takes longer than a small client's whole answer.
_COUNTS: dict[int, tuple[weakref.ref[Any], NDArray[np.int64]]] = {}


def entry_counts(features: Any) -> NDArray[np.int64]:
    """Return the number of non-zero entries of each column, shape (p_k,)."""
    key = id(features)
    known = _COUNTS.get(key)
    if known is not None and known[0]() is features:
        return known[1]
    if isinstance(features, np.ndarray):
        counts = np.count_nonzero(features, axis=0)
    else:
        from scipy import sparse

        csc = sparse.csc_array(features)
        csc.eliminate_zeros()
        counts = np.diff(csc.indptr)
    found: NDArray[np.int64] = np.asarray(counts, dtype=np.int64)
    try:
        # of the key alone: a reference to the data would keep it alive
        reference = weakref.ref(features, lambda _: _COUNTS.pop(key, None))
    except TypeError:
        return found
    _COUNTS[key] = reference, found
    return found
