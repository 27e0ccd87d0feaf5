"""Mutated Messages for the clients and the server of every method.

``python -m tests.strategies.fuzz_runs`` gives 10 000 to them and prints a table;
``--messages``, ``--seed``, and names of cases, make it another.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import pickle
import re
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)

from fedtrellis import Callback, LocalGrid, RoundRecord, RoundStrategy
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.node_secrets import NodeSecrets, run_ledgers
from fedtrellis.server.conversation import refusal_of
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import encode
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.flower_internals import message_bytes
from strategies.hyfdca.mixtures import WrongReportError
from tests.harness import Recorder, contexts, number_of
from tests.strategies.soak_runs import CASES, NODES, evaluates

#: What one message may make a client or the server allocate at a time: so many times
#: the largest of the message, the model and the client's state, and this much besides.
TIMES, BESIDES = 16, 2_000_000
#: CPU seconds after which a message counts as endless.
SECONDS = 10.0

Rng = np.random.Generator
Items = dict[str, Any]


# -------------------------------------------------------- messages with something wrong

#: Keys that say what a message is; changed more often than others.
ENVELOPE = (
    "session server-round used-round model-version model-base model-shapes client-id "
    "model-encoding in-sync numbers restore restore-as-model keep-model"
)
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, 1e-320, -1.0, 0.0)
_INTS = (-1, 0, 1, 2, 10**6, 2**31, 10**12, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = ("", "\x00", "ä" * 40, "0", "-1", "nan", "train", "{}", "x" * 10_000)
_OTHER: Any = (True, b"\x00\x01", [1, 2, 3], [], ["a"], [0.5])
_SHAPES: Any = ((10**12,), (2**40, 2**40), (0, 10**12), (10**9,), (), (1,), (3, 3))
_DTYPES = ("<f8", "<f4", ">f8", "<i8", "|u1", "|b1", "<u8", "<c16", "<M8[s]")
_KEYS = ("extra", "0", "", "joined", "x.values", "x.indices")


def choose(rng: Rng, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def mutate_bytes(rng: Rng, data: bytes) -> bytes:
    """Cut, lengthened, overwritten, with flipped bits, or something else altogether."""
    kind, changed = int(rng.integers(6)), bytearray(data)
    if not data or kind == 0:
        return rng.bytes(int(rng.integers(0, 64)))
    # half of them in the first bytes, where headers are
    end = choose(rng, (len(data), min(len(data), 80)))
    at = int(rng.integers(end))
    if kind == 1:
        del changed[at:]
    elif kind == 2:
        changed += rng.bytes(8 * int(rng.integers(1, 4)))
    elif kind == 3:
        changed[at : at + 8] = b"\xff" * len(changed[at : at + 8])
    else:
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def mutate_array(rng: Rng, array: Array) -> Array:
    """Wrong bytes, dtype, shape, serialisation or values."""
    kind, known = int(rng.integers(7)), (array.dtype, array.shape, array.stype)
    if kind == 0:
        return Array(array.dtype, array.shape, "no.such.type", array.data)
    if kind == 1:
        # a header that says what is not there
        stream, body = io.BytesIO(), array.data[128:] if rng.random() < 0.5 else b""
        header = {"descr": choose(rng, _DTYPES), "fortran_order": False}
        shape = {"shape": choose(rng, _SHAPES)}
        np.lib.format.write_array_header_1_0(stream, {**header, **shape})
        return Array(*known, stream.getvalue() + body)
    if kind > 3:
        return Array(*known, mutate_bytes(rng, array.data))
    try:
        values = array.numpy().copy()
    except Exception:
        return array  # it was changed before
    flat = values.reshape(-1)
    if values.dtype.kind not in "fiub" or not values.size:
        return encode(np.zeros(int(rng.integers(1, 5))))
    if kind == 2 and values.dtype.kind != "b":
        # another value in an array that stays well-formed
        whole = values.dtype.kind in "iu"
        info: Any = np.iinfo(values.dtype) if whole else None
        others = (info.max, info.min, 0, info.max // 2) if whole else _FLOATS
        flat[int(rng.integers(flat.size))] = choose(rng, others)
        return encode(values)
    dtype = choose(rng, ("<f4", "<i8", ">f8", "?", "u1"))
    with np.errstate(all="ignore"):
        alike = [flat, values[..., None], np.asfortranarray(values), flat[:-1]]
        alike += [np.tile(flat, 2), values.astype(dtype), values[:0, None]]
    return encode(choose(rng, alike))


def mutate_value(rng: Rng, value: Any) -> Any:
    """Another value, often of another type."""
    if rng.random() < 0.25:
        return choose(rng, [choose(rng, s) for s in (_FLOATS, _INTS, _TEXTS, _OTHER)])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return choose(rng, (*_INTS, value - 2, value - 1, value + 1, float(value)))
    if isinstance(value, float):
        return choose(rng, (*_FLOATS, 2.0 * value, 1))
    if isinstance(value, bytes):
        return mutate_bytes(rng, value)
    if isinstance(value, str):
        return choose(rng, (*_TEXTS, value + "0", value[:-1]))
    if not value:
        return [choose(rng, _INTS)]
    at = int(rng.integers(len(value)))
    changed = mutate_value(rng, value[at])
    alike = changed if type(changed) is type(value[at]) else value[at]
    with_other = [*value[:at], alike, *value[at + 1 :]]
    longer = value + [value[at]] * int(rng.integers(1, 200))
    return choose(rng, ([1, 2**40], value[:at] + value[at + 1 :], longer, with_other))


def _change_keys(rng: Rng, items: Items, extra: Any) -> Items:
    """Without a key, with another name for one, with one more, or in another order."""
    keys, kind = list(items), int(rng.integers(4))
    if not keys or kind == 0:
        return {**items, choose(rng, _KEYS): extra}
    key = choose(rng, keys)
    rest = {name: value for name, value in items.items() if name != key}
    return [rest, {**rest, key + "x": items[key]}, {key: items[key], **rest}][kind - 1]


def _mutate_record(rng: Rng, record: Any) -> Any:
    items, arrays = dict(record), isinstance(record, ArrayRecord)
    if items and rng.random() < 0.78:
        known = [key for key in items if key in ENVELOPE]
        key = choose(rng, list(items) if not known or rng.random() < 0.6 else known)
        items[key] = (mutate_array if arrays else mutate_value)(rng, items[key])
    else:
        extra = encode(rng.standard_normal(3)) if arrays else choose(rng, _INTS)
        items = _change_keys(rng, items, extra)
    if isinstance(record, MetricRecord):
        items = {k: v for k, v in items.items() if type(v) in (int, float)}
    return type(record)(items)


def mutate_content(
    rng: Rng, content: RecordDict, others: Sequence[RecordDict] = ()
) -> RecordDict:
    """A message's content with one to three things wrong, some taken from others."""
    records: Items = dict(content)
    for _ in range(choose(rng, (1, 1, 1, 2, 3))):
        names, kind = list(records), int(rng.integers(12))
        if kind == 2 or not names:
            records = _change_keys(rng, records, ArrayRecord())
            continue
        name = choose(rng, names)
        if kind == 0:
            del records[name]
        elif kind == 1:
            # of another type
            to = (ConfigRecord({"0": b"\x00"}), MetricRecord({"0": 1.0}), ArrayRecord())
            records[name] = choose(rng, to)
        elif kind == 3 and others:
            # all of it, or a record, of another message
            taken = dict(choose(rng, others))
            if taken and rng.random() < 0.5:
                key = choose(rng, list(taken))
                records[key] = taken[key]
            else:
                records = taken
        else:
            records[name] = _mutate_record(rng, records[name])
    return RecordDict(records)


# --------------------------------------------------------------------------- the limits


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


# ----------------------------------------------------------------------------- the runs

_SETUP = ["query.hello", "train.align", "train.agree", "train.labels", "train.ready"]


class Fuzzed(LocalGrid):
    """Nodes get mutated requests beside the real ones, and replies are spoilt.

    With ``only`` the replies to one kind of message are spoilt.
    """

    rng: Rng
    to_clients: Tally
    to_server: Tally
    others: Sequence[RecordDict] = ()
    only, share = "", 0.1

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

    def _deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for _ in range(self.rng.poisson(self.share)):
                self._mutated(message)
        super()._deliver(messages)

    def _mutated(self, message: Message) -> None:
        """What a copy of the node makes of the request with something wrong.

        One that is refused leaves the state in the node's context as it was.
        """
        tally, about = self.to_clients, message.metadata
        content = mutate_content(self.rng, message.content, self.others)
        kind = about.message_type
        if self.rng.random() < 0.05:
            kind = choose(self.rng, ["train", "evaluate", *_SETUP])
        wrong = Message(content, about.dst_node_id, kind, group_id=about.group_id)
        node = self._contexts[about.dst_node_id]
        state = RecordDict(dict(node.state))
        copy = Context(1, node.node_id, node.node_config, state, {})
        before = {key: dict(record) for key, record in state.items()}
        arrays = [a for r in before.values() for a in r.values() if type(a) is Array]
        held = sum(len(array.data) for array in arrays)
        tally.messages += 1
        refused = ""
        with self._ledger(message, node, tally) as told:
            try:
                with tally.bounded(max(message_bytes(wrong), held)):
                    reply = self.client_app(wrong, copy)
            except Exception as error:
                refused = f"{type(error).__name__}: {error}"
            else:
                status = dict(reply.content.get("status", {}))
                if said := refusal_of(status):
                    refused = f"{said.refusal}: {said}"
                elif not status.get("in-sync", True):
                    refused = "OutOfSync: the client asks to be restored"
            told.append(refused)
        if refused:
            tally.refuse(refused)
            if {key: dict(record) for key, record in state.items()} != before:
                tally.problems.append("a refused message has changed the state")

    @contextmanager
    def _ledger(
        self, message: Message, node: Context, tally: Tally
    ) -> Iterator[list[str]]:
        """Look at what a message has made a block's file forget, and undo it."""
        session = str(dict(message.content.get("config", {})).get("session", ""))
        path, known, refused = None, b"", list[str]()
        if session and run_ledgers(session).is_dir():
            member = BlockMember(NodeSecrets(str(number_of(node)), {}), session)
            path = member._file.path
            known = path.read_bytes() if path.is_file() else b""
        yield refused
        if path is None or not known or not path.is_file():
            return
        old, new = (
            json.loads(data[12 : 12 + int.from_bytes(data[8:12], "big")])
            for data in (known, path.read_bytes())
        )
        path.write_bytes(known)
        if old.get("begun") == new.get("begun"):
            if "agreed" in old and old["agreed"] != new.get("agreed"):
                tally.problems.append("another agreement is in the block's file")
            if refused[0] and old.get("attempts") != new.get("attempts"):
                tally.problems.append("a refused message has used an attempt up")


def _watch(strategy: Any, tally: Tally, model: int) -> None:
    """Check that what is dropped changes nothing, and that looking costs little."""
    conversation = strategy.conversation

    def everything(t: int) -> bytes:
        clients = [vars(client) for client in conversation.registry.clients.values()]
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


def fuzz(name: str, messages: int, rng: Rng, rounds: int = 12) -> tuple[Tally, Tally]:
    """Runs in which requests and replies are mutated, until there were enough of both.

    One run in three is tampered with before round 1 only; it may end there, with a
    reason.
    """
    tallies = Tally(), Tally()
    for turn in count():
        only = choose(rng, _SETUP) if turn % 3 == 2 else ""
        _one_run(name, rng, tallies, rounds, only)
        if min(tally.messages for tally in tallies) >= messages:
            return tallies
    raise AssertionError


def _one_run(
    name: str, rng: Rng, tallies: tuple[Tally, Tally], rounds: int, only: str
) -> None:
    rate = 0.5 if only else choose(rng, (0.1, 0.4, 1.0))
    method, (to_clients, to_server) = CASES[name], tallies
    grid = method.grid(NODES, Fuzzed, seed=int(rng.integers(2**31)), garbage=rate)
    grid.rng, grid.only, grid.others = rng, only, strangers()
    grid.to_clients, grid.to_server = to_clients, to_server

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
        # it may end before round 1; and nobody can tell whose word of a hidden sum is
        # wrong, so that a run ends as it must
        a_reason = isinstance(error, SettingsError | TimeoutError | RuntimeError)
        if not (only and a_reason) and not isinstance(error, WrongReportError):
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
    each, failed = -(-given.messages // (2 * len(names))), False
    print("to,messages,refused,of the allowed memory,problems", flush=True)
    tracemalloc.start()
    for name in names:
        rng = np.random.default_rng([given.seed, *name.encode()])
        for to, t in zip(("clients", "server"), fuzz(name, each, rng), strict=True):
            what = f"{t.messages},{t.refused},{t.peak:.2f},{len(t.problems)}"
            print(f"{name} {to},{what}", flush=True)
            for problem, times in Counter(t.problems).items():
                failed = True
                print(f"{name} {to}: {problem} ({times} times)", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
