"""The server's half: it counts votes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrellis import Answer, RoundStrategy, setting


class MajoritySign(RoundStrategy):
    """signSGD with majority vote: a bit an entry, up and down.

    For min over x of (1/n) Σ f_i(x), without a constraint. In round t::

        client   sends s_i = sign(∇f_i(x)), a byte an entry
        server   x ← x − (η/√t) sign(Σ over S of s_i), S those who answered

    A liar among n clients has one vote. The fixed points are where the votes cancel,
    which is not the minimiser where clients differ.

    Source: Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote is
    Communication Efficient and Fault Tolerant", ICLR 2019, arXiv 1810.05291,
    algorithm 1, with full gradients and a step that falls.
    """

    name = "majority-sign"
    about = "signSGD with majority vote"
    space = "whole"
    stateful = False
    keep_model = False

    step_size: float = setting(0.1, "of the first step", symbol="η", above=0.0)

    def setup(self, point: Any, layout: Any) -> None:
        """Nothing to prepare: the model is all of the state."""

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Nothing: the client only needs x."""
        return {}

    def check(self, answer: Answer) -> Any:
        """s_i."""
        shape = self.broadcast.layout.point_shape
        if [(a.shape, a.dtype) for a in answer.arrays] != [(shape, np.int8)]:
            raise ValueError(f"the answer is not one int8 array of shape {shape}")
        if np.abs(answer.arrays[0]).max(initial=0) > 1:
            raise ValueError("the answer has more than signs")
        return answer.arrays[0]

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Step against the majority's sign."""
        votes = np.sum([s.astype(np.int64) for s in answers.values()], axis=0)
        # x ← x − (η/√t) sign(Σ s_i)
        step = self.step_size / np.sqrt(server_round) * np.sign(votes)
        self.broadcast.replace(self.broadcast.model - step)
        return {"agreement": float(np.abs(votes).mean() / len(answers))}
