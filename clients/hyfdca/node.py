"""What a node brings to a run: its part of the data, and its owner's rules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedtrellis.dual.columns import Shifted
from fedtrellis.encryption import Cipher
from fedtrellis.encryption.identity import Identity, Roster
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.settings import SettingsError, keys, parse, setting
from fedtrellis.wire.arrays import FloatArray

from ..hybrid import SplitClient


class NewSamples(NamedTuple):
    """Samples to be scored, as one client knows them.

    Attributes
    ----------
    features : ndarray or scipy sparse array of shape (n, p_k)
        The columns are those of the client's training data.
    sample_ids : sequence of str
    labels : ndarray of shape (n,) or None
        To measure loss and accuracy; NaN where there is none.
    """

    features: Any
    sample_ids: Sequence[str]
    labels: NDArray[Any] | None = None


class Predictions(NamedTuple):
    """Of new samples, on a node that holds some of their features.

    Attributes
    ----------
    sample_ids : sequence of str
    scores : ndarray of shape (n,), or (n, C) of C classes
        xᵀw; NaN where another holder of a sample did not take part.
    predicted : ndarray of shape (n,)
        −1 or 1; of several classes their number; of regressions the expected value.
    probabilities : ndarray of the scores' shape, or None
        σ(xᵀw) of the logistic loss, whose model says so; None of other losses.
    calibrated : ndarray of the scores' shape, or None
        By Platt's sigmoid, fitted to the new samples of which this node has labels, at
        least five of each class and of the rest; else None.
    """

    sample_ids: Sequence[str]
    scores: FloatArray
    predicted: FloatArray
    probabilities: FloatArray | None
    calibrated: FloatArray | None


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
        choices=("refuse", "leave-out", "accept"),
    )
    noise: float = setting(
        0.0,
        "standard deviation of the Gaussian noise on each number of v_k, in units of "
        "what one sample adds to it at most; the certificate does not hold then",
        minimum=0.0,
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


class SplitPart(SplitClient):
    """One client's part of the split data, its keys and its state: ``HyFDCAClient``."""

    state: Any

    def __init__(
        self,
        context: Context,
        features: Any,
        feature_names: Sequence[str],
        sample_ids: Sequence[str],
        labels: NDArray[Any] | None = None,
        loss: str | None = None,
        key: Cipher | str | Path | None = None,
        new_samples: NewSamples | None = None,
        on_scores: Callable[[Sequence[str], FloatArray], None] | None = None,
        *,
        identity: Identity | str | Path | None = None,
        roster: Roster | str | Path | None = None,
        ledger: str | Path | None = None,
        rules: NodeRules | None = None,
        on_predictions: Callable[[Predictions], None] | None = None,
        weights: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(context, features, feature_names, sample_ids, labels, loss)
        self.weights, self.rules = weights, rules
        self.new_samples, self.on_scores = new_samples, on_scores
        self.on_predictions = on_predictions
        self.node = NodeSecrets(
            self.client_id,
            context.node_config,
            key=key,
            identity=identity,
            roster=roster,
            ledger=ledger,
        )


# What was made of data that is alive, so that a client that is made anew for each
# message does not make it for each: by the data's id and what it is.
_KEPT: dict[tuple[Any, ...], tuple[weakref.ref[Any], Any]] = {}


def kept(features: Any, what: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What is made of some data, made once as long as the data is alive."""
    key = id(features), *what
    known = _KEPT.get(key)
    if known is not None and known[0]() is features:
        return known[1]
    made = make()
    try:
        # of the key alone: a reference to the data would keep it alive
        reference = weakref.ref(features, lambda _: _KEPT.pop(key, None))
    except TypeError:
        return made
    _KEPT[key] = reference, made
    return made


def entry_counts(features: Any) -> NDArray[np.int64]:
    """Return the number of non-zero entries of each column, shape (p_k,)."""
    return np.asarray((features != 0.0).sum(axis=0), dtype=np.int64).ravel()


def without_rare(features: Any, least: int) -> Any:
    """Features with zeros in the columns that have fewer than ``least`` entries."""

    def left() -> Any:
        counts = entry_counts(features)
        keep = np.where((counts > 0) & (counts < least), 0.0, 1.0)
        if keep.all():
            return None
        if isinstance(features, np.ndarray):
            return features * keep
        from scipy import sparse

        found = sparse.csr_array(features.multiply(keep[None, :]))
        found.eliminate_zeros()
        return found

    found = kept(features, ("without rare", least), left)
    return features if found is None else found


def column_sums(features: Any, weights: FloatArray | None = None) -> FloatArray:
    """Σ x and Σ x² of each column, or Σ s x and Σ s x², shape (2, p_k)."""
    both = features, _squares(features)
    if weights is not None:
        return np.stack([np.asarray(f.T @ weights) for f in both])
    return np.stack([np.asarray(f.sum(axis=0), np.float64).ravel() for f in both])


def squared_norms(features: Any) -> FloatArray:
    """‖x_{k,i}‖² of every row."""
    if isinstance(features, Shifted):
        return features.squared_norms()
    return np.asarray(_squares(features).sum(axis=1), dtype=np.float64).reshape(-1)


def _squares(features: Any) -> Any:
    sparse = hasattr(features, "multiply")
    return features.multiply(features) if sparse else features**2
