"""The client of HyFDCA: all of its phases."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .base import Fit
from .new_samples import Scoring
from .proposals import Proposals
from .updates import Updates

__all__ = ["HyFDCAClient"]


class HyFDCAClient(Proposals, Updates, Scoring):
    """One client of HyFDCA; see ``HyFDCA`` for the algorithm.

    Parameters
    ----------
    context : Context
        What ``client_fn`` was given. Node config: ``key-file="PATH"`` names the
        clients' key (``fedtrellis-keys``), if ``key`` is not given.
    features : ndarray or scipy sparse array of shape (n_k, p_k)
        x_{k,i}: what this client knows of its samples. Load or make it behind a
        module-level ``functools.lru_cache``.
    feature_names : sequence of str
        Names of the columns, the same on every client that holds the feature.
    sample_ids : sequence of str
        Ids of the rows, the same on every client that holds the sample. They do not
        leave this client in the clear. The order must not change during a run.
    labels : ndarray of shape (n_k,), optional
        y_i; NaN where this client has none. One holder of a sample is enough.
    loss : str, optional
        The loss that this client agrees to; by default the server's.
    key : Cipher or path, optional
        The clients' shared key. Without one, and without a key file, the clients of
        one machine make a key for the run: for simulations.
    new_samples : NewSamples, optional
        Samples to score with the model (``client_evaluate_every`` of the strategy, or
        its ``predict``), of which this client has these features.
    on_scores : callable, optional
        Given the new samples' ids and their scores xᵀw, NaN where another holder did
        not take part.

    Notes
    -----
    State, samples in the order of the groups: rows, groups, sizes, holders (the
    alignment), labels, norms (‖x_i‖²); for each group g the proposals that it
    remembers, ``points/g`` of shape (c, n_g), the last being α, their ``ids/g`` and
    ``step/g``. With the paper's steps ``alpha``.
    """

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Not one of HyFDCA's phases."""
        raise NotImplementedError("HyFDCA has several waves a round: fit_NAME each")
