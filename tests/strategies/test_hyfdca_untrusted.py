"""HyFDCA's messages, of which nothing is believed that can be checked.

One client that reports what is not so, too: whatever it is, the run ends with an error,
or what it certifies is true, as long as each sample has another, honest holder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedtrellis import LocalGrid
from fedtrellis.server.conversation import refusal_of
from fedtrellis.wire.arrays import array_record, encode, record_arrays
from strategies.hyfdca.mixtures import WrongReportError
from tests.strategies.fuzz_runs import Exchange, record
from tests.strategies.hyfdca_runs import Run, Split, small
from tests.strategies.soak_cases import CASES

RUNS: dict[str, list[Exchange]] = {}


def exchanges(name: str, kind: str) -> list[Exchange]:
    if name not in RUNS:
        RUNS[name] = record(CASES[name])
    return [e for e in RUNS[name] if e.request.metadata.message_type == kind]


def give(name: str, exchange: Exchange, content: RecordDict) -> Message:
    """Let the client answer a changed request, where the real one came."""
    message = Message(
        content,
        exchange.request.metadata.dst_node_id,
        exchange.request.metadata.message_type,
    )
    node: Any = {
        "partition-id": int(exchange.name),
        "num-partitions": CASES[name].nodes,
    }
    context = Context(1, 1, node, RecordDict(dict(exchange.state)), {})
    reply = CASES[name].app(message, context)
    if error := refusal_of(dict(reply.content.get("status", {}))):
        raise ValueError(error)
    return reply


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sizes", np.array([10**12])),
        ("sizes", np.array([-1])),
        ("rows", np.zeros(32, dtype=np.int64)),
        ("rows", np.arange(1, 33)),
    ],
)
def test_an_alignment_that_does_not_deal_out_the_samples(key: str, value: Any) -> None:
    """A group of 10¹² samples was a vector of 8 TB."""
    exchange = exchanges("hyfdca bundle", "train.labels")[0]
    content = RecordDict(dict(exchange.request.content))
    restore = dict(content.array_records["restore"])
    assert key in restore
    content["restore"] = ArrayRecord({**restore, key: encode(value)})
    with pytest.raises(ValueError, match="do not deal out"):
        give("hyfdca bundle", exchange, content)
    give("hyfdca bundle", exchange, exchange.request.content)


class Spoils(LocalGrid):
    """Client 0's first answer of one kind is changed on its way."""

    kind = ""
    change: Callable[[RecordDict], None]
    struck = False

    def _strikes(self, message: Message) -> set[str]:
        node = self._contexts[message.metadata.dst_node_id].node_config
        if message.metadata.message_type != self.kind or node["partition-id"] != 0:
            return set()
        first, self.struck = not self.struck, True
        return {"garbage"} if first else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.change(reply.content)
        return reply


def test_an_answer_of_another_phase_of_the_round_is_not_used() -> None:
    """It says the right client, session and round, and answers the right message."""
    split = small()
    kept: list[dict[str, Any]] = []

    class Keeps(Spoils):
        def _answer(self, message: Message, strikes: set[str], answer: Any) -> None:
            super()._answer(message, strikes, answer)
            if message.metadata.message_type == "train.inner_product" and not kept:
                kept.append({k: v.copy() for k, v in answer.content.items()})

    def swap(content: RecordDict) -> None:
        for name in list(content):
            del content[name]
        content.update(kept[0])

    grid = Keeps(split.app(), split.num_clients)
    grid.kind, grid.change = "train.propose", swap
    run = Run(split, 5, grid=grid, local_fraction=1.0)
    assert grid.struck
    assert run.rejected == [
        ("0", "the answer has phase 'inner_product', not 'propose'")
    ]
    run.check()


# ---------------------------------------------------------------- reports that are lies

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


def _certificate_is_true(split: Split, primal: float, dual: float, w: Any) -> None:
    true = split.problem.value(w)
    assert primal == pytest.approx(true, rel=1e-6)
    assert dual <= split.optimum + 1e-6


class Lies(LocalGrid):
    """One client's term of the sum of one round is another than it was."""

    liar, at, split = 0, 0, small()
    rng: np.random.Generator
    struck = False

    def _strikes(self, message: Message) -> set[str]:
        node = self._contexts[message.metadata.dst_node_id].node_config
        kind, t = message.metadata.message_type, message.metadata.group_id
        mine = node["partition-id"] == self.liar and t == str(self.at)
        return {"garbage"} if mine and kind == "train.propose" else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        words, *rest = record_arrays(reply.content.array_records["arrays"])
        columns = self.split.parts[self.liar][1]
        told = lie(words, self.rng, len(columns))
        reply.content["arrays"] = array_record([told, *rest])
        self.struck = True
        return reply


def test_a_run_with_a_liar_ends_with_an_error_or_a_true_certificate() -> None:
    """Also if what it said is only used in later rounds."""
    split, seeds, caught = small(n=48, p=6), range(8), 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        grid = Lies(split.app(), split.num_clients)
        grid.liar, grid.at = map(int, rng.integers([0, 1], [split.num_clients, 9]))
        grid.split, grid.rng = split, rng
        try:
            run = Run(split, 40, grid=grid, tolerance=TOLERANCE)
        except WrongReportError:
            caught += 1
            continue
        finally:
            assert grid.struck
        strategy = run.strategy
        if strategy.converged():
            primal, dual = float(strategy._primals[0]), float(strategy._duals[0])
            assert strategy._certified is not None
            _certificate_is_true(split, primal, dual, strategy._certified[0])
            assert run.split.relative(strategy._certified[0]) <= 1.1 * TOLERANCE
    assert caught > len(seeds) // 2
