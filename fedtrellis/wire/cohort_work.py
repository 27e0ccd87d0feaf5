"""The local work of many clients side by side.

Every client's steps go on until they ask for something; then all are answered at once,
gradients by one call where the objectives can be stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.objectives.base import draw_batch
from fedtrellis.objectives.checks import IntArray
from fedtrellis.objectives.stacked import Stacked, stack
from fedtrellis.wire.layout import FloatArray, Layout
from fedtrellis.wire.local_work import (
    Request,
    Result,
    Steps,
    begin,
    result_of,
)

__all__ = ["Peers", "run_together"]


def run_together(
    clients: Sequence[Any],
    parameters: Sequence[Sequence[NDArray[Any]]],
    configs: Sequence[Mapping[str, Any]],
) -> list[Result | Exception]:
    """What each client's ``fit`` would return, or the exception that it would raise.

    Mini-batches are the same, and numbers the same to rounding. What one client raises
    ends its own work alone.

    Parameters
    ----------
    clients : sequence of MethodClient
        Whose ``fit`` is that of the base class.
    parameters : sequence of sequence of ndarray
        The model's arrays as each of them has it, all of one layout.
    configs : sequence of mapping
        What the server sent to each of them.
    """
    # what overflows on the way is left to the steps' own checks, as for one client
    with np.errstate(over="ignore", invalid="ignore"):
        cohort = _Cohort(clients, Layout.of(parameters[0]))
        requests = cohort.begin(parameters, configs)
        while requests:
            requests = cohort.go_on(requests, cohort.answers(requests))
    return [cohort.results[i] for i in range(len(clients))]


class Peers:
    """Clients that ask for the same kind of thing at once.

    Attributes
    ----------
    objectives : list
        Of each.
    layout : Layout
        Of the model.
    """

    def __init__(self, objectives: list[Any], layout: Layout) -> None:
        self.objectives, self.layout = objectives, layout

    @cached_property
    def stacked(self) -> Stacked | None:
        """The objectives as one, where they can be."""
        return stack(self.objectives)

    def points(self, asked: Sequence[Any]) -> FloatArray:
        """The points of requests, as stacked objectives take them: a new array.

        Raises
        ------
        ValueError
            One has another shape than the model.
        """
        layout = self.layout
        if any(request.point.shape != layout.point_shape for request in asked):
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
            if request.batches is None
            else draw_batch(
                request.batches.rng, objective.num_examples, request.batches.size
            )
            for request, objective in zip(asked, self.objectives, strict=True)
        ]


class _Cohort:
    """Clients of one layout at work, by their places.

    Attributes
    ----------
    results : dict of int to Result or Exception
        Of those whose work has ended.
    """

    def __init__(self, clients: Sequence[Any], layout: Layout) -> None:
        self.clients, self.layout = clients, layout
        self.results: dict[int, Result | Exception] = {}
        self._steps: dict[int, Steps] = {}

    def begin(
        self,
        parameters: Sequence[Sequence[NDArray[Any]]],
        configs: Sequence[Mapping[str, Any]],
    ) -> dict[int, Request]:
        """The first request of each client that has one."""
        for i, given in enumerate(zip(self.clients, parameters, configs, strict=True)):
            try:
                self._steps[i] = begin(*given)
            except Exception as error:
                self.results[i] = error
        return self.go_on(self._steps, [None] * len(self._steps))

    def go_on(
        self, places: Mapping[int, Any], answers: Sequence[Any]
    ) -> dict[int, Request]:
        """The next request of each client that has one, when they are answered."""
        requests: dict[int, Request] = {}
        steps = self._steps
        for i, answer in zip(places, answers, strict=True):
            try:
                if isinstance(answer, Exception):
                    requests[i] = steps[i].throw(answer)
                else:
                    requests[i] = steps[i].send(answer)
            except StopIteration as end:
                self._end(i, end.value)
            except Exception as error:
                self.results[i] = error
        return requests

    def _end(self, i: int, returned: Any) -> None:
        try:
            self.results[i] = result_of(returned, self.layout)
        except Exception as error:
            self.results[i] = error

    def answers(self, requests: Mapping[int, Request]) -> Sequence[Any]:
        """What each client is sent, or what its loss raised."""
        found = self._together(requests) if len(requests) > 1 else None
        if found is not None:
            return found
        return [self._alone(i, request) for i, request in requests.items()]

    def _alone(self, i: int, request: Request) -> Any:
        try:
            return request.answer(self.clients[i].objective, self.layout)
        except Exception as error:
            return error

    def _together(self, requests: Mapping[int, Any]) -> Sequence[Any] | None:
        """The answers to requests of one kind, where it answers many at once."""
        asked = list(requests.values())
        kinds = {type(request) for request in asked}
        answer_many = getattr(type(asked[0]), "answer_many", None)
        if len(kinds) > 1 or answer_many is None:
            return None
        peers = self._everybody
        if len(asked) < len(self.clients):  # others have ended
            peers = Peers([peers.objectives[i] for i in requests], self.layout)
        batches = [b for r in asked if (b := getattr(r, "batches", None)) is not None]
        before = [drawn.rng.bit_generator.state for drawn in batches]
        try:
            found: Sequence[Any] | None = answer_many(asked, peers)
            return found
        except Exception:
            # whoever is at fault fails alone, with the mini-batches that it would have
            for drawn, state in zip(batches, before, strict=True):
                drawn.rng.bit_generator.state = state
            return None

    @cached_property
    def _everybody(self) -> Peers:
        objectives = [getattr(client, "objective", None) for client in self.clients]
        return Peers(objectives, self.layout)
