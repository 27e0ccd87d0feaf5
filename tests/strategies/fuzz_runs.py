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
from pathlib import Path
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
from flwr.serverapp.strategy import Strategy

from fedtrellis import Callback, LocalGrid, RoundRecord, RoundStrategy
from fedtrellis.encryption import Cipher
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.node_secrets import NodeSecrets, run_ledgers
from fedtrellis.server.conversation import refusal_of
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import encode
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.flower_internals import message_bytes
from strategies.hyfdca.mixtures import WrongReportError
from tests.harness import calm, contexts, number_of
from tests.strategies.soak_cases import CASES, Case

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
    """Bits flipped, cut, lengthened, overwritten, or something else altogether."""
    kind = int(rng.integers(6))
    if not data or kind == 0:
        return rng.bytes(int(rng.integers(0, 64)))
    changed = bytearray(data)
    at = int(rng.integers(len(changed)))
    if kind <= 2:
        # half of them in the first bytes, where headers are
        end = min(len(changed), 80) if rng.random() < 0.5 else len(changed)
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        del changed[at:]
    elif kind == 4:
        changed += rng.bytes(8 * int(rng.integers(1, 4)))
    else:
        changed[at : at + 8] = b"\xff" * len(changed[at : at + 8])
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
    if kind == 2:
        # other values in an array that stays well-formed
        where = rng.integers(flat.size, size=int(rng.integers(1, 4)))
        if values.dtype.kind == "f":
            flat[where] = choose(rng, _FLOATS)
        elif values.dtype.kind in "iu":
            info = np.iinfo(values.dtype)
            flat[where] = choose(rng, (info.max, info.min, 0, 1, info.max // 2))
        return encode(values)
    dtype = choose(rng, ("<f4", "<i8", ">f8", "?", "u1"))
    with np.errstate(all="ignore"):
        others = [flat, values[..., None], np.asfortranarray(values), flat[:-1]]
        others += [np.tile(flat, 2), values.astype(dtype), values[:0, None]]
    return encode(choose(rng, others))


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

    name: str
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
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, kept)
            peak = tracemalloc.get_traced_memory()[1] - before
            limit = TIMES * allowed + BESIDES
            self.peak = max(self.peak, peak / limit)
            if peak > limit:
                self.problems.append(f"{peak} bytes were allocated, not {limit}")


# -------------------------------------------------------------------------- the clients


@dataclass
class Exchange:
    """A request, what the node had before, and its ledger's file, if it had one."""

    name: str
    request: Message
    state: dict[str, Any]
    ledger: Path | None
    known: bytes


class Recorder(LocalGrid):
    """A grid that keeps every request."""

    def _deliver(self, messages: Sequence[Message]) -> None:
        kept = self.__dict__.setdefault("exchanges", [])
        for message in messages:
            context = self._contexts[message.metadata.dst_node_id]
            name = str(number_of(context))
            config = dict(message.content.get("config", {}))
            session = str(config.get("session", ""))
            ledger, known = None, b""
            if session and run_ledgers(session).is_dir():
                path = BlockMember(NodeSecrets(name, {}), session)._file.path
                if path.is_file():
                    ledger, known = path, path.read_bytes()
            kept.append(Exchange(name, message, dict(context.state), ledger, known))
        super()._deliver(messages)


def record(case: Case, rounds: int = 6) -> list[Exchange]:
    """All messages of a short run, its preparation and its evaluation included."""
    grid = Recorder(case.app, case.nodes, seed=1, reply_loss=0.1)

    class Wipes(Callback):
        """Nodes lose their states and are restored; in round 4 both holders do."""

        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            for name in strategy.clients[: {2: 1, 4: 2}.get(record.round, 0)]:
                contexts(grid)[int(name)].state = RecordDict()

    options: dict[str, Any] = {"backup_every": 2} if case.method == "hyfdca" else {}
    options |= {"client_evaluate_every": 2 if case.evaluates else 0}
    strategy = case.strategy(callbacks=[Wipes()], **options)
    strategy.start(grid, ArrayRecord([case.start]), num_rounds=rounds)
    return list(grid.__dict__["exchanges"])


def fuzz_client(
    case: Case,
    exchanges: Sequence[Exchange],
    others: Sequence[RecordDict],
    count: int,
    rng: Rng,
    tally: Tally,
) -> None:
    """Give a method's clients so many mutated requests, each where it came in its run.

    A request that is refused leaves the state in the client's context as it was.
    """
    by_kind: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        by_kind.setdefault(exchange.request.metadata.message_type, []).append(exchange)
    kinds = sorted(by_kind)
    for _ in range(count):
        kind = choose(rng, kinds)
        exchange = choose(rng, by_kind[kind])
        content = mutate_content(rng, exchange.request.content, others)
        if rng.random() < 0.05:
            kind = choose(rng, kinds)
        about = exchange.request.metadata
        message = Message(content, about.dst_node_id, kind, group_id=about.group_id)
        tally.messages += 1
        for problem in _given(case, message, exchange, tally):
            tally.problems.append(f"{kind} of {case.name}: {problem}")


def _given(
    case: Case, message: Message, exchange: Exchange, tally: Tally
) -> Iterator[str]:
    """What is wrong with a client's way with a message."""
    node: Any = {"partition-id": int(exchange.name), "num-partitions": case.nodes}
    state, ledger = RecordDict(dict(exchange.state)), exchange.ledger
    context = Context(1, message.metadata.dst_node_id, node, state, {})
    before = {key: dict(record) for key, record in exchange.state.items()}
    arrays = [a for r in before.values() for a in r.values() if isinstance(a, Array)]
    held = sum(len(array.data) for array in arrays)
    if ledger is not None:
        ledger.write_bytes(exchange.known)
    refused = ""
    try:
        with tally.bounded(max(message_bytes(message), case.start.nbytes, held)):
            reply = case.app(message, context)
    except EndlessError as error:
        yield str(error)
        return
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    else:
        if said := refusal_of(dict(reply.content.get("status", {}))):
            refused = f"{said.refusal}: {said}"
        elif not dict(reply.content.get("status", {})).get("in-sync", True):
            refused = "OutOfSync: the client asks to be restored"
    if refused:
        tally.refuse(refused)
        if {key: dict(record) for key, record in context.state.items()} != before:
            yield "a refused message has changed the state"
    if ledger is not None and ledger.is_file():
        # what a message has made a block's file forget
        old, new = (
            json.loads(data[12 : 12 + int.from_bytes(data[8:12], "big")])
            for data in (exchange.known, ledger.read_bytes())
        )
        same = old.get("begun") == new.get("begun")
        if same and "agreed" in old and old["agreed"] != new.get("agreed"):
            yield "another agreement is in the block's file"
        if same and refused and old.get("attempts") != new.get("attempts"):
            yield "a refused message has used an attempt up"


# --------------------------------------------------------------------------- the server


class _Fingerprint(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, type):
            return NotImplemented
        if callable(item) or isinstance(item, Cipher | Callback | Strategy):
            return str, (type(item).__name__,)
        return NotImplemented


def fingerprint(strategy: Any) -> bytes:
    """All of a strategy's state but its log of the traffic."""
    skip = ("options", "history", "result", "_wished")
    of_parts = ("strategy", "_strategy", "_wave", "_extra", "_wished")
    content = {k: v for k, v in vars(strategy).items() if k not in skip}
    said = vars(content.pop("conversation"))
    content["conversation"] = [said[k] for k in ("registry", "session", "epoch")]
    for part in ("half", "_steps"):
        if content.get(part) is not None:
            inside = vars(content[part]).items()
            content[part] = {k: v for k, v in inside if k not in of_parts}
    stream = io.BytesIO()
    _Fingerprint(stream).dump(content)
    return stream.getvalue()


class Tampering(LocalGrid):
    """A grid that mutates replies on their way, and counts which."""

    rng: Rng
    others: Sequence[RecordDict] = ()
    only: str = ""
    tampered = 0

    def _strikes(self, message: Message) -> set[str]:
        if not self.only:
            return super()._strikes(message)
        mine = message.metadata.message_type == self.only
        hit = self.rng.random() < self.faults["garbage"]
        return {"garbage"} if hit and mine else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.tampered += 1
        seen = self.__dict__.setdefault("seen", [])
        content = mutate_content(
            self.rng, reply.content, [*self.others, reply.content, *seen]
        )
        if len(seen) < 200:
            seen.append(reply.content)
        return Message(content, reply_to=message)


def _watch(strategy: Any, tally: Tally, model: int) -> None:
    """Check that what is dropped changes nothing, and that looking costs little."""

    def guarded(look: Callable[..., Any], allowed: Callable[..., int]) -> Any:
        def call(*arguments: Any) -> Any:
            before = fingerprint(strategy)
            try:
                with tally.bounded(max(allowed(arguments[0]), model)):
                    result = look(*arguments)
                if isinstance(result, Reason):  # an envelope that is no answer
                    raise ValueError(result)
            except EndlessError as error:
                tally.problems.append(str(error))
                raise ValueError("endless") from None
            except Exception as error:
                tally.refuse(str(error) or type(error).__name__)
                # HyFDCA: the answer says which nonce it is to be asked with instead
                again = "the wave begins again" in str(error)
                if not again and fingerprint(strategy) != before:
                    tally.problems.append("a dropped answer has changed the strategy")
                if isinstance(arguments[0], Message):
                    return Reason(str(error))
                raise
            return result

        return call

    def of_answer(answer: Any) -> int:
        sizes = sum(array.nbytes for array in answer.arrays) + answer.numbers.nbytes
        return int(sizes)

    strategy.conversation._open = guarded(strategy.conversation._open, message_bytes)
    if isinstance(strategy, RoundStrategy):
        vars(strategy)["check"] = guarded(strategy.check, of_answer)
    for method in ("ask", "ask_everyone"):
        ask = getattr(strategy, method, None)
        if ask is None:
            continue

        def asking(*arguments: Any, ask: Any = ask, **more: Any) -> Any:
            given = list(arguments)
            at = next(
                i
                for i, value in enumerate(given)
                if callable(value) and value.__code__.co_varnames[:1] == ("answer",)
            )
            given[at] = guarded(given[at], of_answer)
            return ask(*given, **more)

        setattr(strategy, method, asking)


_SETUP = "query.hello train.align train.agree train.labels train.ready"


def fuzz_server(
    case: Case,
    others: Sequence[RecordDict],
    count: int,
    rng: Rng,
    tally: Tally,
    rounds: int = 12,
) -> None:
    """Runs in which replies are mutated on their way, until there were enough.

    A run that is tampered with before round 1 may end there, with a reason.
    """
    phases = sorted({e.request.metadata.message_type for e in record(case, 2)})
    start, turn = tally.messages, 0
    while tally.messages < start + count:
        # one run in three is tampered with before round 1 only
        setup = [p for p in phases if p in _SETUP]
        only = choose(rng, setup) if turn % 3 == 2 else ""
        turn += 1
        _one_run(case, others, rng, tally, rounds, only)


def _one_run(
    case: Case,
    others: Sequence[RecordDict],
    rng: Rng,
    tally: Tally,
    rounds: int,
    only: str,
) -> None:
    rate = 0.5 if only else choose(rng, (0.1, 0.4, 1.0))
    grid = Tampering(case.app, case.nodes, seed=int(rng.integers(2**31)), garbage=rate)
    grid.rng, grid.others, grid.only = rng, others, only

    class Calm(Callback):
        """The preparation and the last rounds are spared, unless it is its turn.

        What the server makes of the answers is watched from here on.
        """

        def on_start(self, strategy: Any, first: int, last: int) -> None:
            _watch(strategy, tally, case.start.nbytes)
            if not only:
                calm(grid)

        def on_round(self, strategy: Any, record: RoundRecord) -> None:
            if not only:
                grid.faults["garbage"] = 0.0 if record.round >= rounds - 2 else rate

    strategy = case.strategy(
        callbacks=[Calm()],
        client_evaluate_every=3 if case.evaluates else 0,
        start_timeout=5.0,
    )
    failed = False
    try:
        strategy.start(grid, ArrayRecord([case.start]), num_rounds=rounds)
    except Exception as error:
        # it may end before round 1; and nobody can tell whose word of a hidden sum is
        # wrong, so that a run ends as it must
        a_reason = isinstance(error, SettingsError | TimeoutError | RuntimeError)
        if not (only and a_reason) and not isinstance(error, WrongReportError):
            tally.problems.append(f"{case.name}: the run ended: {error!r}")
        failed = True
    tally.messages += grid.tampered
    if only == "query.hello":
        # the answers to the introduction are looked at before the strategy sees any
        rejected = [why for r in strategy.history for _, why in r.rejected]
        rejected += [why for _, why in strategy.conversation.traffic.rejected]
        for why in rejected:
            if "introduction" in why:
                tally.refuse(why)
    if not failed and not np.isfinite(strategy.broadcast.model).all():
        tally.problems.append(f"{case.name}: the model is not finite")


# ---------------------------------------------------------------------------------- all

#: Whose messages other methods' are mixed with.
STRANGERS = ("fedfw plain", "fedgia gram", "hyfdca bundle")


def main() -> int:
    """Print the table; 1 if there was a problem.

    Half of the messages go to the clients; those of a case do not depend on which
    others are named.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    strangers = [e.request.content for n in STRANGERS for e in record(CASES[n])[::8]]
    each = -(-arguments.messages // (2 * len(CASES)))
    print("to,messages,refused,of the allowed memory,problems", flush=True)
    tracemalloc.start()
    failed = False
    for name in arguments.names or list(CASES):
        rng = np.random.default_rng([arguments.seed, *name.encode()])
        case, exchanges = CASES[name], record(CASES[name])
        pool = [*strangers, *(exchange.request.content for exchange in exchanges[::5])]
        clients, server = Tally(f"{name} clients"), Tally(f"{name} server")
        fuzz_client(case, exchanges, pool, each, rng, clients)
        fuzz_server(case, pool, each, rng, server)
        for t in (clients, server):
            what = f"{t.messages},{t.refused},{t.peak:.2f},{len(t.problems)}"
            print(f"{t.name},{what}", flush=True)
            for problem, count in Counter(t.problems).items():
                failed = True
                print(f"{t.name}: {problem} ({count} times)", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
