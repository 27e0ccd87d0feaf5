"""Mutated Messages are handled or refused with a reason; see fuzz_runs.

The long form, 10 000 of them, is ``python -m tests.strategies.fuzz_runs``.
"""

from __future__ import annotations

import hashlib
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

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
    measured,
    mutate_bytes,
    record,
    time_limit,
)
from tests.strategies.soak_cases import CASES

# one of each kind of message and of state; the long form has all cases
NAMES = (
    "fedfw augmented",
    "fedfw corrective",
    "naive-frank-wolfe",
    "fedgia gram",
    "fedfw corrective float32",
    "fedgia gram float32",
    "zeroth-order-rfl",
    "hyfdca bundle",
    "hyfdca practical",
    "hyfdca bundle apart",
    "hyfem",
)
_RECORDED: dict[str, list[Exchange]] = {}


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()


def recorded(name: str) -> list[Exchange]:
    if name not in _RECORDED:
        _RECORDED[name] = record(CASES[name])
    return _RECORDED[name]


def others(name: str) -> list[RecordDict]:
    other = NAMES[NAMES.index(name) - 1]
    return [exchange.request.content for exchange in recorded(other)[::20]]


@pytest.mark.parametrize("name", NAMES)
def test_clients(name: str) -> None:
    tally = Tally(name)
    rng = np.random.default_rng(7)
    fuzz_client(CASES[name], recorded(name), others(name), 40, rng, tally)
    assert tally.problems == []
    assert tally.refused > 10


@pytest.mark.parametrize("name", NAMES)
def test_server(name: str) -> None:
    tally = Tally(name)
    rng = np.random.default_rng(8)
    fuzz_server(CASES[name], others(name), 40, rng, tally, rounds=6)
    assert tally.problems == []
    assert tally.refused > 10


def test_the_harness_sees_what_it_looks_for() -> None:
    """A client that changes its state, allocates, or says nothing would be found."""
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        context.state["spoilt"] = ArrayRecord([np.zeros(10**6)])
        raise ValueError

    from dataclasses import replace

    tally = Tally("bad")
    case = replace(CASES["naive-frank-wolfe"], app=app)
    exchanges = [
        exchange
        for exchange in recorded("naive-frank-wolfe")
        if exchange.request.metadata.message_type == "train"
    ]
    fuzz_client(case, exchanges, [], 5, np.random.default_rng(0), tally)
    found = " ".join(tally.problems)
    assert "changed the state" in found
    assert "bytes were allocated" in found
    assert "without a reason" in found


def formats(folder: Path) -> Iterator[tuple[str, bytes, Callable[[bytes], Any]]]:
    """What HyFDCA's nodes read beside messages: a name, bytes, and who reads them."""
    secret, context = bytes(range(32)), ("holders' key", "a", "b")
    alignment = align(
        {"a": _hashes(6), "b": _hashes(6), "c": _hashes(4)},
        {"a": ["x", "y"], "b": ["z"], "c": ["x", "z"]},
    )
    members = [Introduction(name, "00" * 32, b"\x11" * 16) for name in "abc"]
    settings = {"session": "s", "answers": 10, "regularization": 0.01}
    agreement = Agreement.of(settings, members, alignment)
    yield "agreement", agreement.to_bytes(), Agreement.from_bytes
    sealed = seal(secret, secret, context)
    yield "sealed key", sealed, lambda data: open_sealed(secret, data, context)
    scalar = scalar_from(secret)
    points = blind([f"id {i}" for i in range(5)], scalar, "domain").tobytes()
    yield "points", points, lambda data: evaluate(_points(data), scalar)
    file = NodeFile(private_folder(folder) / "a.block", durable=False)
    file.write({"names": ["a", "b"]}, b"answer" * 20)

    def opened(data: bytes) -> Any:
        file.path.write_bytes(data)
        return file.read()

    yield "a node's file", file.path.read_bytes(), opened


def _hashes(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    data = b"".join(hashlib.sha256(bytes([i])).digest()[:16] for i in range(count))
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["agreement", "sealed key", "points", "a node's file"])
def test_mutated_agreements_keys_points_and_ledgers(
    name: str, count: int, tmp_path: Path
) -> None:
    """Who reads them refuses them with a reason, or they are what they were.

    Points that lie on the curve, and another agreement, are whole: nobody signed them.
    """
    (case,) = (case for case in formats(tmp_path / "ledgers") if case[0] == name)
    _, whole, read = case
    rng, tally = np.random.default_rng([3, *name.encode()]), Tally(name)
    read(whole)
    for _ in range(count):
        data = mutate_bytes(rng, whole)
        try:
            with time_limit(), measured(tally, len(data)):
                read(data)
        except (ValueError, EncryptionError) as error:
            tally.refuse(f"{type(error).__name__}: {error}")
        else:
            assert data == whole or name in ("agreement", "points")
    assert tally.problems == []
    assert tally.refused > 0.7 * count
