"""A signal interrupts at once, or as soon as what belongs together is done."""

# ruff: noqa: PT012 (what matters is where in a block the exception comes)

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from fedtrellis.signals import (
    Interrupted,
    check_signals,
    deferred,
    signals_interrupt,
    window,
)

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def as_in_a_shell() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_interrupts_and_the_handlers_come_back(number: int) -> None:
    before = [signal.getsignal(n) for n in NUMBERS]
    with pytest.raises(Interrupted) as caught, signals_interrupt():
        signal.raise_signal(number)
    assert caught.value.number == number
    assert [signal.getsignal(n) for n in NUMBERS] == before
    check_signals()  # it is forgotten


def test_what_belongs_together_is_finished_first() -> None:
    done = []
    with pytest.raises(Interrupted), signals_interrupt(), deferred():
        with deferred():
            signal.raise_signal(signal.SIGTERM)
            with window():  # lets it through the inner one only
                done.append("inner")
        done.append("outer")
        with window():
            done.append("never")
    assert done == ["inner", "outer"]


def test_a_programs_own_handler_is_given_the_signal_afterwards() -> None:
    """As Flower's, which tells the SuperLink and exits."""
    heard = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, handler)
    with pytest.raises(SystemExit), signals_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_interrupt():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
