"""SIGINT, SIGTERM and SIGHUP, made into an exception that comes at a good moment.

A signal arrives anywhere, also in the middle of a change that belongs together. Inside
:func:`signals_interrupt` it raises :class:`Interrupted`; inside :func:`deferred` it
waits for the next :func:`check_signals`, the next :func:`window`, or the end.

Python delivers signals to the main thread. That of a Flower simulation belongs to
Flower, which runs the ServerApp in another and, asked to end, calls exit handlers: one
of ours lets that thread find the signal where it looks (:func:`pause`, too), and waits
for it. In threads beside the run's all of this does nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

# Seconds that Flower's exit waits for the run's thread: the record has its end then.
_PATIENCE = 20.0
# Seconds between two looks of a thread that waits.
_LOOK = 0.25

# Windows has no SIGHUP
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
]


class Interrupted(KeyboardInterrupt):
    """A signal, of this number, asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Signals:
    """What the run's thread knows: there is one set of handlers in a process."""

    def __init__(self) -> None:
        self.thread = threading.main_thread()
        self.ended = threading.Event()  # a run in another thread
        self.before: dict[int, Any] = {}  # the handlers that ours stand in for
        self.armed = False  # whether ours have been set, and not yet taken back
        self.came: int | None = None
        self.raised = False  # whether Interrupted was raised for it
        self.depth = 0  # how many deferred() are open

    def set(self) -> None:
        self.armed, self.came, self.raised = True, None, False
        for number in _SIGNALS:
            before = signal.getsignal(number)
            # nohup means it; and None is a handler that Python cannot put back
            ignored = before is signal.SIG_IGN and number != signal.SIGINT
            if not ignored and before is not None:
                self.before[number] = signal.signal(number, self._handle)

    def put_back(self) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # a second one finds what was there before us: it ends the process at once
        self.put_back()
        if self.before.get(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.came = number
        if not self.depth:
            self.check()

    def end_thread(self) -> None:
        """Let the run in another thread end, and wait for that: in the main thread."""
        if self.thread is not threading.main_thread():
            self.came = int(signal.SIGTERM)
            self.ended.wait(_PATIENCE)

    def check(self) -> None:
        if self.came is not None:
            self.raised = True
            raise Interrupted(self.came)


_signals = _Signals()


def _in_thread() -> bool:
    return threading.current_thread() is _signals.thread


@contextmanager
def signals_interrupt(at_exit: Callable[..., None] | None = None) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise :class:`Interrupted`; the outermost counts.

    Only the first signal does: a second one meets the handlers from before. They are
    back at the end, and if one of them is a program's own (Flower's, which informs the
    SuperLink), it is then given the signal too. What the caller has ignored, as nohup
    does SIGHUP, stays ignored; but for SIGINT, which shells switch off for what runs in
    the background. Outside of the main thread ``at_exit``, which is Flower's, takes a
    handler of its exit; without it nothing is done.
    """
    if _signals.armed:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        with _in_another_thread(at_exit) if at_exit else nullcontext():
            yield
        return
    _signals.set()
    try:
        yield
    finally:
        _signals.put_back()
        before, came = _signals.before, _signals.came
        _signals.before, _signals.armed, _signals.came = {}, False, None
        if came is not None:
            handler = before[came]
            if callable(handler) and handler is not signal.default_int_handler:
                signal.raise_signal(came)


@contextmanager
def _in_another_thread(at_exit: Callable[..., None]) -> Iterator[None]:
    """A run beside Flower's main thread, whose exit handlers speak of signals."""
    _signals.thread, _signals.ended = threading.current_thread(), threading.Event()
    _signals.armed, _signals.came, _signals.raised = True, None, False
    at_exit(_signals.end_thread)
    try:
        yield
    finally:
        _signals.ended.set()
        _signals.thread = threading.main_thread()
        _signals.armed, _signals.came = False, None


@contextmanager
def deferred() -> Iterator[None]:
    """Let what belongs together finish first.

    A signal raises at the next :func:`check_signals` or :func:`window`, or where the
    outermost of these ends, if it was not raised before.
    """
    if not _in_thread():
        yield
        return
    _signals.depth += 1
    try:
        yield
    finally:
        _signals.depth -= 1
    # where it was raised already, somebody is cleaning up
    if not _signals.depth and not _signals.raised:
        _signals.check()


@contextmanager
def window() -> Iterator[None]:
    """Let a signal through one :func:`deferred`: here nothing is half done."""
    if not _in_thread() or not _signals.depth:
        yield
        return
    _signals.depth -= 1
    try:
        if not _signals.depth:
            _signals.check()
        yield
    finally:
        _signals.depth += 1


def check_signals() -> None:
    """Raise :class:`Interrupted` if a signal has come."""
    if _in_thread():
        _signals.check()


def pause(seconds: float) -> None:
    """Sleep; :class:`Interrupted` where a signal has come and is not deferred."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0.0:
        time.sleep(min(left, _LOOK))
        if _in_thread() and not _signals.depth:
            _signals.check()
