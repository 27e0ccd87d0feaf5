"""Steps and gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2, sqrt
from typing import Any, Literal, get_args

import numpy as np

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, check_choice
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.protocol import ANSWER_BOUND

__all__ = [
    "STEP_SCHEDULES",
    "LocalGradient",
    "LocalSteps",
    "ScheduledSteps",
    "check_steps",
    "draws_batches",
    "gradient_at",
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
        """What a client needs to be told, for :func:`gradient_at` too."""
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
        """What a client needs to be told, for :func:`gradient_at` too."""
        entries: dict[str, Any] = {
            "local-steps": int(self.count),
            "step-size": float(self.size),
            "step-schedule": self.schedule,
        }
        if self.batch_fraction < 1.0:
            entries["batch-fraction"] = float(self.batch_fraction)
            entries["seed"] = seed
        return entries

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ScheduledSteps:
        """Inverse of :meth:`instruction`."""
        return cls(
            count=config["local-steps"],
            size=config["step-size"],
            schedule=config["step-schedule"],
            batch_fraction=config.get("batch-fraction", 1.0),
        )


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
    bound = float(config.get("answer-bound", ANSWER_BOUND))
    # a product of vectors warns of nothing
    square = float(np.vdot(point, point))
    # ‖x_i‖ ≤ b · max(1, ‖x‖);  NaN is no less either
    if square <= bound**2:
        return
    if not square <= bound**2 * max(1.0, float(np.vdot(start, start))):
        raise FloatingPointError(
            f"the local steps diverged: {key} = {config[key]} is too long"
        )


def draws_batches(config: Mapping[str, Any]) -> bool:
    """Whether a request asks for gradients on mini-batches."""
    fraction = float(config.get("batch-fraction", 1.0))
    return fraction < 1.0 or bool(config.get("batch-size", 0))


def _batch_size(objective: Any, config: Mapping[str, Any]) -> int:
    """Examples in a mini-batch; 0: all."""
    fraction = float(config.get("batch-fraction", 1.0))
    if fraction < 1.0:
        # ⌈fraction · d_i⌉; 0.07·100 is 7.0…01 by rounding alone
        return max(1, ceil(fraction * int(objective.num_examples) - 1e-9))
    return int(config.get("batch-size", 0))


class LocalGradient:
    """The gradient of f_i as a function of a point, full or on mini-batches.

    Parameters
    ----------
    objective : object
        See :func:`gradient_at`.
    layout : Layout
        Of the model.
    batch_size : int
        Examples in a mini-batch; 0: all.
    rng : numpy.random.Generator or None
        Draws the mini-batches.
    centre : ndarray, optional
        Where the gradient is pulled to; of the shape of the points.
    pull : float, default 0.0
        μ, how strongly: μ (x − centre) is added.
    """

    def __init__(
        self,
        objective: Any,
        layout: Layout,
        batch_size: int,
        rng: np.random.Generator | None,
        centre: FloatArray | None = None,
        pull: float = 0.0,
    ) -> None:
        self.objective, self.layout = objective, layout
        self.batch_size, self.rng = batch_size, rng
        self.centre, self.pull = centre, pull

    def pulled(self, centre: FloatArray, pull: float) -> LocalGradient:
        """Return the gradient of f_i + (μ/2)‖x − centre‖², with μ = ``pull``."""
        return LocalGradient(
            self.objective, self.layout, self.batch_size, self.rng, centre, pull
        )

    def __call__(self, x: FloatArray) -> FloatArray:
        """Return the gradient at a point, of the point's shape."""
        point = self.layout.objective_point(x)
        if self.batch_size:
            gradient = self.objective.stochastic_gradient(
                point, self.rng, self.batch_size
            )
        else:
            gradient = self.objective.gradient(point)
        slope = self.layout.objective_gradient(gradient)
        if self.centre is None:
            return slope
        # ∇f_i(x) + μ (x − centre)
        return slope + self.pull * (x - self.centre)

    def steps(self, x: FloatArray, sizes: Sequence[float]) -> FloatArray | None:
        """Take the steps where the objective can take them itself, else return None.

        An objective whose points live elsewhere, as PyTorch's do, offers
        ``local_steps(x, sizes, rng, batch_size, pull=)``; x, here too, is what the
        steps are pulled back to.
        """
        local_steps = getattr(self.objective, "local_steps", None)
        if local_steps is None or not (self.centre is None or self.centre is x):
            return None
        pull = {"pull": self.pull} if self.centre is not None else {}
        moved = local_steps(x, sizes, self.rng, self.batch_size, **pull)
        return self.layout.objective_gradient(moved)


def take_steps(
    gradient: Callable[[FloatArray], FloatArray],
    x: FloatArray,
    sizes: Sequence[float],
    check: Callable[[FloatArray], None] | None = None,
) -> FloatArray:
    """x_k ← x_{k−1} − γ_k g(x_{k−1}) from x_0 = x, and return the last.

    Parameters
    ----------
    gradient : callable
        g. Where it is a :class:`LocalGradient` of an objective that takes the steps
        itself, it does.
    x : ndarray
        Not changed.
    sizes : sequence of float
        γ_1, γ_2, …
    check : callable, optional
        Called with every point on the way, or with the last alone where the objective
        takes the steps; raises what is wrong with it.

    Raises
    ------
    FloatingPointError
        What the check raises; or the gradient at a point that passed it is NaN.
    """
    # what overflows on the way is reported once, by the check
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(gradient, LocalGradient):
            moved = gradient.steps(x, sizes)
            if moved is not None:
                if check is not None:
                    check(moved)
                return moved
        x_i = x.copy()
        for gamma in sizes:
            slope = gradient(x_i)
            x_i -= gamma * slope
            if check is not None:
                try:
                    check(x_i)
                except FloatingPointError:
                    # then it is not the size of the steps
                    if np.isnan(slope).any():
                        raise FloatingPointError(
                            "the objective's gradient is not a number"
                        ) from None
                    raise
    return x_i


def gradient_at(
    objective: Any, layout: Layout, client_id: str, config: Mapping[str, Any]
) -> LocalGradient:
    """The gradient of f_i as a function of a point, full or on mini-batches.

    Parameters
    ----------
    objective : object
        With ``gradient(x)``, or ``stochastic_gradient(x, rng, batch_size)`` where
        ``config`` asks for mini-batches: by ``batch-size`` above 0, or by
        ``batch-fraction`` below 1 of the objective's ``num_examples``.
    layout : Layout
        Of the model.
    client_id : str
        The batches' random numbers derive from it, the run's seed and the round.
    config : mapping
        What the server sent.
    """
    batch_size = _batch_size(objective, config)
    rng = None
    if batch_size:
        rng = generator(config["seed"], "mini-batch", client_id, config["server-round"])
    return LocalGradient(objective, layout, batch_size, rng)
