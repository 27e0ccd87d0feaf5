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
    local_steps : int
        k_0.
    step_size : float
        a > 0.
    step_schedule : {"log", "constant", "inverse-sqrt"}
        γ_k = a / log₂(k + 1), a, or a/√k.
    batch_fraction : float
        In (0, 1]: the part of a client's examples in a mini-batch.
    **options
        Those of :class:`~fedtrellis.loop.RoundStrategy`.

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
        self,
        *,
        local_steps: int = 5,
        step_size: float = 0.005,
        step_schedule: str = "log",
        batch_fraction: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(
            local_steps=local_steps,
            step_size=step_size,
            step_schedule=step_schedule,
            batch_fraction=batch_fraction,
            **options,
        )
