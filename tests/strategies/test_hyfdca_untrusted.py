"""HyFDCA's messages, of which nothing is believed that can be checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedtrellis import LocalGrid
from fedtrellis.server.conversation import refusal_in
from fedtrellis.wire.arrays import array_record, encode, record_arrays
from tests.strategies.fuzz_runs import Exchange, record
from tests.strategies.hyfdca_runs import Run, small
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
    if error := refusal_in(reply.content):
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


def rewrite(content: RecordDict, change: Callable[[list[Any]], list[Any]]) -> None:
    arrays = record_arrays(content.array_records["arrays"])
    content["arrays"] = array_record(change(arrays))


def as_float32(content: RecordDict) -> None:
    """The first array's numbers, in another dtype."""
    rewrite(content, lambda arrays: [arrays[0].astype(np.float32), *arrays[1:]])


def no_text(content: RecordDict) -> None:
    spoilt = np.full(16, 0xFF, dtype=np.uint8)
    rewrite(content, lambda arrays: [*arrays[:2], spoilt, *arrays[3:]])


def nothing_more(content: RecordDict) -> None:
    rewrite(content, lambda arrays: arrays[:2])


@pytest.mark.parametrize(
    ("kind", "change", "options", "reason"),
    [
        (
            "train.primal",
            as_float32,
            {"step": "practical", "secure_sum": False},
            "does not start with",
        ),
        ("train.propose", as_float32, {"secure_sum": False}, "has dtypes"),
        ("train.propose", as_float32, {}, "has words"),
        ("train.align", no_text, {}, "has another form"),
        ("train.align", nothing_more, {}, "malformed"),
    ],
)
def test_answers_are_dropped_with_a_reason_and_asked_for_again(
    kind: str, change: Any, options: dict[str, Any], reason: str
) -> None:
    """Those to the alignment ended the run with an error of Python's."""
    split = small()
    grid = Spoils(split.app(), split.num_clients)
    grid.kind, grid.change = kind, change
    options = {"local_fraction": 0.1 if "step" in options else 1.0, **options}
    run = Run(split, 5, grid=grid, **options)
    assert grid.struck
    ((name, why),) = run.rejected
    assert name == "0"
    assert re.search(reason, why)
    run.check()


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
