"""Mutated Messages for the clients and the server of every method.

``python -m tests.strategies.fuzz_runs`` gives 10 000 to them and prints a table;
``--messages``, ``--seed``, and names of cases, make it another. ``--ciphertexts N``
gives N mutated ciphertexts to each cipher instead, in this process.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import pickle
import re
import resource
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
from fedtrellis.server.conversation import refusal_in
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import encode
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.flower_internals import message_bytes
from fedtrellis.wire.local_grid import FAULTS
from strategies.hyfdca.mixtures import WrongReportError
from tests.harness import contexts
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
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e-320, -1.0, 0.0)
_INTS = (-1, 0, 1, 2, 10**6, 2**31, 10**12, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = ("", "\x00", "ä" * 40, "0", "-1", "nan", "train", "{}", "x" * 10_000)
_SHAPES: Any = ((10**12,), (2**40, 2**40), (0, 10**12), (10**9,), (), (1,), (3, 3))
_DTYPES = ("<f4", "<f2", ">f8", "<i8", "|u1", "|b1", "<u8", "<c16", "<M8[s]", "|S8")


def choose(rng: Rng, items: Sequence[Any]) -> Any:
    """One of them."""
    return items[int(rng.integers(len(items)))]


def mutate_bytes(rng: Rng, data: bytes) -> bytes:
    """Bits flipped, cut, lengthened, overwritten, or something else altogether."""
    kind = int(rng.integers(6))
    if not data or kind == 0:
        return bytes(rng.integers(0, 256, size=int(rng.integers(0, 64)), dtype="u1"))
    changed = bytearray(data)
    if kind <= 2:
        # half of them in the first bytes, where headers are
        end = min(len(changed), 80) if rng.random() < 0.5 else len(changed)
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        del changed[int(rng.integers(len(changed))) :]
    elif kind == 4:
        changed += bytes(
            rng.integers(0, 256, size=int(rng.integers(1, 4)) * 8, dtype="u1")
        )
    else:
        at = int(rng.integers(len(changed)))
        changed[at : at + 8] = b"\xff" * len(changed[at : at + 8])
    return bytes(changed)


def _header(dtype: str, shape: tuple[int, ...], fortran: bool = False) -> bytes:
    text = repr({"descr": dtype, "fortran_order": fortran, "shape": shape})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _read(array: Array) -> Any:
    """Its numbers; None where it was changed before."""
    try:
        values = array.numpy().copy()
    except Exception:
        return None
    return values if values.dtype.kind in "fiub" else None


def _values(rng: Rng, array: Array) -> Array:
    """Other values in an array that stays well-formed."""
    values = _read(array)
    if values is None:
        return array
    if not values.size:
        return encode(np.zeros(int(rng.integers(1, 5))))
    flat = values.reshape(-1)
    where = rng.integers(flat.size, size=int(rng.integers(1, 4)))
    if values.dtype.kind == "f":
        flat[where] = choose(rng, _FLOATS)
    elif values.dtype.kind in "iu":
        info = np.iinfo(values.dtype)
        flat[where] = choose(rng, (info.max, info.min, 0, 1, info.max // 2))
    return encode(values)


def mutate_array(rng: Rng, array: Array) -> Array:
    """Wrong bytes, dtype, shape, serialisation or values."""
    kind = int(rng.integers(7))
    if kind == 0:
        return Array(array.dtype, array.shape, "no.such.type", array.data)
    if kind == 1:
        return _values(rng, array)
    if kind == 2:
        # a header that says what is not there
        body = array.data[128:] if rng.random() < 0.5 else b""
        data = _header(choose(rng, ("<f8", *_DTYPES)), choose(rng, _SHAPES)) + body
        return Array(array.dtype, array.shape, array.stype, data)
    if kind == 3:
        # a well-formed array of another dtype or shape
        values = _read(array)
        if values is None:
            return array
        with np.errstate(all="ignore"):
            other = [
                lambda: values.reshape(-1),
                lambda: values.reshape(*values.shape, 1),
                lambda: np.asfortranarray(values),
                lambda: np.concatenate([values.reshape(-1)] * 2),
                lambda: values.reshape(-1)[:-1],
                lambda: values.astype(choose(rng, ("<f4", "<i8", ">f8", "?", "u1"))),
                lambda: np.zeros((0, *values.shape)),
            ]
            return encode(choose(rng, other)())
    return Array(array.dtype, array.shape, array.stype, mutate_bytes(rng, array.data))


def mutate_value(rng: Rng, value: Any) -> Any:
    """Another value, often of another type."""
    if rng.random() < 0.25:
        # of another type
        kinds = (choose(rng, _FLOATS), choose(rng, _INTS), choose(rng, _TEXTS))
        return choose(rng, (*kinds, True, b"\x00\x01", [1, 2, 3], [], ["a"], [0.5]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = value + int(rng.integers(-2, 3))
        return choose(rng, (*_INTS, near, float(near)))
    if isinstance(value, float):
        whole = int(min(abs(value), 2.0**62)) if value == value else 0
        return choose(rng, (*_FLOATS, value * 2.0, whole))
    if isinstance(value, bytes):
        return mutate_bytes(rng, value)
    if isinstance(value, str):
        return choose(rng, (*_TEXTS, value + "0", value[:-1]))
    assert isinstance(value, list)
    return _mutate_list(rng, value)


def _mutate_list(rng: Rng, value: list[Any]) -> list[Any]:
    changed = list(value)
    kind = int(rng.integers(4))
    if not changed or kind == 0:
        return [choose(rng, _INTS) for _ in range(int(rng.integers(1, 4)))]
    if kind == 1:
        del changed[int(rng.integers(len(changed)))]
    elif kind == 2:
        changed += [choose(rng, changed)] * int(rng.integers(1, 200))
    else:
        at = int(rng.integers(len(changed)))
        same = type(changed[at])
        new = mutate_value(rng, changed[at])
        changed[at] = new if type(new) is same else changed[at]
    return changed


def _change_keys(rng: Rng, items: Items, extra: Callable[[], Any]) -> Items:
    """Without a key, with another name for one, or with one more."""
    keys, kind = list(items), int(rng.integers(4))
    if not keys or kind == 0:
        items[choose(rng, ("extra", "0", "", "joined", "x.values", "x.indices"))] = (
            extra()
        )
        return items
    key = choose(rng, keys)
    if kind == 1:
        del items[key]
    elif kind == 2:
        items[key + "x"] = items.pop(key)
    else:
        shuffled = [keys[i] for i in rng.permutation(len(keys))]
        items = {name: items[name] for name in shuffled}
    return items


def _mutate_arrays(rng: Rng, record: ArrayRecord) -> ArrayRecord:
    items: Items = dict(record)
    if items and rng.random() < 0.75:
        key = choose(rng, list(items))
        items[key] = mutate_array(rng, items[key])
    else:
        items = _change_keys(rng, items, lambda: encode(rng.standard_normal(3)))
    return ArrayRecord(items)


def _mutate_numbers(rng: Rng, record: Any) -> Any:
    items: Items = dict(record)
    if items and rng.random() < 0.8:
        known = [key for key in items if key in ENVELOPE]
        usual = not known or rng.random() < 0.6
        key = choose(rng, list(items) if usual else known)
        items[key] = mutate_value(rng, items[key])
    else:
        items = _change_keys(rng, items, lambda: choose(rng, _INTS))
    if isinstance(record, MetricRecord):
        numbers = (int, float)
        items = {k: v for k, v in items.items() if type(v) in numbers}
        return MetricRecord(items)
    return ConfigRecord(items)


def _of_another_type(rng: Rng, record: Any) -> Any:
    if isinstance(record, ArrayRecord):
        return choose(rng, (ConfigRecord({"0": b"\x00"}), MetricRecord({"0": 1.0})))
    return choose(rng, (ArrayRecord(), ArrayRecord([np.zeros(2)]), MetricRecord()))


def mutate_content(
    rng: Rng, content: RecordDict, others: Sequence[RecordDict] = ()
) -> RecordDict:
    """A message's content with one to three things wrong, some taken from others."""
    records: Items = dict(content)
    for _ in range(choose(rng, (1, 1, 1, 2, 3))):
        names, kind = list(records), int(rng.integers(12))
        if kind == 0 and names:
            del records[choose(rng, names)]
        elif kind == 1 and names:
            name = choose(rng, names)
            records[name] = _of_another_type(rng, records[name])
        elif kind == 2:
            records = _change_keys(rng, records, ArrayRecord)
        elif kind == 3 and others:
            # all of it, or a record, of another message
            other: RecordDict = choose(rng, others)
            taken = dict(other)
            if rng.random() < 0.5 and taken:
                name = choose(rng, list(taken))
                records[name] = taken[name]
            else:
                records = taken
        elif names:
            name = choose(rng, names)
            record = records[name]
            if isinstance(record, ArrayRecord):
                records[name] = _mutate_arrays(rng, record)
            else:
                records[name] = _mutate_numbers(rng, record)
    return RecordDict(records)


# --------------------------------------------------------------------------- the limits


class EndlessError(BaseException):
    """A message is being worked on for too long."""


@contextmanager
def time_limit() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise EndlessError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass
class Tally:
    """What became of the mutated messages; ``peak`` is a part of the allowed memory."""

    name: str
    messages: int = 0
    refused: int = 0
    peak: float = 0.0
    problems: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        """Count a refusal, which has to say something."""
        self.refused += 1
        if not re.search(r"[a-zA-Z]{3}", reason.rpartition("Error: ")[2]):
            self.problem(f"a refusal without a reason: {reason!r}")

    def problem(self, what: str) -> None:
        """Note down what must not be."""
        self.problems.append(what)

    def row(self) -> str:
        """A row of the table."""
        return (
            f"| {self.name} | {self.messages} | {self.refused} | "
            f"{max(self.messages - self.refused, 0)} | {self.peak:.2f} | "
            f"{len(self.problems)} |"
        )


HEADER = (
    "| to | messages | refused | handled | of the allowed memory | problems |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


# ---------------------------------------------------------------------------- recording


@dataclass
class Exchange:
    """A request, what the node had before, and its reply."""

    name: str
    request: Message
    state: dict[str, Any]
    reply: Message | None
    ledger: tuple[Path, bytes] | None = None  # its file, where the node had one


class Recorder(LocalGrid):
    """A grid that keeps every message."""

    exchanges: list[Exchange]

    def _deliver(self, messages: Sequence[Message]) -> None:
        exchanges = {}
        for message in messages:
            context = self._contexts[message.metadata.dst_node_id]
            name = str(context.node_config["partition-id"])
            ledger = _ledger_of(message, name)
            exchange = Exchange(name, message, dict(context.state), None, ledger)
            exchanges[message.metadata.message_id] = exchange
        self.__dict__.setdefault("exchanges", []).extend(exchanges.values())
        super()._deliver(messages)
        for reply in self._replies:
            if reply.has_content():
                exchanges[reply.metadata.reply_to_message_id].reply = reply


def _ledger_of(message: Message, name: str) -> tuple[Path, bytes] | None:
    config: Mapping[str, Any] = message.content.config_records.get("config", {})
    session = str(config.get("session", ""))
    if not session or not run_ledgers(session).is_dir():
        return None
    path = BlockMember(NodeSecrets(name, {}), session)._file.path
    return (path, path.read_bytes()) if path.is_file() else None


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
    return grid.exchanges


# -------------------------------------------------------------------- memory and states


def _size_of(items: Mapping[str, Any]) -> int:
    return sum(
        len(array.data)
        for record in items.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


@contextmanager
def measured(tally: Tally, allowed: int) -> Iterator[None]:
    """Note down the peak of what is allocated inside."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1] - before
        limit = TIMES * allowed + BESIDES
        tally.peak = max(tally.peak, peak / limit)
        if peak > limit:
            tally.problem(f"{peak} bytes were allocated, allowed are {limit}")


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
    stream = io.BytesIO()
    content = {k: v for k, v in vars(strategy).items() if k not in skip}
    said = vars(content.pop("conversation"))
    content["conversation"] = [said[k] for k in ("registry", "session", "epoch")]
    half = content.pop("half", None)
    if half is not None:
        content["half"] = {k: v for k, v in vars(half).items() if k != "_strategy"}
    steps = content.pop("_steps", None)
    if steps is not None:
        of_round = ("strategy", "_wave", "_extra", "_wished")
        content["steps"] = {k: v for k, v in vars(steps).items() if k not in of_round}
    _Fingerprint(stream).dump(content)
    return stream.getvalue()


# -------------------------------------------------------------------------- the clients


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
    kinds = sorted({e.request.metadata.message_type for e in exchanges})
    by_kind = {
        kind: [e for e in exchanges if e.request.metadata.message_type == kind]
        for kind in kinds
    }
    model = case.start.nbytes
    for _ in range(count):
        kind = choose(rng, kinds)
        exchange: Exchange = choose(rng, by_kind[kind])
        content = mutate_content(rng, exchange.request.content, others)
        if rng.random() < 0.05:
            kind = choose(rng, kinds)
        message = Message(
            content,
            dst_node_id=exchange.request.metadata.dst_node_id,
            message_type=kind,
            group_id=exchange.request.metadata.group_id,
        )
        _give(case, message, exchange, model, tally)


def _give(
    case: Case,
    message: Message,
    exchange: Exchange,
    model: int,
    tally: Tally,
) -> None:
    node: Any = {"partition-id": int(exchange.name), "num-partitions": case.nodes}
    state = RecordDict(dict(exchange.state))
    context = Context(1, message.metadata.dst_node_id, node, state, {})
    before = {key: dict(record) for key, record in exchange.state.items()}
    allowed = max(message_bytes(message), model, _size_of(exchange.state))
    where = f"{message.metadata.message_type} of {case.name}"
    if exchange.ledger is not None:
        path, known = exchange.ledger
        path.write_bytes(known)
    tally.messages += 1
    refused = False
    try:
        with time_limit(), measured(tally, allowed):
            reply = case.app(message, context)
    except EndlessError:
        tally.problem(f"{where}: more than {SECONDS} s for a message")
        return
    except Exception as error:
        refused = True
        tally.refuse(f"{type(error).__name__}: {error}")
    else:
        status = reply.content.get("status")
        refused = status is not None and not status.get("in-sync", True)
        if said := refusal_in(reply.content):
            refused = True
            tally.refuse(f"{said.refusal}: {said}")
        elif refused:
            tally.refuse("OutOfSync: the client asks to be restored")
    if exchange.ledger is not None and path.is_file():
        told = _promises(path, known, refused)
        if told:
            tally.problem(f"{where}: {told}")
    if refused:
        after = {key: dict(record) for key, record in context.state.items()}
        if after != before:
            tally.problem(f"{where}: a refused message has changed the state")


def _promises(path: Path, before: bytes, refused: bool) -> str:
    """What a message has made a block's file forget; empty if nothing."""
    old, new = (_ledger_in(path, data) for data in (before, path.read_bytes()))
    same = old.get("begun") == new.get("begun")
    if same and "agreed" in old and old["agreed"] != new.get("agreed"):
        return "another agreement is in the block's file"
    if same and refused and old.get("attempts") != new.get("attempts"):
        return "a refused message has used an attempt up"
    return ""


def _ledger_in(path: Path, data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[8:12], "big")
    found: dict[str, Any] = json.loads(data[12 : 12 + size])
    return found


# --------------------------------------------------------------------------- the server


class Tampering(LocalGrid):
    """A grid that mutates replies on their way, and counts which."""

    rng: Rng
    others: Sequence[RecordDict] = ()
    only: str = ""
    tampered = 0

    def _strikes(self, message: Message) -> set[str]:
        strikes = super()._strikes(message)
        if self.only:
            hit = self.rng.random() < self.faults["garbage"]
            return (
                {"garbage"}
                if hit and message.metadata.message_type == self.only
                else set()
            )
        return strikes

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
                with time_limit(), measured(tally, allowed(*arguments)):
                    result = look(*arguments)
                if isinstance(result, Reason):  # an envelope that is no answer
                    raise ValueError(result)
            except EndlessError:
                tally.problem(f"more than {SECONDS} s for an answer")
                raise ValueError("endless") from None
            except Exception as error:
                tally.refuse(str(error) or type(error).__name__)
                # HyFDCA: the answer says which nonce it is to be asked with instead
                again = "the wave begins again" in str(error)
                if not again and fingerprint(strategy) != before:
                    tally.problem("a dropped answer has changed the strategy's state")
                if isinstance(arguments[0], Message):
                    return Reason(str(error))
                raise
            return result

        return call

    def of_answer(answer: Any) -> int:
        sizes = sum(array.nbytes for array in answer.arrays) + answer.numbers.nbytes
        return int(max(sizes, model))

    strategy.conversation._open = guarded(
        strategy.conversation._open, lambda reply, *_: max(message_bytes(reply), model)
    )
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


_SETUP = (
    *("query.hello", "train.align", "train.agree", "train.labels", "train.ready"),
)


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
                grid.faults = dict.fromkeys(FAULTS, 0.0)

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
    except (SettingsError, TimeoutError, RuntimeError) as error:
        # nobody can tell whose word of a hidden sum is wrong: the run ends, as it must
        if not only and not isinstance(error, WrongReportError):
            tally.problem(f"{case.name}: the run ended: {error!r}")
        failed = True
    except Exception as error:
        tally.problem(f"{case.name}: the server raised {error!r}")
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
        tally.problem(f"{case.name}: the model is not finite")


# ---------------------------------------------------------------------------------- all


#: Whose messages other methods' are mixed with.
STRANGERS = ("fedfw plain", "fedgia gram", "hyfdca bundle")


def fuzz(names: Sequence[str], messages: int, seed: int) -> Iterator[Tally]:
    """Mutated messages for clients and server of some cases, half and half.

    ``messages`` is for all cases together; those of a case do not depend on which
    others are named.
    """
    strangers = [
        content
        for name in STRANGERS
        for exchange in record(CASES[name])[::8]
        for content in (
            exchange.request.content,
            exchange.reply.content if exchange.reply else RecordDict(),
        )
    ]
    each = -(-messages // (2 * len(CASES)))
    tracemalloc.start()
    try:
        for name in names:
            case = CASES[name]
            rng = np.random.default_rng([seed, *name.encode()])
            exchanges = record(case)
            own = [exchange.request.content for exchange in exchanges[::5]]
            pool = [*strangers, *own]
            tally = Tally(f"{name}, clients")
            fuzz_client(case, exchanges, pool, each, rng, tally)
            yield tally
            tally = Tally(f"{name}, server")
            fuzz_server(case, pool, each, rng, tally)
            yield tally
    finally:
        tracemalloc.stop()


#: What one ciphertext may add to the process, in bytes.
CIPHERTEXT_BYTES = 32_000_000


def fuzz_ciphertexts(backend: str, count: int, seed: int) -> Tally:
    """Mutated ciphertexts; those of BFV reach TenSEAL and SEAL, which are no Python.

    The server adds them, a client decrypts them; a crash ends this process.
    """
    from fedtrellis.encryption import EncryptionError, backend_class
    from fedtrellis.encryption.cipher import split_blob

    rng, tally = np.random.default_rng(seed), Tally(backend)
    key = backend_class(backend).generate()
    server, label, values = key.adder(), ("label", 1), np.arange(5.0)
    fresh = [key.encrypt(values, label, sender, 4)[0] for sender in "ab"]
    whole = [*fresh, *server.add([[blob] for blob in fresh])]
    other = key.encrypt(values, label, "c", 4)
    for _ in range(count):
        blob, kind = choose(rng, whole), rng.random()
        head = len(blob) - len(split_blob(blob)[1])
        payload = bytearray(blob[head:])
        if kind < 0.4:
            # within the headers, SEAL's, the compression's and what they lead to
            payload[int(rng.integers(min(120, len(payload))))] ^= 1 << rng.integers(8)
        else:
            payload = bytearray(mutate_bytes(rng, bytes(payload)))
            # a length that fits what was cut off or put in
            payload[8:16] = len(payload).to_bytes(8, "little")
        mutated = mutate_bytes(rng, blob) if kind > 0.8 else blob[:head] + payload
        tally.messages += 1
        before = _peak_resident()
        for look in (
            partial(server.add, [other, [mutated]]),
            partial(key.decrypt, [mutated], label, 5, None),
        ):
            try:
                look()
            except EncryptionError as error:
                tally.refuse(f"{type(error).__name__}: {error}")
        grown = _peak_resident() - before
        tally.peak = max(tally.peak, grown / CIPHERTEXT_BYTES)
        if grown > CIPHERTEXT_BYTES:
            tally.problem(f"{grown} bytes for a ciphertext of {len(mutated)}")
    return tally


def _peak_resident() -> int:
    """The most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main() -> int:
    """Print the table; 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ciphertexts", type=int, default=0, help="mutated ones, of each cipher"
    )
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    failed = False
    print(HEADER, flush=True)
    tallies: Iterable[Tally] = fuzz(
        arguments.names or list(CASES), arguments.messages, arguments.seed
    )
    if arguments.ciphertexts:
        tallies = (
            fuzz_ciphertexts(backend, arguments.ciphertexts, arguments.seed)
            for backend in ("stream", "tenseal-bfv")
        )
    for tally in tallies:
        print(tally.row(), flush=True)
        for problem, count in Counter(tally.problems).items():
            failed = True
            print(f"{tally.name}: {problem} ({count} times)", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
