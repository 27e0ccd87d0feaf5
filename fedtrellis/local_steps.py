"""Steps and gradients for methods that take several local steps a round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil, inf, isfinite, log2, sqrt
from typing import Any, Literal

import numpy as np

from fedtrellis.random import generator
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.local_work import Descent, Gradient, MiniBatches, Request
from fedtrellis.wire.protocol import ANSWER_BOUND, DEADLINE, STEPS
from fedtrellis.wire.summing import ATTEMPT

#: With a robust average a bound is at most this times the clients' median: f is no more
#: curved than their mean, and one that is far beyond the others is clipped anyway.
MOST_CURVED = 2.0
# Turns of a power iteration: the curvature along the steepest direction, about.
_POWERS = 20

#: How γ_k falls, see :func:`step_sizes`.
StepSchedule = Literal["log", "constant", "inverse-sqrt"]


@lru_cache(maxsize=8)  # once for all clients of a round
def step_sizes(
    schedule: str, size: float, count: int, server_round: int
) -> tuple[float, ...]:
    """The sizes γ_k of a round's ``count`` = k_0 steps; k counts over all rounds."""
    # k = (t − 1) k_0 + j, j = 1..k_0, in round t: whoever sits out misses his k
    before = (server_round - 1) * count
    steps = range(before + 1, before + count + 1)
    if schedule == "log":
        # γ_k = a / log₂(k + 1)
        return tuple(size / log2(k + 1) for k in steps)
    if schedule == "inverse-sqrt":
        # γ_k = a / √k
        return tuple(size / sqrt(k) for k in steps)
    return (size,) * count


def sizes_of(config: Mapping[str, Any]) -> tuple[float, ...]:
    """The step sizes of the round that a request of ``FedAvgGD`` and its like is of."""
    names = ("step-schedule", "step-size", "local-steps", "server-round")
    return step_sizes(*(config[name] for name in names))


def work_of(sizes: Sequence[float], pull: float = 0.0) -> float:
    """‖a‖₁ of steps of these sizes, whose x_0 − x_k is Σ a_j ∇f_i(x_j).

    ``pull`` is μ of :func:`take_steps`. Source: FedNova, arXiv 2007.07481, section 4.
    """
    total = 0.0
    for gamma in sizes:
        # a ← (1 − γ_k μ) a, and γ_k for the new gradient
        total = abs(1.0 - gamma * pull) * total + gamma
    return total


def check_steps(
    point: FloatArray,
    start: FloatArray,
    config: Mapping[str, Any],
    key: str = "step-size",
) -> None:
    """Check that local steps have not carried a point away from all proportion.

    The server would refuse it, and not know why. FloatingPointError names the size of
    the steps, ``key`` of what the server sent.
    """
    # beyond b · max(1, ‖x‖) a point is no answer
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


def _batch_size(objective: Any, config: Mapping[str, Any]) -> int:
    size = int(config.get("batch-size", 0))
    fraction = float(config.get("batch-fraction", 1.0))
    if fraction < 1.0:
        # ⌈fraction · d_i⌉; 0.07·100 is 7.0…01 by rounding alone
        size = max(1, ceil(fraction * int(objective.num_examples) - 1e-9))
    return size


def answer_lipschitz(
    client: Any, parameters: list[Any], config: dict[str, Any]
) -> tuple[list[Any], int, dict[str, Any]]:
    """``fit_lipschitz`` of a client: its r_i, for :func:`largest_bound`."""
    layout = Layout.of(parameters)
    r = lipschitz_at(client.objective, layout, layout.point(parameters), config)
    return answer_bound(r, layout, config)


def answer_bound(
    r: float, layout: Layout, config: Mapping[str, Any]
) -> tuple[list[Any], int, dict[str, Any]]:
    """What a client sends of r_i."""
    if ATTEMPT in config:  # a term of a sum is a model
        return [layout.to_wire(np.full(layout.point_shape, r))], 0, {}
    return [], 0, {"lipschitz": r}


def hidden_bounds(
    strategy: Any,
    conversation: Any,
    phase: str,
    timeout: float,
    entries: Mapping[str, Any],
) -> list[Any]:
    """Ask all clients for bounds under a secure sum: answers with their blocks' means.

    SettingsError: a sum was lost.
    """
    rule, names = strategy.aggregator, conversation.names
    entries = {**entries, **rule.entries(names), "sum-points": 0}
    of = dict.fromkeys(names, entries).__getitem__
    asked = conversation.ask_everyone(phase, of, None, timeout, names)
    answers: list[Any] = rule.opened(conversation, list(asked.values()), 0)
    if len(answers) < len(names):
        raise SettingsError("a sum of the clients' bounds was lost")
    return answers


def largest_bound(strategy: Any, bounds: Mapping[str, float]) -> float:
    """The largest r_i; of blocks' means the largest sum of a block.

    With a robust aggregation it is at most twice the median: one client alone cannot
    shorten the steps at will.
    """
    rule = strategy.aggregator
    if rule.seen_by == "client":
        weights = strategy._weights_in_sums()
        sums = (bounds[b[0]] * sum(map(weights.__getitem__, b)) for b in rule.blocks)
        return float(max(sums))
    r = max(bounds.values(), default=0.0)
    if rule.robust and bounds:
        r = min(r, MOST_CURVED * float(np.median(list(bounds.values()))))
    return r


def lipschitz_at(
    objective: Any,
    layout: Layout,
    x: FloatArray,
    config: Mapping[str, Any],
    gradient: Callable[[FloatArray], FloatArray] | None = None,
) -> float:
    """r_i, for steps along ∇f_i that contract while they are shorter than 2/r_i.

    It is the objective's ``lipschitz()``; of a loss that knows none the largest
    curvature at x, by a power iteration on differences of its gradients, which says
    nothing of points far from x. Steps along another ``gradient`` take the larger of
    its curvature there, too. A mean over b of d_i convex losses curves d_i/b times as
    much at most, so r_i is that much larger where ``config`` asks for mini-batches and
    the objective has ``num_examples``.
    """
    known = getattr(objective, "lipschitz", None)
    try:
        r = float(known()) if known is not None else inf
    except NotImplementedError:
        r = inf
    if not isfinite(r):
        r = _curvature_at(partial(slope_at, objective, layout), x)
    if gradient is not None:
        r = max(r, _curvature_at(gradient, x))
    size = _batch_size(objective, config)
    examples = int(getattr(objective, "num_examples", size))
    return r * examples / size if 0 < size < examples else r


def slope_at(objective: Any, layout: Layout, point: FloatArray) -> FloatArray:
    """∇f at a point, in float64."""
    slope = Gradient(point.astype(layout.point_dtype)).answer(objective, layout)
    return np.array(slope, dtype=np.float64)


def _curvature_at(gradient: Callable[[FloatArray], FloatArray], x: FloatArray) -> float:
    """Max over v of ‖∇²f(x) v‖ / ‖v‖, from below."""
    # what loses as many digits to rounding as to the third derivative
    length = float(np.finfo(x.dtype).eps) ** (1 / 3) * max(
        1.0, float(np.linalg.norm(x))
    )
    v = generator(0, "curvature").normal(size=x.shape)
    r = 0.0
    for _ in range(_POWERS):
        v *= length / np.linalg.norm(v)
        # ∇²f(x) v ≈ (∇f(x + v) − ∇f(x − v)) / 2
        v = (gradient(x + v) - gradient(x - v)) / 2.0
        r = float(np.linalg.norm(v)) / length
        if not 0.0 < r < inf:
            break
    return r


def mini_batches(
    objective: Any, client_id: str, config: Mapping[str, Any]
) -> MiniBatches | None:
    """The mini-batches that a request asks for; None: gradients on all examples.

    It asks by a ``batch-size`` above 0, or by a ``batch-fraction`` below 1 of the
    objective's ``num_examples``. Random numbers are :func:`batch_generator`'s.
    """
    size = _batch_size(objective, config)
    return MiniBatches(batch_generator(client_id, config), size) if size else None


def batch_generator(client_id: str, config: Mapping[str, Any]) -> np.random.Generator:
    """By the run's seed, the client and the round."""
    return generator(config["seed"], "mini-batch", client_id, config["server-round"])


def take_steps(
    x: FloatArray,
    sizes: Iterable[float],
    batches: MiniBatches | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    pull: float = 0.0,
    correction: FloatArray | None = None,
) -> Generator[Request, Any, FloatArray]:
    """x_k ← x_{k−1} − γ_k (∇f_i(x_{k−1}) + μ (x_{k−1} − x_0) + c) from x_0 = x.

    A part of a client's ``steps``: ``x_i = yield from take_steps(...)``, for the γ_k in
    ``sizes``, with a mini-batch of ``batches`` a step; ``pull`` is μ, ``correction`` c.
    Without a correction it first asks for the end of all steps, for a ``Descent``; not
    of an iterator, which is asked for each size after the step before. With the
    server's ``config`` every point on the way is checked by :func:`check_steps`, or the
    last alone where it is all that there is. FloatingPointError: the steps have
    diverged, or a gradient is NaN.
    """
    bound = inf
    if config is not None:
        bound = float(config.get("answer-bound", ANSWER_BOUND))
    if correction is None and isinstance(sizes, Sequence):
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
            if np.isnan(slope).any():  # then it is not the size of the steps
                raise FloatingPointError("the objective's gradient is not a number")
            check_steps(x_i, x, config)
    return x_i


def scheduled_steps(
    client: Any,
    x: FloatArray,
    config: Mapping[str, Any],
    *,
    pull: float = 0.0,
    correction: FloatArray | None = None,
) -> Generator[Request, Any, Any]:
    """:func:`take_steps` of a client as a request of ``FedAvgGD`` and its like asks.

    With a local deadline as many as fit by the client's ``clock``, one at least; it
    returns what ``fit`` does, with their number.
    """
    batches = mini_batches(client.objective, client.client_id, config)
    steps = partial(take_steps, config=config, pull=pull, correction=correction)
    sizes, taken = sizes_of(config), 0
    if DEADLINE not in config:
        return (yield from steps(x, sizes, batches))
    # a multiple of a step's time may lie above it by rounding alone
    deadline = config[DEADLINE] * (1.0 + 1e-9)

    def fitting() -> Iterator[float]:
        nonlocal taken
        began = client.clock()
        for taken, gamma in enumerate(sizes, start=1):
            yield gamma  # the step is taken meanwhile
            each = (client.clock() - began) / taken
            if each * (taken + 1) > deadline:
                return

    x_i = yield from steps(x, fitting(), batches)
    return [client.layout.to_wire(x_i)], 0, {STEPS: taken}
