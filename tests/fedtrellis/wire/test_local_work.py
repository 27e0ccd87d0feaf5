"""Steps of clients, alone and side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedtrellis import Gradient, MethodClient, MiniBatches
from fedtrellis.local_steps import take_steps
from fedtrellis.objectives import LeastSquares
from fedtrellis.wire.arrays import Layout
from fedtrellis.wire.broadcast import ReceivedModel
from fedtrellis.wire.local_work import Descent, Peers, run_together


def losses(count: int, kind: Any = LeastSquares) -> list[Any]:
    """One for each client, of uneven sizes."""
    rng = np.random.default_rng(4)
    sizes = range(6, 6 + count)
    return [kind(rng.standard_normal((m, 3)), rng.random(m)) for m in sizes]


class Stepping(MethodClient):
    """Takes as many steps as the config says, on mini-batches if it has a size."""

    def __init__(self, objective: Any, seed: int = 0) -> None:
        self.objective, self.seed = objective, seed

    def steps(self, x: Any, config: Any) -> Any:
        size = config.get("batch-size", 0)
        rng = np.random.default_rng(self.seed)
        batches = MiniBatches(rng, size) if size else None
        for _ in range(config["local-steps"]):
            g = yield Gradient(x, batches)
            x = x - 0.01 * g
        return config.get("returned", x)


def together(made: list[Stepping], configs: list[dict[str, Any]]) -> list[Any]:
    model = ReceivedModel(Layout(((3,),)), np.ones(3), 0)
    works = [(client, model, c) for client, c in zip(made, configs, strict=True)]
    return run_together(model.layout, works)


def compare(made: list[Stepping], configs: list[dict[str, Any]]) -> list[Any]:
    """What clients come to side by side, which is what they come to alone."""
    results = together(made, configs)
    for client, config, result in zip(made, configs, results, strict=True):
        expected = client.fit([np.ones(3)], config)
        np.testing.assert_allclose(result[0][0], expected[0][0], rtol=1e-12)
        assert result[1:] == expected[1:]
    return results


class Brittle(LeastSquares):
    """Cannot be stacked after all."""

    @staticmethod
    def stack(objectives: Any) -> Any:
        class Stack:
            def gradients(self, points: Any, rows: Any = None) -> Any:
                raise MemoryError("too much")

        return Stack()


@pytest.mark.parametrize("kind", [LeastSquares, Brittle])
def test_side_by_side_is_one_by_one(kind: Any) -> None:
    told = [(3, 3), (1, 3), (4, 0), (2, 0)]
    made = [Stepping(loss, i) for i, loss in enumerate(losses(4, kind))]
    compare(made, [{"local-steps": n, "batch-size": size} for n, size in told])


def test_what_one_client_returns_ends_its_own_work_alone() -> None:
    made = [Stepping(loss) for loss in losses(2)]
    configs: Any = [{"local-steps": 2}, {"local-steps": 2, "returned": np.array(["x"])}]
    assert [type(one) for one in together(made, configs)] == [tuple, ValueError]


class Taking(LeastSquares):
    """Takes steps itself, and says how often it was asked."""

    stack: Any = None
    asked = 0

    def local_steps(
        self, x: Any, sizes: Any, rng: Any = None, batch_size: int = 0, pull: float = 0
    ) -> Any:
        self.asked += 1
        x_i = x.copy()
        for gamma in sizes:
            x_i -= gamma * (self.gradient(x_i) + pull * (x_i - x))
        return x_i


def test_an_objective_that_takes_steps_itself_is_asked_for_their_end() -> None:
    class Descending(Stepping):
        def steps(self, x: Any, config: Any) -> Any:
            return (yield from take_steps(x, [0.1, 0.05], pull=0.5))

    ends = []
    for kind in (LeastSquares, Taking):
        made: list[Stepping] = [Descending(loss) for loss in losses(3, kind)]
        other = Stepping(losses(1, kind)[0])  # which asks for something else
        ends.append(compare([other, *made], [{"local-steps": 2}] * 4)[1][0][0])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
    assert made[0].objective.asked == 2  # side by side, and alone
    first = next(take_steps(np.ones(3), [0.1]))
    assert isinstance(first, Descent)
    assert first.answer(made[0].objective, Layout(((3,),))) is not None


def test_a_stack_ends_where_one_may_have_gone_too_far() -> None:
    peers = Peers(losses(2), Layout(((3,),)))
    near, far = (Descent(np.ones(3), [0.0], bound=bound) for bound in (2.5, 2.4))
    ends: Any = Descent.answer_many([near] * 2, peers)
    assert np.array_equal(ends, np.ones((2, 3)))
    with pytest.raises(FloatingPointError):  # √6 ≈ 2.449
        Descent.answer_many([far] * 2, peers)
