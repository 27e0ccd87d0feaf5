"""Local SGD: FedAvg's local steps on mini-batches."""

from __future__ import annotations

from typing import Any

from .fedavg_gd import FedAvgGD

__all__ = ["LocalSGD"]


class LocalSGD(FedAvgGD):
    """:class:`FedAvgGD` with a small mini-batch in every local step.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, with
    the settings of Zhou and Li, arXiv 2205.01438, section V.D, for its least squares.

    Parameters
    ----------
    step_size : float
        a > 0.
    batch_fraction : float
        In (0, 1]: the part of a client's examples in a mini-batch.
    **options
        Those of :class:`FedAvgGD`: local_steps, step_schedule, ....

    Raises
    ------
    SettingsError
        If a parameter has a value that is not allowed.

    Notes
    -----
    The matching client is ``LocalSGDClient(context, objective)``; its objective needs
    ``stochastic_gradient(x, rng, batch_size)`` and ``num_examples``. Batches depend on
    the run's seed, the client and the round alone.
    """

    def __init__(
        self, *, step_size: float = 0.005, batch_fraction: float = 0.05, **options: Any
    ) -> None:
        super().__init__(step_size=step_size, batch_fraction=batch_fraction, **options)
