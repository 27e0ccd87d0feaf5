"""Mutated answers for the server of every method.

``python -m tests.strategies.fuzz_runs`` gives 10 000 to them and prints a table;
``--messages``, ``--seed``, and names of cases, make it another.
"""

from __future__ import annotations

import argparse
import io
import logging
import pickle
import re
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedtrellis import Callback, LocalGrid, RoundRecord, RoundStrategy
from fedtrellis.server.callbacks import DivergedError
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import encode
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.flower_internals import message_bytes
from strategies.hyfdca.mixtures import WrongReportError
from tests.harness import Recorder, contexts
from tests.strategies.soak_runs import CASES, NODES, evaluates

#: What one answer may make the server allocate at a time: so many times the larger of
#: the answer and the model, and this much besides.
TIMES, BESIDES = 16, 2_000_000
#: CPU seconds after which a message counts as endless.
SECONDS = 10.0

Rng = np.random.Generator
Items = dict[str, Any]


#: Keys that say what a message is; changed more often than others.
ENVELOPE = (
    "session server-round used-round model-version model-base model-shapes client-id "
    "model-encoding in-sync numbers restore restore-as-model keep-model"
)
#: What stands for any value of a config or its metrics.
_VALUES: Any = (
    *(float("nan"), float("inf"), -float("inf"), 1e308, 1e-320, -1.0, 0.0, 0.5, True),
    *(-1, 0, 1, 2, 10**6, 2**31, 10**12, 2**63 - 1, -(2**63), 2**64 - 1, b"\x00\x01"),
    *("", "\x00", "ä" * 40, "0", "-1", "nan", "train", "{}", "x" * 10_000),
    *([1, 2, 3], [], ["a"], [0.5], [1, 2**40], [7] * 200),
)
_SHAPES: Any = ((10**12,), (2**40, 2**40), (0, 10**12), (10**9,), (), (1,), (3, 3))
_DTYPES = ("<f8", "<f4", ">f8", "<i8", "|u1", "|b1", "<u8", "<c16", "<M8[s]")
_KEYS = ("extra", "0", "", "joined", "x.values", "x.indices")


def choose(rng: Rng, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def mutate_bytes(rng: Rng, data: bytes) -> bytes:
    """Cut, lengthened, with flipped bits, or something else altogether."""
    kind, changed = int(rng.integers(6)), bytearray(data)
    if not data or kind == 0:
        return rng.bytes(int(rng.integers(0, 64)))
    # half of them in the first bytes, where headers are
    end = choose(rng, (len(data), min(len(data), 80)))
    if kind == 1:
        return data[: int(rng.integers(end))]
    if kind == 2:
        return data + rng.bytes(8 * int(rng.integers(1, 4)))
    for _ in range(int(rng.integers(1, 4))):
        changed[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def mutate_array(rng: Rng, array: Array) -> Array:
    """Wrong bytes, dtype, shape, serialisation or values."""
    kind, known = int(rng.integers(6)), (array.dtype, array.shape, array.stype)
    if kind == 0:
        return Array(array.dtype, array.shape, "no.such.type", array.data)
    if kind == 1:
        # a header that says what is not there
        stream, body = io.BytesIO(), choose(rng, (b"", array.data[128:]))
        header = {"descr": choose(rng, _DTYPES), "fortran_order": False}
        shape = {"shape": choose(rng, _SHAPES)}
        np.lib.format.write_array_header_1_0(stream, {**header, **shape})
        return Array(*known, stream.getvalue() + body)
    if kind < 4:
        return Array(*known, mutate_bytes(rng, array.data))
    try:
        values = array.numpy().copy()
    except Exception:
        return array  # it was changed before
    flat = values.reshape(-1)
    if flat.dtype.kind not in "fiub":
        return encode(np.zeros(int(rng.integers(1, 5))))
    if kind == 4 and flat.size:
        # another value in an array that stays well-formed
        numbers = [v for v in _VALUES if type(v) in (int, float)]
        with suppress(OverflowError, ValueError, TypeError):
            flat[int(rng.integers(flat.size))] = choose(rng, numbers)
        return encode(values)
    dtype = choose(rng, ("<f4", "<i8", ">f8", "?", "u1"))
    with np.errstate(all="ignore"):
        alike = [flat, values[..., None], np.asfortranarray(values), flat[:-1]]
        alike += [np.tile(flat, 2), values.astype(dtype), flat[:0, None]]
    return encode(choose(rng, alike))


def mutate_value(rng: Rng, value: Any) -> Any:
    """Another value, often of another type."""
    if isinstance(value, bytes):
        return mutate_bytes(rng, value)
    near: list[Any] = [not value]
    if type(value) in (int, float) and abs(value) < 2**60:
        near = [value - 2, value - 1, value + 1, float(value)]
    elif isinstance(value, str):
        near = [value + "0", value[:-1]]
    elif isinstance(value, list) and value:
        at = int(rng.integers(len(value)))
        near = [value[:at] + value[at + 1 :], value + value, value[::-1]]
    return choose(rng, near if rng.random() < 0.5 else _VALUES)


def mutate_items(rng: Rng, items: Items, change: Any, extra: Any) -> Items:
    """One of them changed; or one left out, renamed, too many or moved to the end."""
    if not items or rng.random() < 0.05:
        return {**items, choose(rng, _KEYS): extra}
    known = [key for key in items if key in ENVELOPE and rng.random() < 0.4]
    key, kind = choose(rng, known or list(items)), rng.random()
    rest = {name: value for name, value in items.items() if name != key}
    if kind < 0.2:
        renamed = choose(rng, ({}, {key + "x": items[key]}, {key: items[key]}))
        return {**rest, **renamed}
    return {**items, key: change(rng, items[key])}


def mutate_record(rng: Rng, record: Any) -> Any:
    """One of its entries changed, or itself of another type."""
    if rng.random() < 0.1:
        to = (ConfigRecord({"0": b"\x00"}), MetricRecord({"0": 1.0}), ArrayRecord())
        return choose(rng, to)
    change = mutate_array if isinstance(record, ArrayRecord) else mutate_value
    extra: Any = encode(rng.standard_normal(3)) if change is mutate_array else 7
    items = mutate_items(rng, dict(record), change, extra)
    if isinstance(record, MetricRecord):
        items = {k: v for k, v in items.items() if type(v) in (int, float)}
    return type(record)(items)


def mutate_content(
    rng: Rng, content: RecordDict, others: Sequence[RecordDict]
) -> RecordDict:
    """A message's content with one to three things wrong, some taken from others."""
    records: Items = dict(content)
    for _ in range(choose(rng, (1, 1, 1, 2, 3))):
        taken: Items = dict(choose(rng, others)) if others else {}
        if taken and rng.random() < 0.1:
            # all of it, or a record, of another message
            key = choose(rng, list(taken))
            records = choose(rng, (taken, {**records, key: taken[key]}))
        records = mutate_items(rng, records, mutate_record, ArrayRecord())
    return RecordDict(records)


class EndlessError(BaseException):
    """A message is being worked on for too long."""


@dataclass
class Tally:
    """What became of the mutated messages; ``peak`` is a part of the allowed memory."""

    messages: int = 0
    refused: int = 0
    peak: float = 0.0
    problems: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        self.refused += 1
        if not re.search(r"[a-zA-Z]{3}", reason.rpartition("Error: ")[2]):
            self.problems.append(f"a refusal without a reason: {reason!r}")

    @contextmanager
    def bounded(self, allowed: int) -> Iterator[None]:
        """Note down the peak of what is allocated inside; EndlessError after a time."""

        def late(*_: Any) -> None:
            raise EndlessError(f"more than {SECONDS} s for a message")

        kept = signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            yield
        except EndlessError as error:
            self.problems.append(str(error))
            raise ValueError("endless") from None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, kept)
            peak = tracemalloc.get_traced_memory()[1] - before
            limit = TIMES * allowed + BESIDES
            self.peak = max(self.peak, peak / limit)
            if peak > limit:
                self.problems.append(f"{peak} bytes were allocated, not {limit}")


_SETUP = ["query.hello", "train.align", "train.agree", "train.labels", "train.ready"]


class Fuzzed(LocalGrid):
    """Replies are mutated; with ``only`` those to one kind of message."""

    rng: Rng
    to_server: Tally
    others: Sequence[RecordDict] = ()
    only = ""

    def _strikes(self, message: Message) -> set[str]:
        if not self.only:
            return super()._strikes(message)
        mine = message.metadata.message_type == self.only
        hit = self.rng.random() < self.faults["garbage"]
        return {"garbage"} if hit and mine else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.to_server.messages += 1
        seen: list[RecordDict] = self.__dict__.setdefault("seen", [])
        pool = [*self.others, reply.content, *seen]
        if len(seen) < 200:
            seen.append(reply.content)
        return Message(mutate_content(self.rng, reply.content, pool), reply_to=message)


def _watch(strategy: Any, tally: Tally, model: int) -> None:
    """Check that what is dropped changes nothing, and that looking costs little."""
    conversation = strategy.conversation

    def everything(t: int) -> bytes:
        clients = [vars(client) for client in conversation.clients.values()]
        known = strategy.state() if t else {}  # before round 1 there may be none
        return pickle.dumps((known, strategy.broadcast.model, clients))

    def guarded(look: Callable[..., Any]) -> Any:
        def call(given: Any, *more: Any) -> Any:
            if given is None or isinstance(given, Reason):
                return look(given, *more)
            t = more[-1]["server-round"] if more else given.server_round
            before, size = everything(t), 0
            if isinstance(given, Message):
                size = message_bytes(given)
            else:
                sizes = [array.nbytes for array in (*given.arrays, given.numbers)]
                size = sum(map(int, sizes))
            try:
                with tally.bounded(max(size, model)):
                    found = look(given, *more)
                if not isinstance(found, Reason):  # an envelope that is no answer
                    return found
                error: Exception = ValueError(found)
            except Exception as raised:
                error = raised
            tally.refuse(str(error) or type(error).__name__)
            # HyFDCA: the answer says which nonce it is to be asked with instead
            again = "the wave begins again" in str(error)
            if not again and everything(t) != before:
                tally.problems.append("a dropped answer has changed the strategy")
            if isinstance(given, Message):
                return Reason(str(error))
            raise error

        return call

    def asking(t: int, kind: str, of: Any, take: Any, *more: Any, **own: Any) -> Any:
        look = take if take is None else guarded(take)
        return ask_again(t, kind, of, look, *more, **own)

    ask_again = conversation.ask_again
    conversation._open, conversation.ask_again = guarded(conversation._open), asking
    if isinstance(strategy, RoundStrategy):
        vars(strategy)["check"] = guarded(strategy.check)


@cache
def strangers() -> list[RecordDict]:
    """Messages of methods that others' are mixed with."""
    found: list[RecordDict] = []
    for name in ("fedfw plain", "fedgia gram", "hyfdca bundle"):
        grid = CASES[name].grid(NODES, Recorder, seed=1)
        CASES[name].play(grid, 6)
        found += [message.content for message in grid.sent[::8]]
    return found


def fuzz(name: str, messages: int, rng: Rng, rounds: int = 12) -> Tally:
    """Runs in which replies are mutated, until there were enough.

    One run in three is tampered with before round 1 only; it may end there, with a
    reason.
    """
    tally = Tally()
    for turn in count():
        only = choose(rng, _SETUP) if turn % 3 == 2 else ""
        _one_run(name, rng, tally, rounds, only)
        if tally.messages >= messages:
            return tally
    raise AssertionError


def _one_run(name: str, rng: Rng, to_server: Tally, rounds: int, only: str) -> None:
    rate = 0.5 if only else choose(rng, (0.1, 0.4, 1.0))
    method = CASES[name]
    grid = method.grid(NODES, Fuzzed, seed=int(rng.integers(2**31)), garbage=rate)
    grid.rng, grid.only, grid.others = rng, only, strangers()
    grid.to_server = to_server

    class Calm(Callback):
        """The preparation and the last rounds are spared, unless it is its turn.

        What the server makes of the answers is watched from here on. Nodes lose their
        states and are restored; in round 4 both holders do.
        """

        def on_start(self, strategy: Any, first: int, last: int) -> None:
            _watch(strategy, to_server, method.start.nbytes)
            if not only:
                grid.faults["garbage"] = 0.0

        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            if not only:
                grid.faults["garbage"] = 0.0 if record.round >= rounds - 2 else rate
            for client in strategy.clients[: {2: 1, 4: 2}.get(record.round, 0)]:
                contexts(grid)[int(client)].state = RecordDict()

    how: Any = {"backup_every": 2} if name.startswith("hyfdca") else {}
    how |= {"client_evaluate_every": 3 if evaluates(name) else 0}
    strategy = method.strategy(callbacks=[Calm()], start_timeout=5.0, **how)
    try:
        strategy.start(grid, ArrayRecord([method.start]), num_rounds=rounds)
    except Exception as error:
        # it may end before round 1; and nobody can tell whose word of a hidden sum, or
        # of its loss, is wrong, so that a run ends as it must
        lied = isinstance(error, WrongReportError | DivergedError)
        a_reason = isinstance(error, SettingsError | TimeoutError | RuntimeError)
        if not (only and a_reason) and not lied:
            to_server.problems.append(f"the run ended: {error!r}")
    else:
        if not np.isfinite(strategy.broadcast.model).all():
            to_server.problems.append("the model is not finite")
    if only == "query.hello":
        # the answers to the introduction are looked at before the strategy sees any
        rejected = [why for r in strategy.history for _, why in r.rejected]
        rejected += [why for _, why in strategy.conversation.traffic.rejected]
        for why in rejected:
            if "introduction" in why:
                to_server.refuse(why)


def main() -> int:
    """Print the table; 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    names = given.names or [name for name in CASES if not name.endswith("float32")]
    each, failed = -(-given.messages // len(names)), False
    print("method,messages,refused,of the allowed memory,problems", flush=True)
    tracemalloc.start()
    for name in names:
        rng = np.random.default_rng([given.seed, *name.encode()])
        t = fuzz(name, each, rng)
        what = f"{t.messages},{t.refused},{t.peak:.2f},{len(t.problems)}"
        print(f"{name},{what}", flush=True)
        for problem, times in Counter(t.problems).items():
            failed = True
            print(f"{name}: {problem} ({times} times)", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
