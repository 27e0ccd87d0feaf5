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
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedtrellis import Callback, LocalGrid, RoundRecord, RoundStrategy
from fedtrellis.encryption import Cipher
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.node_secrets import NodeSecrets, run_ledgers
from fedtrellis.server.conversation import refusal_in
from fedtrellis.settings import SettingsError
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.flower_internals import message_bytes
from fedtrellis.wire.local_grid import FAULTS
from strategies.hyfdca.mixtures import WrongReportError
from tests.strategies.mutations import choose, mutate_bytes, mutate_content
from tests.strategies.soak_cases import CASES, Case, context_of
from tests.strategies.soak_runs import _walk

#: What one message may make a client or the server allocate at a time: so many times
#: the largest of the message, the model and the client's state, and this much besides.
TIMES, BESIDES = 16, 2_000_000
#: CPU seconds after which a message counts as endless.
SECONDS = 10.0

Rng = np.random.Generator


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
    """What became of the mutated messages."""

    name: str
    messages: int = 0
    handled: int = 0
    refused: int = 0
    peak: float = 0.0  # the largest allocation, as a fraction of what is allowed
    problems: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def refuse(self, reason: str) -> None:
        """Count a refusal, which has to say something."""
        self.refused += 1
        self.reasons[reason] += 1
        if not re.search(r"[a-zA-Z]{3}", reason.rpartition("Error: ")[2]):
            self.problem(f"a refusal without a reason: {reason!r}")

    def problem(self, what: str) -> None:
        """Note down what must not be."""
        self.problems.append(what)

    def row(self) -> str:
        """A row of the table."""
        return (
            f"| {self.name} | {self.messages} | {self.refused} | {self.handled} | "
            f"{self.peak:.2f} | {len(self.problems)} |"
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


class _Wipes(Callback):
    """A node loses its state after the second round, so that it is restored."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round in (2, 4):
            context_of(self.grid, strategy.clients[0]).state = RecordDict()
            if record.round == 4:
                # both holders of the samples: what they had is made anew
                context_of(self.grid, strategy.clients[1]).state = RecordDict()


def record(case: Case, rounds: int = 6) -> list[Exchange]:
    """All messages of a short run, its preparation and its evaluation included."""
    grid = Recorder(case.app, case.nodes, seed=1, reply_loss=0.1)
    options = {"backup_every": 2} if case.method == "hyfdca" else {}
    strategy = case.strategy(
        callbacks=[_Wipes(grid)],
        client_evaluate_every=2 if case.evaluates else 0,
        **options,
    )
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
        number = int(exchange.name)
        context = Context(
            run_id=1,
            node_id=exchange.request.metadata.dst_node_id,
            node_config={"partition-id": number, "num-partitions": case.nodes},
            state=RecordDict(dict(exchange.state)),
            run_config={},
        )
        _give(case, message, context, exchange, model, tally)


def _give(
    case: Case,
    message: Message,
    context: Context,
    exchange: Exchange,
    model: int,
    tally: Tally,
) -> None:
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
        else:
            tally.handled += 1
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
    """A grid that mutates replies on their way, and knows which."""

    rng: Rng
    others: Sequence[RecordDict] = ()
    only: str = ""

    def _strikes(self, message: Message) -> set[str]:
        strikes = super()._strikes(message)
        kind = message.metadata.message_type
        if self.only:
            rate = self.faults["garbage"]
            hit = kind == self.only and self.rng.random() < rate
            return {"garbage"} if hit else set()
        return strikes

    def _spoil(self, reply: Message, message: Message) -> Message:
        tampered = self.__dict__.setdefault("tampered", set())
        tampered.add(message.metadata.message_id)
        mine = [reply.content, *self.__dict__.setdefault("seen", [])]
        content = mutate_content(self.rng, reply.content, [*self.others, *mine])
        if len(self.__dict__["seen"]) < 200:
            self.__dict__["seen"].append(reply.content)
        return Message(content, reply_to=message)


def _watch(strategy: Any, grid: Tampering, tally: Tally, model: int) -> None:
    """Check that what is dropped changes nothing, and that looking costs little."""

    opened: set[str] = set()  # clients whose mutated answers passed the first checks

    def guarded(look: Callable[..., Any], allowed: Callable[..., int]) -> Any:
        def call(*arguments: Any) -> Any:
            first = arguments[0]
            envelope = isinstance(first, Message)
            client = arguments[1] if envelope else first.client
            mutated = client in opened
            if envelope:
                reply_to = first.metadata.reply_to_message_id
                mutated = reply_to in grid.__dict__.get("tampered", ())
                opened.discard(client)
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
                if mutated:
                    tally.handled -= not envelope
                    tally.refuse(str(error) or type(error).__name__)
                # HyFDCA: the answer says which nonce it is to be asked with instead
                again = "the wave begins again" in str(error)
                if not again and fingerprint(strategy) != before:
                    tally.problem("a dropped answer has changed the strategy's state")
                if envelope:
                    return Reason(str(error))
                raise
            if mutated and envelope:
                # unless the method's own check finds something
                tally.handled += 1
                opened.add(client)
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


def _server_errors(case: Case, strategy: Any) -> float:
    """How far the model is from what the server's own mirrors of the clients say.

    Relative to the largest number that the server has: values may be enormous.
    """
    errors = 0.0
    model = strategy.broadcast.model
    expected: Any = model
    if case.method == "fedfw":
        names, model = strategy.clients, strategy._result_point()
        expected = np.mean([strategy._client_iterate(n) for n in names], axis=0)
    elif case.method == "fedgia":
        names = strategy.clients
        expected = np.mean([strategy.client_point(n) for n in names], axis=0)
    elif case.method == "feddr":
        points = [strategy._reflections[n] for n in strategy.clients]
        expected = strategy.domain.project(np.mean(points, axis=0))
    elif "rfl" in case.method:
        corrections = [strategy.client_correction(n) for n in strategy.clients]
        total = np.sum(corrections, axis=0)
        model, expected = total, np.zeros_like(total)
    elif case.method == "hyfdca":
        model = strategy.steps.w
        if strategy.safe:
            expected = strategy.steps.bundle.w
        else:
            expected = np.zeros_like(model)
            for name, own in strategy.steps.contributions.items():
                expected[strategy.alignment.columns[name]] += own
    largest = max(
        float(np.abs(item).max(initial=0.0))
        for item in _walk(strategy, frozenset({"history", "callbacks", "grid"}))
        if isinstance(item, np.ndarray) and item.dtype.kind == "f"
    )
    errors = float(np.abs(model - expected).max(initial=0.0)) / (1.0 + largest)
    return errors if np.isfinite(model).all() else np.inf


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
    setup = [p for p in phases if p in _SETUP]
    start = tally.messages
    turn = 0
    while tally.messages < start + count:
        # one run in three is tampered with before round 1 only
        only = choose(rng, setup) if turn % 3 == 2 else ""
        turn += 1
        _one_run(case, others, rng, tally, rounds, only)


_SETUP = (
    *("query.hello", "train.align", "train.agree", "train.labels", "train.ready"),
)


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
            _watch(strategy, grid, tally, case.start.nbytes)
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
    failed = ""
    try:
        strategy.start(grid, ArrayRecord([case.start]), num_rounds=rounds)
    except (SettingsError, TimeoutError, RuntimeError) as error:
        # nobody can tell whose word of a hidden sum is wrong: the run ends, as it must
        if not only and not isinstance(error, WrongReportError):
            tally.problem(f"{case.name}: the run ended: {error!r}")
        failed = f"{type(error).__name__}: {error}"
    except Exception as error:
        tally.problem(f"{case.name}: the server raised {error!r}")
        failed = repr(error)
    tally.messages += len(grid.__dict__.get("tampered", ()))
    if only == "query.hello":
        # the answers to the introduction are looked at before the strategy sees any
        rejected = [why for r in strategy.history for _, why in r.rejected]
        rejected += [why for _, why in strategy.conversation.traffic.rejected]
        for why in rejected:
            if "introduction" in why:
                tally.refuse(why)
        tally.handled = tally.messages - tally.refused
    if failed:
        tally.reasons[failed] += 1
        # what had not been looked at when the run ended
        tally.handled = tally.messages - tally.refused
    if tally.handled + tally.refused != tally.messages:
        tally.problem("some messages were neither handled nor refused")
    if not failed:
        violation = _server_errors(case, strategy)
        if not violation < case.tolerance:
            tally.problem(f"{case.name}: an invariant is violated by {violation:.2g}")


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


def bombs(payload: bytes) -> Iterator[bytes]:
    """Ciphertexts of some kilobytes that stand for hundreds of megabytes.

    Parameters
    ----------
    payload : bytes
        A real one, in SEAL's format.
    """
    zeros = zlib.compressobj(9)
    packed = b"".join(zeros.compress(bytes(2**20)) for _ in range(120))
    # zstd: blocks that say "this byte, 128 KiB times", the last of them by itself
    block, size = b"", 2**17
    for last in (0, 1):
        block += (last | 1 << 1 | size << 3).to_bytes(3, "little") + b"\0"
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + block[:4] * 2_000 + block[4:]
    for mode, body in (
        (1, packed + zeros.flush()),
        (2, frame),
        (2, payload[16:] + frame),  # behind a stream that is right
    ):
        size = 16 + len(body)
        yield (
            payload[:5]
            + bytes([mode])
            + payload[6:8]
            + size.to_bytes(8, "little")
            + body
        )


def fuzz_ciphertexts(backend: str, count: int, seed: int) -> Tally:
    """Mutated ciphertexts; those of BFV reach TenSEAL and SEAL, which are no Python.

    The server adds them, a client decrypts them; a crash ends this process.
    """
    from fedtrellis.encryption import EncryptionError, backend_class
    from fedtrellis.encryption.cipher import split_blob

    rng = np.random.default_rng(seed)
    key = backend_class(backend).generate()
    server, label, values = key.adder(), ("label", 1), np.arange(5.0)
    fresh = [key.encrypt(values, label, sender, 4)[0] for sender in "ab"]
    whole = [*fresh, *server.add([[blob] for blob in fresh])]
    other = key.encrypt(values, label, "c", 4)
    headers = {blob: len(blob) - len(split_blob(blob)[1]) for blob in whole}
    tally = Tally(backend)
    mutated = []
    if backend == "tenseal-bfv":
        head = headers[fresh[0]]
        mutated = [fresh[0][:head] + bomb for bomb in bombs(fresh[0][head:])]
    while len(mutated) < count:
        blob = choose(rng, whole)
        head, kind = headers[blob], rng.random()
        payload = bytearray(blob[head:])
        if kind < 0.3:
            mutated.append(mutate_bytes(rng, blob))
            continue
        if kind < 0.5:
            # within the headers, SEAL's, the compression's and what they lead to
            payload[int(rng.integers(min(120, len(payload))))] ^= 1 << rng.integers(8)
        else:
            if kind > 0.75 and backend == "tenseal-bfv":
                payload = _mutated_inside(rng, bytes(payload))
            else:
                payload = bytearray(mutate_bytes(rng, bytes(payload)))
            # a length that fits what was cut off or put in
            payload[8:16] = len(payload).to_bytes(8, "little")
        mutated.append(blob[:head] + payload)
    for blob in mutated:
        tally.messages += 1
        before = _peak_resident()
        for look in (
            partial(server.add, [other, [blob]]),
            partial(key.decrypt, [blob], label, 5, None),
        ):
            try:
                look()
            except EncryptionError as error:
                tally.refuse(f"{type(error).__name__}: {error}")
                continue
            tally.handled += 1
        grown = _peak_resident() - before
        tally.peak = max(tally.peak, grown / CIPHERTEXT_BYTES)
        if grown > CIPHERTEXT_BYTES:
            tally.problem(f"{grown} bytes for a ciphertext of {len(blob)}")
    return tally


def _mutated_inside(rng: np.random.Generator, payload: bytes) -> bytearray:
    """Damage to what SEAL has compressed, where its inner headers are."""
    from fedtrellis.encryption.bfv import _plain_form

    inside = bytearray(_plain_form(payload))
    place = int(rng.integers(16, 120))
    if rng.random() < 0.5:  # those of the seed are at the end
        place = len(inside) - int(rng.integers(1, 90))
    inside[place] ^= 1 << rng.integers(8)
    return inside


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
    parser.add_argument("--reasons", action="store_true", help="print them all")
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
        if arguments.reasons:
            for reason, count in tally.reasons.most_common():
                print(f"    {count:5d} {reason[:160]!r}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
