"""A client's local work: what its steps ask for on the way, and one client's answers.

The method ``steps`` of a :class:`~fedtrellis.MethodClient` is a generator. It yields a
:class:`Request` wherever it needs its loss, is sent the answer, and returns what the
client sends to the server. :func:`run_alone` answers with the client's own loss;
:func:`run_together` lets the steps of many clients go on until they ask for something,
and answers all at once, gradients by one call where the objectives can be stacked.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from types import GeneratorType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.base import IntArray, Stacked, draw_batch, stack
from fedtrellis.wire.arrays import FloatArray, Layers, Layout

#: What ``fit`` returns: arrays, the number of examples (0: not revealed), metrics.
Result = tuple[Sequence[NDArray[Any]], int, dict[str, Any]]
#: What a client's ``steps`` returns: it yields requests, and is sent their answers.
Steps = Generator["Request", Any, Any]


class Request(Protocol):
    """What steps may yield: anything that a client's loss can answer.

    A class whose requests can be answered many at once has a static method
    ``answer_many(asked, peers)`` too: given the requests of several clients and the
    :class:`Peers` that they are, it returns a sequence of answers, or None for those
    that are to be answered one by one.
    """

    def answer(self, objective: Any, layout: Layout) -> Any:
        """What the steps are sent, by the client's objective and the model's layout."""


@dataclass(slots=True, eq=False)
class MiniBatches:
    """Mini-batches of a client's examples, a new one for every gradient.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws them.
    size : int
        Examples in one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Gradient, MiniBatches
    >>> batches = MiniBatches(np.random.default_rng(0), 32)
    >>> Gradient(np.zeros(3), batches).batches.size
    32
    """

    rng: np.random.Generator
    size: int


@dataclass(slots=True, eq=False)
class Gradient:
    """Ask for ∇f_i at a point.

    The answer has the point's shape and is not to be changed.

    Parameters
    ----------
    point : ndarray of shape ``layout.point_shape``
        Read when the request is yielded: it may be changed in place afterwards.
    batches : MiniBatches, optional
        Of which the next one is drawn; None: all examples.

    Examples
    --------
    A client that takes five steps on f_i(x) = ‖x − b‖²:

    >>> import numpy as np
    >>> from fedtrellis import Gradient, MethodClient
    >>> from fedtrellis.objectives import LeastSquares
    >>> class Descending(MethodClient):
    ...     objective = LeastSquares(np.eye(2), np.array([1.0, 2.0]))
    ...     def steps(self, x, config):
    ...         for gamma in [0.25] * 5:
    ...             g = yield Gradient(x)
    ...             x = x - gamma * g
    ...         return x
    >>> (x,), _, _ = Descending().fit([np.zeros(2)], {})
    >>> x
    array([0.96875, 1.9375 ])
    """

    point: FloatArray
    batches: MiniBatches | None = None

    def answer(self, objective: Any, layout: Layout) -> FloatArray:
        """The gradient, from ``gradient(x)`` or ``stochastic_gradient``."""
        at = layout.objective_point(self.point)
        if self.batches is None:
            return layout.objective_gradient(objective.gradient(at))
        return layout.objective_gradient(
            objective.stochastic_gradient(at, self.batches.rng, self.batches.size)
        )

    @staticmethod
    def answer_many(asked: Sequence[Gradient], peers: Any) -> FloatArray | None:
        """The gradients as one array, where the objectives can be stacked."""
        if peers.stacked is None:
            return None
        found = peers.stacked.gradients(peers.points(asked), peers.rows(asked))
        gradients: FloatArray = found.reshape(-1, *peers.layout.point_shape)
        return gradients


@dataclass(slots=True, eq=False)
class Descent:
    """Ask for the end of gradient steps, of whoever can take them in one go.

    x_k ← x_{k−1} − γ_k (∇f_i(x_{k−1}) + pull · (x_{k−1} − x_0)), k = 1, 2, …

    An objective whose points live elsewhere, as PyTorch's do, offers
    ``local_steps(x, sizes, rng, batch_size, pull=)``. Those of stacked objectives are
    taken as one array. Else the answer is None, and nothing has been drawn: the steps
    then ask for gradients.

    Parameters
    ----------
    point : ndarray of shape ``layout.point_shape``
        x_0, which is not changed.
    sizes : sequence of float
        γ_1, γ_2, …
    batches : MiniBatches, optional
        One is drawn for each step; None: all examples.
    pull : float
        How strongly the steps are pulled back to x_0.
    bound : float
        Where a stack has gone beyond ‖x_k‖ = bound, None is answered.
    """

    point: FloatArray
    sizes: Sequence[float]
    batches: MiniBatches | None = None
    pull: float = 0.0
    bound: float = inf

    def answer(self, objective: Any, layout: Layout) -> FloatArray | None:
        """The last point."""
        if not hasattr(objective, "local_steps"):
            return None
        rng, size = None, 0
        if self.batches is not None:
            rng, size = self.batches.rng, self.batches.size
        pull = {"pull": self.pull} if self.pull else {}
        moved = objective.local_steps(self.point, self.sizes, rng, size, **pull)
        return layout.objective_gradient(moved)

    @staticmethod
    def answer_many(asked: Sequence[Descent], peers: Any) -> FloatArray | None:
        """The last points as one array, where a stack takes the same steps of all."""
        first, stacked = asked[0], peers.stacked
        alike = all((r.sizes, r.pull) == (first.sizes, first.pull) for r in asked)
        if not alike or stacked is None:
            return None
        points: FloatArray = peers.points(asked)
        if hasattr(stacked, "local_steps"):
            rows = [peers.rows(asked) for _ in first.sizes]
            drawn = None if first.batches is None else rows
            pull = {"pull": first.pull} if first.pull else {}
            points = stacked.local_steps(points, first.sizes, drawn, **pull)
        elif hasattr(peers.objectives[0], "local_steps"):
            return None
        else:
            starts, flat = points.copy(), points.reshape(-1)  # of the same memory
            for gamma in first.sizes:
                # x_i ← x_i − γ_k (∇f_i(x_i) + μ (x_i − x)), for all i
                step = stacked.gradients(points, peers.rows(asked))
                if first.pull:
                    step += first.pull * (points - starts)
                step *= gamma
                points -= step
                # Σ ‖x_i‖² ≤ b² leaves none beyond b
                if not flat.dot(flat) <= first.bound**2:
                    raise FloatingPointError("one of the clients may have gone too far")
        return points.reshape(-1, *peers.layout.point_shape)


def _begin(
    client: Any, layout: Layout, x: FloatArray, config: Mapping[str, Any]
) -> Steps:
    """A client's steps, not yet started; it knows its ``layout`` from here on."""
    client.layout = layout
    if x.flags.writeable:
        x = x.view()
        x.setflags(write=False)
    steps = client.steps(x, config)
    if type(steps) is not GeneratorType:
        raise TypeError(
            f"{type(client).__name__}.steps returned a {type(steps).__name__}, "
            "expected a generator"
        )
    return steps


def _result_of(returned: Any, layout: Layout) -> Result:
    """What ``fit`` returns, of what ``steps`` has returned: that, or one point."""
    if isinstance(returned, np.ndarray):
        return [layout.to_wire(returned)], 0, {}
    return cast(Result, returned)


def run_alone(
    client: Any, parameters: Sequence[NDArray[Any]], config: Mapping[str, Any]
) -> Result:
    """Take a client's steps, whose requests its own ``objective`` answers.

    What overflows on the way is left to the steps' own checks, and no warning.
    """
    if isinstance(parameters, Layers):
        layout, x = parameters.layout, parameters.whole
    else:
        layout = Layout.of(parameters)
        x = layout.point(parameters)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = _begin(client, layout, x, config)
        try:
            request = next(steps)
            while True:
                try:
                    answer = request.answer(client.objective, layout)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return _result_of(end.value, layout)


def run_together(layout: Layout, works: Sequence[tuple[Any, Any, Any]]) -> list[Any]:
    """What each client's ``fit`` would return, or the exception that it would raise.

    Of (client, model, config) with models of one layout, and clients whose ``fit`` is
    that of the base class. Mini-batches are the same, and numbers the same to rounding.
    What one client raises ends its own work alone.
    """
    everybody = Peers([getattr(c, "objective", None) for c, _, _ in works], layout)
    results: list[Any] = [None] * len(works)
    steps: dict[int, Steps] = {}
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for i, (client, model, config) in enumerate(works):
            try:
                steps[i] = _begin(client, layout, model.point, config)
            except Exception as error:
                results[i] = error
        active: list[int] = list(steps)
        answers: Sequence[Any] = [None] * len(active)
        while active:
            asking, requests = [], []
            for i, answer in zip(active, answers, strict=True):
                try:
                    try:
                        if isinstance(answer, Exception):
                            requests.append(steps[i].throw(answer))
                        else:
                            requests.append(steps[i].send(answer))
                        asking.append(i)
                    except StopIteration as end:
                        results[i] = _result_of(end.value, layout)
                except Exception as error:
                    results[i] = error
            active, peers = asking, everybody
            if len(active) < len(works):  # others have ended
                peers = Peers([everybody.objectives[i] for i in active], layout)
            answers = peers.answers(requests)
    return results


class Peers:
    """Clients that ask for something at once: their objectives, and the layout."""

    def __init__(self, objectives: list[Any], layout: Layout) -> None:
        self.objectives, self.layout = objectives, layout

    @cached_property
    def stacked(self) -> Stacked | None:
        """The objectives as one, where they can be."""
        return stack(self.objectives)

    def points(self, asked: Sequence[Any]) -> FloatArray:
        """The points of requests, as stacked objectives take them: a new array.

        ValueError: one has another shape than the model.
        """
        layout = self.layout
        if {request.point.shape for request in asked} != {layout.point_shape}:
            raise ValueError("a point does not have the model's shape")
        only = layout.shapes[0] if len(layout.shapes) == 1 else (layout.size,)
        points = np.concatenate(
            [request.point for request in asked], dtype=layout.point_dtype
        )
        return points.reshape(len(asked), *only)

    def rows(self, asked: Sequence[Any]) -> list[IntArray | None] | None:
        """The next mini-batch of each; None: all of everybody's examples."""
        if all(request.batches is None for request in asked):
            return None
        return [
            None
            if (drawn := request.batches) is None
            else draw_batch(drawn.rng, objective.num_examples, drawn.size)
            for request, objective in zip(asked, self.objectives, strict=True)
        ]

    def answers(self, requests: Sequence[Any]) -> Sequence[Any]:
        """What each client is sent, or what its loss raised."""
        found = self._together(requests) if len(requests) > 1 else None
        if found is not None:
            return found
        answers: list[Any] = []
        for request, objective in zip(requests, self.objectives, strict=True):
            try:
                answers.append(request.answer(objective, self.layout))
            except Exception as error:
                answers.append(error)
        return answers

    def _together(self, asked: Sequence[Any]) -> Sequence[Any] | None:
        """The answers to requests of one kind, where it answers many at once."""
        answer_many = getattr(asked[0], "answer_many", None)
        if answer_many is None or len(set(map(type, asked))) > 1:
            return None
        batches = [b for r in asked if (b := getattr(r, "batches", None)) is not None]
        before = [drawn.rng.bit_generator.state for drawn in batches]
        try:
            found: Sequence[Any] | None = answer_many(asked, self)
            return found
        except Exception:
            # whoever is at fault fails alone, with the mini-batches that it would have
            for drawn, state in zip(batches, before, strict=True):
                drawn.rng.bit_generator.state = state
            return None
