"""Local SGD: FedAvg's local steps on mini-batches."""

from __future__ import annotations

from fedtrellis.settings import setting

from .fedavg_gd import FedAvgGD

__all__ = ["LocalSGD"]


class LocalSGD(FedAvgGD):
    """:class:`FedAvgGD` with a small mini-batch in every local step.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, with
    the settings of Zhou and Li, arXiv 2205.01438, section V.D, for its least squares.

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

    name = "local-sgd"
    about = "FedAvg with mini-batches, without a constraint"
    space = "whole"

    step_size: float = setting(
        0.005,
        "size of the first local step",
        symbol="a",
        above=0.0,
        formerly="local-step-size",
    )
    batch_fraction: float = setting(
        0.05,
        "part of a client's examples in a mini-batch",
        above=0.0,
        maximum=1.0,
    )
