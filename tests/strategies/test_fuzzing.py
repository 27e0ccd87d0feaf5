"""Mutated Messages are handled or refused with a reason; see fuzz_runs.

The long form, 10 000 of them, is ``python -m tests.strategies.fuzz_runs``.
"""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from clients.hyfdca.preparation import _points
from fedtrellis.dual.alignment import Agreement, align
from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.block_sum import Introduction
from fedtrellis.encryption.intersection import blind, evaluate, scalar_from
from fedtrellis.encryption.node_file import NodeFile, private_folder
from fedtrellis.encryption.symmetric import open_sealed, seal
from tests.strategies.fuzz_runs import (
    Exchange,
    Tally,
    fuzz_client,
    fuzz_server,
    mutate_bytes,
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


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["agreement", "sealed key", "points", "a node's file"])
def test_mutated_agreements_keys_points_and_ledgers(
    name: str, count: int, tmp_path: Path
) -> None:
    """What HyFDCA's nodes read beside messages: refused with a reason, or what it was.

    Points that lie on the curve, and another agreement, are whole: nobody signed them.
    """
    secret, context = bytes(range(32)), ("holders' key", "a", "b")
    rng, tally = np.random.default_rng([3, *name.encode()]), Tally(name)
    if name == "agreement":
        hashes = rng.integers(256, size=(6, 16), dtype=np.uint8)
        alignment = align(
            {"a": hashes, "b": hashes, "c": hashes[:4]},
            {"a": ["x", "y"], "b": ["z"], "c": ["x", "z"]},
        )
        members = [Introduction(who, "00" * 32, b"\x11" * 16) for who in "abc"]
        settings = {"session": "s", "answers": 10, "regularization": 0.01}
        whole = Agreement.of(settings, members, alignment).to_bytes()
    elif name == "sealed key":
        whole = seal(secret, secret, context)
    elif name == "points":
        ids = [f"id {i}" for i in range(5)]
        whole = blind(ids, scalar_from(secret), "domain").tobytes()
    file = NodeFile(private_folder(tmp_path / "ledgers") / "a.block", durable=False)
    if name == "a node's file":
        file.write({"names": ["a", "b"]}, b"answer" * 20)
        whole = file.path.read_bytes()

    def read(data: bytes) -> None:
        if name == "agreement":
            Agreement.from_bytes(data)
        elif name == "sealed key":
            open_sealed(secret, data, context)
        elif name == "points":
            evaluate(_points(data), scalar_from(secret))
        else:
            file.path.write_bytes(data)
            file.read()

    read(whole)
    for _ in range(count):
        data = mutate_bytes(rng, whole)
        try:
            with tally.bounded(len(data)):
                read(data)
        except (ValueError, EncryptionError) as error:
            tally.refuse(f"{type(error).__name__}: {error}")
        else:
            assert data == whole or name in ("agreement", "points")
    assert tally.problems == []
    assert tally.refused > 0.7 * count
