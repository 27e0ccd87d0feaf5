"""Mutated Messages are handled or refused with a reason; see fuzz_runs.

The long form, 10 000 of them, is ``python -m tests.strategies.fuzz_runs``.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies.fuzz_formats import fuzz_formats
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
    """Messages of another method."""
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


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32 - 1))
def test_clients_with_whatever_hypothesis_finds(name: str, seed: int) -> None:
    tally = Tally(name)
    rng = np.random.default_rng(seed)
    fuzz_client(CASES[name], recorded(name), others(name), 1, rng, tally)
    assert tally.problems == []


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


def test_mutated_ciphertexts_do_no_harm() -> None:
    """In a process of their own: a native crash would end it."""
    command = [
        sys.executable,
        "-m",
        "tests.strategies.fuzz_runs",
        "--ciphertexts",
        "150",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for backend in ("stream", "tenseal-bfv"):
        assert f"| {backend} | 150 |" in done.stdout


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_agreements_keys_points_and_ledgers(count: int, tmp_path: Path) -> None:
    tallies = list(fuzz_formats(count, 3, tmp_path / "ledgers"))
    assert len(tallies) == 4
    for tally in tallies:
        assert tally.problems == []
        assert tally.refused > 0.7 * count
