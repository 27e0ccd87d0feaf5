"""Mutated Messages are handled or refused with a reason; see fuzz_runs.

The long form, 10 000 of them, is ``python -m tests.strategies.fuzz_runs``.
"""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from tests.strategies.fuzz_runs import (
    Exchange,
    Tally,
    fuzz_client,
    fuzz_server,
    record,
)
from tests.strategies.soak_cases import CASES

# one of each kind of message and of state; the long form has all cases
NAMES = (
    *("fedfw augmented", "fedfw corrective", "naive-frank-wolfe", "fedgia gram"),
    *("fedfw corrective float32", "zeroth-order-rfl", "hyfdca bundle"),
    *("hyfdca practical", "hyfdca bundle apart", "hyfem"),
)


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()


@cache
def recorded(name: str) -> list[Exchange]:
    return record(CASES[name])


@pytest.mark.parametrize("fuzz", [fuzz_client, fuzz_server])
@pytest.mark.parametrize("name", NAMES)
def test_mutated_messages(name: str, fuzz: Any) -> None:
    tally, rng = Tally(name), np.random.default_rng(7)
    before = NAMES[NAMES.index(name) - 1]
    others = [exchange.request.content for exchange in recorded(before)[::20]]
    if fuzz is fuzz_client:
        fuzz_client(CASES[name], recorded(name), others, 40, rng, tally)
    else:
        fuzz_server(CASES[name], others, 30, rng, tally, rounds=5)
    assert tally.problems == []
    assert tally.refused > 10


def test_the_harness_sees_what_it_looks_for() -> None:
    """A client that changes its state, allocates, or says nothing would be found."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        context.state["spoilt"] = ArrayRecord([np.zeros(10**6)])
        raise ValueError

    tally = Tally("bad")
    case = replace(CASES["naive-frank-wolfe"], app=app)
    requests = recorded("naive-frank-wolfe")
    train_ones = [e for e in requests if e.request.metadata.message_type == "train"]
    fuzz_client(case, train_ones, [], 5, np.random.default_rng(0), tally)
    found = " ".join(tally.problems)
    for what in ("changed the state", "bytes were allocated", "without a reason"):
        assert what in found
