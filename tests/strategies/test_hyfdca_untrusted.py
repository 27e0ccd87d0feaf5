"""One client of HyFDCA that reports what is not so.

Whatever it is, the run ends with an error, or what it certifies is true, as long as
each sample has another, honest holder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import array_record, record_arrays
from strategies.hyfdca.mixtures import WrongReportError
from tests.harness import number_of
from tests.strategies.hyfdca_runs import Run, small


class Spoils(LocalGrid):
    """One client's first proposal from some round on is changed on its way."""

    liar, at = 0, 1
    change: Callable[[RecordDict], None]
    kept: Any = None
    struck = False

    def _strikes(self, message: Message) -> set[str]:
        node = number_of(self._contexts[message.metadata.dst_node_id])
        kind, t = message.metadata.message_type, int(message.metadata.group_id)
        if kind != "train.propose" or node != self.liar or t < self.at or self.struck:
            return set()
        return {"garbage"}

    def _answer(self, message: Message, strikes: set[str], answer: Any) -> None:
        super()._answer(message, strikes, answer)
        if message.metadata.message_type == "train.inner_product" and not self.kept:
            self.kept = {k: v.copy() for k, v in answer.content.items()}

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.struck = True
        self.change(reply.content)
        return reply


def test_an_answer_of_another_phase_of_the_round_is_not_used() -> None:
    """It says the right client, session and round, and answers the right message."""
    split = small()
    grid = Spoils(split.app(), split.num_clients)

    def swap(content: RecordDict) -> None:
        for name in list(content):
            del content[name]
        content.update(grid.kept)

    grid.change = swap
    run = Run(split, 5, grid=grid, local_fraction=1.0)
    assert grid.struck
    why = "the answer has phase 'inner_product', not 'propose'"
    assert run.rejected == [("0", why)]
    run.check()


Words = NDArray[np.uint64]
TOLERANCE = 0.03


def lie(words: Words, rng: np.random.Generator, v: int) -> Words:
    """Some of v's words or of the sums' changed, by a number of any size.

    ``v`` is how many of them are v's.
    """
    told = words.copy()
    first, last = (0, v) if rng.random() < 0.5 else (v, len(words))
    if rng.random() < 0.2:
        first, last = 0, len(words)
    count = int(rng.integers(1, last - first + 1)) if rng.random() < 0.5 else 1
    where = first + rng.choice(last - first, size=count, replace=False)
    size = 2.0 ** rng.uniform(0.0, 63.0, size=count if rng.random() < 0.5 else 1)
    change = np.broadcast_to(rng.choice([-1.0, 1.0], size=count) * size, count)
    with np.errstate(over="ignore"):
        told[where] += change.astype(np.int64).view(np.uint64)
    return told


def test_a_run_with_a_liar_ends_with_an_error_or_a_true_certificate() -> None:
    """Also if what it said is only used in later rounds."""
    split, seeds, caught = small(n=48, p=6), range(8), list[str]()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        grid = Spoils(split.app(), split.num_clients)
        grid.liar, grid.at = map(int, rng.integers([0, 1], [split.num_clients, 9]))
        columns = split.parts[grid.liar][1]

        def change(content: RecordDict, rng: Any = rng, v: int = len(columns)) -> None:
            words, *rest = record_arrays(content.array_records["arrays"])
            content["arrays"] = array_record([lie(words, rng, v), *rest])

        grid.change = change
        try:
            run = Run(split, 40, grid=grid, tolerance=TOLERANCE)
        except WrongReportError as error:
            caught.append(str(error))
            continue
        finally:
            assert grid.struck
        strategy = run.strategy
        if strategy.converged():
            assert strategy._certified is not None
            w = strategy._certified[0]
            assert strategy._primals[0] == pytest.approx(split.problem.value(w))
            assert strategy._duals[0] <= split.optimum + 1e-6
            assert split.relative(w) <= 1.1 * TOLERANCE
    assert len(caught) > len(seeds) // 2
    for why in ("of two sets of holders differ", "contradict their inner products"):
        assert any(why in one for one in caught)
