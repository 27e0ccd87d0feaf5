"""Steps and gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, log2, sqrt
from typing import Any, Literal, get_args

import numpy as np

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, check_choice
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.local_work import Descent, Gradient, MiniBatches, Request
from fedtrellis.wire.protocol import ANSWER_BOUND

__all__ = [
    "STEP_SCHEDULES",
    "LocalSteps",
    "ScheduledSteps",
    "check_steps",
    "mini_batches",
    "scheduled_steps",
    "sizes_of",
    "step_size_at",
    "take_steps",
]

StepSchedule = Literal["log", "constant", "inverse-sqrt"]
STEP_SCHEDULES: tuple[StepSchedule, ...] = get_args(StepSchedule)


@dataclass(frozen=True)
class LocalSteps:
    """How a client takes gradient steps of its own within a round.

    Parameters
    ----------
    count : int
        k, at least 1.
    size : float
        γ > 0.
    batch_size : int
        Examples in a mini-batch; 0: all.
    """

    count: int
    size: float
    batch_size: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingsError(f"local_steps = {self.count} must be at least 1")
        if not 0.0 < self.size < inf:
            raise SettingsError(f"local_step_size = {self.size} must be greater than 0")
        if self.batch_size < 0:
            raise SettingsError(f"batch_size = {self.batch_size} must be at least 0")

    def instruction(self, seed: int) -> dict[str, Any]:
        """What a client needs to be told, for :func:`mini_batches` too."""
        return {
            "local-steps": self.count,
            "local-step-size": self.size,
            "batch-size": self.batch_size,
            "seed": seed,
        }


def step_size_at(schedule: str, size: float, k: int) -> float:
    """γ_k, the step size of iteration k.

    Parameters
    ----------
    schedule : {"log", "constant", "inverse-sqrt"}
        How γ_k falls.
    size : float
        a, which is γ_1 in every schedule.
    k : int
        From 1, counted over all rounds.
    """
    if schedule == "log":
        # γ_k = a / log₂(k + 1)
        return size / log2(k + 1)
    if schedule == "inverse-sqrt":
        # γ_k = a / √k
        return size / sqrt(k)
    return size


@dataclass(frozen=True)
class ScheduledSteps:
    """Local gradient steps whose size falls from iteration to iteration.

    Parameters
    ----------
    count : int
        k_0, the steps of a round, at least 1.
    size : float
        a > 0.
    schedule : {"log", "constant", "inverse-sqrt"}
        See :func:`step_size_at`.
    batch_fraction : float
        In (0, 1]: the part of its own examples in a client's mini-batch; 1: the full
        gradient.
    """

    count: int
    size: float
    schedule: str
    batch_fraction: float = 1.0

    def __post_init__(self) -> None:
        if not (self.count >= 1 and float(self.count).is_integer()):
            raise SettingsError(
                f"local_steps = {self.count} must be a whole number and at least 1"
            )
        if not 0.0 < self.size < inf:
            raise SettingsError(f"step_size = {self.size} must be greater than 0")
        check_choice("step_schedule", self.schedule, STEP_SCHEDULES)
        if not 0.0 < self.batch_fraction <= 1.0:
            raise SettingsError(
                f"batch_fraction = {self.batch_fraction} must be greater than 0 "
                "and at most 1"
            )

    def sizes(self, server_round: int) -> list[float]:
        """The step sizes of a round's k_0 iterations."""
        # k = (t − 1) k_0 + j, j = 1..k_0, in round t: whoever sits out misses his k
        before = (server_round - 1) * self.count
        return [
            step_size_at(self.schedule, self.size, before + j)
            for j in range(1, self.count + 1)
        ]

    def instruction(self, seed: int) -> dict[str, Any]:
        """What a client needs to be told, for :func:`mini_batches` too."""
        entries: dict[str, Any] = {
            "local-steps": int(self.count),
            "step-size": float(self.size),
            "step-schedule": self.schedule,
        }
        if self.batch_fraction < 1.0:
            entries["batch-fraction"] = float(self.batch_fraction)
            entries["seed"] = seed
        return entries


def sizes_of(config: Mapping[str, Any]) -> tuple[float, ...]:
    """The step sizes that a request asks for as :class:`ScheduledSteps`."""
    # once for all clients of a round
    return _sizes(
        config["local-steps"],
        config["step-size"],
        config["step-schedule"],
        config.get("batch-fraction", 1.0),
        config["server-round"],
    )


@lru_cache(maxsize=8)
def _sizes(
    count: int, size: float, schedule: str, batch_fraction: float, server_round: int
) -> tuple[float, ...]:
    steps = ScheduledSteps(count, size, schedule, batch_fraction)
    return tuple(steps.sizes(server_round))


def check_steps(
    point: FloatArray,
    start: FloatArray,
    config: Mapping[str, Any],
    key: str = "step-size",
) -> None:
    """Say so where local steps have carried a point away from all proportion.

    The server would refuse it, and not know why.

    Parameters
    ----------
    point, start : ndarray, of one shape
        Where the steps are, and where they began. What overflows on the way is
        reported once, by the error.
    config : mapping
        What the server sent.
    key : str
        Under which it has the size of the steps, for the message.

    Raises
    ------
    FloatingPointError
        They have diverged.
    """
    bound = _bound(config)
    # a product of vectors warns of nothing
    square = float(np.vdot(point, point))
    # ‖x_i‖ ≤ b · max(1, ‖x‖);  NaN is no less either
    if square <= bound**2:
        return
    if not square <= bound**2 * max(1.0, float(np.vdot(start, start))):
        raise FloatingPointError(
            f"the local steps diverged: {key} = {config[key]} is too long"
        )


def _bound(config: Mapping[str, Any]) -> float:
    """B of ‖x_i‖ ≤ b · max(1, ‖x‖), beyond which x_i is no answer."""
    return float(config.get("answer-bound", ANSWER_BOUND))


def _batch_size(objective: Any, config: Mapping[str, Any]) -> int:
    """Examples in a mini-batch; 0: all."""
    fraction = float(config.get("batch-fraction", 1.0))
    if fraction < 1.0:
        # ⌈fraction · d_i⌉; 0.07·100 is 7.0…01 by rounding alone
        return max(1, ceil(fraction * int(objective.num_examples) - 1e-9))
    return int(config.get("batch-size", 0))


def mini_batches(
    objective: Any, client_id: str, config: Mapping[str, Any]
) -> MiniBatches | None:
    """The mini-batches that a request asks for; None: gradients on all examples.

    Parameters
    ----------
    objective : object
        f_i. With mini-batches it needs ``stochastic_gradient(x, rng, batch_size)``.
    client_id : str
        The batches' random numbers derive from it, the run's seed and the round.
    config : mapping
        What the server sent: ``batch-size`` above 0, or ``batch-fraction`` below 1 of
        the objective's ``num_examples``.
    """
    size = _batch_size(objective, config)
    if not size:
        return None
    rng = generator(config["seed"], "mini-batch", client_id, config["server-round"])
    return MiniBatches(rng, size)


def take_steps(
    x: FloatArray,
    sizes: Sequence[float],
    batches: MiniBatches | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    pull: float = 0.0,
    correction: FloatArray | None = None,
) -> Generator[Request, Any, FloatArray]:
    """x_k ← x_{k−1} − γ_k (∇f_i(x_{k−1}) + μ (x_{k−1} − x_0) + c) from x_0 = x.

    A part of a client's ``steps``: ``x_i = yield from take_steps(...)``. Without a
    correction it first asks for the end of all steps, for a ``Descent``.

    Parameters
    ----------
    x : ndarray
        Not changed.
    sizes : sequence of float
        γ_1, γ_2, …
    batches : MiniBatches, optional
        One is drawn for each step; None: all examples.
    config : mapping, optional
        What the server sent. With it every point on the way is checked by
        :func:`check_steps`, or the last alone where it is all that there is.
    pull : float
        μ, how strongly the steps are pulled back to x.
    correction : ndarray, optional
        c, of the shape of x.

    Returns
    -------
    ndarray
        The last point, a new array.

    Raises
    ------
    FloatingPointError
        The steps have diverged; or the gradient at a point that passed the check is
        NaN.
    """
    bound = inf if config is None else _bound(config)
    if correction is None:
        moved: FloatArray | None = yield Descent(x, sizes, batches, pull, bound)
        if moved is not None:
            if config is not None:
                check_steps(moved, x, config)
            return moved
    x_i = x.copy()
    flat = x_i.reshape(-1)  # of the same memory
    request = Gradient(x_i, batches)
    for gamma in sizes:
        slope = yield request
        if pull:
            # ∇f_i(x_i) + μ (x_i − x)
            slope = slope + pull * (x_i - x)
        if correction is not None:
            slope = slope + correction
        x_i -= gamma * slope
        # ‖x_i‖ ≤ b needs no closer look
        if config is not None and not flat.dot(flat) <= bound**2:
            try:
                check_steps(x_i, x, config)
            except FloatingPointError:
                # then it is not the size of the steps
                if np.isnan(slope).any():
                    raise FloatingPointError(
                        "the objective's gradient is not a number"
                    ) from None
                raise
    return x_i


def scheduled_steps(
    client: Any,
    x: FloatArray,
    config: Mapping[str, Any],
    *,
    pull: float = 0.0,
    correction: FloatArray | None = None,
) -> Generator[Request, Any, FloatArray]:
    """x_i after the k_0 steps that a request asks for as :class:`ScheduledSteps`.

    Parameters
    ----------
    client : MethodClient
        With ``objective`` and ``client_id``.
    x : ndarray
        The server's model; not changed.
    config : mapping
        What the server sent.
    pull, correction
        As :func:`take_steps` takes them.

    Raises
    ------
    FloatingPointError
        If the steps have carried x_i away from all proportion to x.
    """
    sizes = sizes_of(config)
    batches = mini_batches(client.objective, client.client_id, config)
    return take_steps(
        x,
        sizes,
        batches,
        config=config,
        pull=pull,
        correction=correction,
    )
