"""Steps and gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.stacked import stack
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, check_choice
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.protocol import ANSWER_BOUND

__all__ = [
    "STEP_SCHEDULES",
    "LocalSteps",
    "ScheduledSteps",
    "Watch",
    "check_steps",
    "gradient_at",
    "gradients_at",
    "points_of",
    "step_size_at",
]

STEP_SCHEDULES = ("log", "constant", "inverse-sqrt")


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
    point, start : ndarray of float64, of one shape
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
    with np.errstate(over="ignore", invalid="ignore"):
        # ‖x_i‖ ≤ b · max(1, ‖x‖);  NaN is no less either
        far = not float(np.vdot(point, point)) <= bound**2 * max(
            1.0, float(np.vdot(start, start))
        )
    if far:
        raise _diverged(config, key)


class Watch:
    r"""Looks after a cohort's points as :func:`check_steps` does after one.

    Parameters
    ----------
    starts : ndarray of shape (n, \*shape)
        Where the steps begin.
    """

    def __init__(self, starts: FloatArray) -> None:
        self._least = squares(starts)
        self._most = self._least

    def see(self, points: FloatArray) -> None:
        """Take note of where the steps are."""
        # what is not a number stays none
        self._most = np.maximum(self._most, squares(points))

    def check(self, config: Mapping[str, Any], key: str = "step-size") -> None:
        """Raise FloatingPointError if one has ever been too far away."""
        bound = float(config.get("answer-bound", ANSWER_BOUND))
        # ‖x_i‖ ≤ b · max(1, ‖x‖)
        if not (self._most <= bound**2 * np.maximum(1.0, self._least)).all():
            raise _diverged(config, key)


def squares(points: FloatArray) -> FloatArray:
    r"""‖x_i‖² of each of a cohort's points, shape (n, \*shape)."""
    flat = points.reshape(len(points), -1)
    result: FloatArray = np.einsum("ij,ij->i", flat, flat)
    return result


def _diverged(config: Mapping[str, Any], key: str) -> FloatingPointError:
    return FloatingPointError(
        f"the local steps diverged: {key} = {config[key]} is too long"
    )


def _batch_size(objective: Any, config: Mapping[str, Any]) -> int:
    """Examples in a mini-batch; 0: all."""
    fraction = float(config.get("batch-fraction", 1.0))
    if fraction < 1.0:
        # ⌈fraction · d_i⌉; 0.07·100 is 7.0…01 by rounding alone
        return max(1, ceil(fraction * int(objective.num_examples) - 1e-9))
    return int(config.get("batch-size", 0))


def gradient_at(
    objective: Any, layout: Layout, client_id: str, config: Mapping[str, Any]
) -> Callable[[FloatArray], FloatArray]:
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
    if not batch_size:

        def full(x: FloatArray) -> FloatArray:
            gradient = objective.gradient(layout.objective_point(x))
            return layout.objective_gradient(gradient)

        return full

    rng = _batch_generator(client_id, config)

    def stochastic(x: FloatArray) -> FloatArray:
        point = layout.objective_point(x)
        gradient = objective.stochastic_gradient(point, rng, batch_size)
        return layout.objective_gradient(gradient)

    return stochastic


def points_of(
    layout: Layout, parameters: Sequence[Sequence[NDArray[Any]]]
) -> FloatArray:
    r"""The model of each client of a cohort.

    Parameters
    ----------
    layout : Layout
        Of each of them.
    parameters : sequence of sequence of ndarray
        Each client's arrays, as ``fit_many`` is given them.

    Returns
    -------
    ndarray of shape (n, \*layout.point_shape)
        A new array.
    """
    first = parameters[0]
    if all(arrays is first for arrays in parameters):
        return np.repeat(layout.point(first)[None], len(parameters), axis=0)
    return np.stack([layout.point(arrays) for arrays in parameters])


def gradients_at(
    objectives: Sequence[Any],
    layout: Layout,
    client_ids: Sequence[str],
    config: Mapping[str, Any],
) -> Callable[[FloatArray], FloatArray]:
    r"""The gradients of a cohort as a function of its points.

    Parameters
    ----------
    objectives, layout, client_ids, config
        As for :func:`gradient_at`, of each client.

    Returns
    -------
    callable
        Takes and returns an array of shape (n, \*layout.point_shape); from one call for
        all of them where the objectives can be stacked
        (:func:`fedtrellis.objectives.stacked.stack`), and else one by one.
    """
    stacked = stack(objectives) if len(layout.shapes) == 1 else None
    if stacked is None:
        each = [
            gradient_at(objective, layout, name, config)
            for objective, name in zip(objectives, client_ids, strict=True)
        ]
        return lambda points: np.stack(
            [gradient(x) for gradient, x in zip(each, points, strict=True)]
        )
    shape = (len(objectives), *layout.shapes[0])
    batch_sizes = [_batch_size(objective, config) for objective in objectives]
    if not any(batch_sizes):
        return lambda points: stacked.gradients(points.reshape(shape)).reshape(
            points.shape
        )
    rngs = [_batch_generator(name, config) for name in client_ids]
    return lambda points: stacked.stochastic_gradients(
        points.reshape(shape), rngs, batch_sizes
    ).reshape(points.shape)


def _batch_generator(client_id: str, config: Mapping[str, Any]) -> np.random.Generator:
    return generator(config["seed"], "mini-batch", client_id, config["server-round"])
