"""What encryption costs: the stream cipher, BFV and Paillier, side by side.

Run it by ``python -m benchmarks.encryption``.

Paillier is python-paillier (``phe``), which is under the GPL: it is measured where it
is installed, and nothing but this file uses it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from fedtrellis.encryption import backend_class, load_evaluation
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.symmetric import Label
from fedtrellis.wire.arrays import FloatArray

from .report import Aim, Comparison, Row, Spread, machine, ratios
from .runs import quiet

__all__ = ["FULL", "QUICK", "Case", "compare"]

_AIM = 10.0
_PAPER_MS = 18.882  # arXiv 2210.08106
_TERMS = 1000
_KEY_BITS = 2048
_SLOT_BITS = 58  # of a packed value: as much headroom as BFV's plain modulus
_STREAM = "stream cipher (stream)"
_BFV = "BFV (tenseal-bfv)"
_MESSAGES = 100
_UNPACKED = f"Paillier-{_KEY_BITS}, a value a ciphertext"
_PACKED = f"Paillier-{_KEY_BITS}, packed"


@dataclass(frozen=True)
class Case:
    """How much is measured.

    Parameters
    ----------
    repetitions : int
        All ciphers in turn, so many times.
    values, paillier_values, packed_values : int
        Length of the vectors.
    shares : int
        How many are added.
    """

    repetitions: int
    values: int
    paillier_values: int
    packed_values: int
    shares: int


QUICK = Case(2, 4095 * 8, 3, 35 * 2, 5)
FULL = Case(5, 4095 * 50, 20, 35 * 20, 10)


@dataclass(frozen=True)
class Micros(Spread):
    """Microseconds, of which a value takes anything from 0.01 to 100 000."""

    unit: str = "µs"

    def _format(self, value: float) -> str:
        return f"{value:.3g} µs" if value < 1000 else f"{value:,.0f} µs"


class _Scheme(ABC):
    """One way to encrypt, add and decrypt a vector."""

    name: str
    values: int

    @abstractmethod
    def encrypt(self, values: FloatArray) -> list[bytes]:
        """Ciphertexts of a share."""

    @abstractmethod
    def add(self, shares: Sequence[list[bytes]]) -> list[bytes]:
        """Ciphertexts of the sum."""

    @abstractmethod
    def decrypt(self, total: list[bytes]) -> FloatArray:
        """The sum."""


class _Ours(_Scheme):
    """A backend of ours, with a label of its own for each sum, as in a run."""

    def __init__(self, name: str, backend: str, case: Case) -> None:
        self.name = name
        self.values = case.values
        self._senders = [f"client {i}" for i in range(case.shares)]
        self._key = backend_class(backend).generate()
        self._server = load_evaluation(self._key.evaluation_bytes())
        self._round = self._shares = 0

    def _label(self) -> Label:
        return ("scores", "benchmark", self._round)

    def encrypt(self, values: FloatArray) -> list[bytes]:
        sender = self._senders[self._shares % len(self._senders)]
        self._shares += 1
        return self._key.encrypt(values, self._label(), sender, _TERMS)

    def add(self, shares: Sequence[list[bytes]]) -> list[bytes]:
        return self._server.add(shares)

    def decrypt(self, total: list[bytes]) -> FloatArray:
        label = self._label()
        self._round, self._shares = self._round + 1, 0
        return self._key.decrypt(total, label, self.values, self._senders)


class _Paillier(_Scheme):
    """Fixed point with BFV's headroom; several values in a plaintext, 58 bits each."""

    def __init__(self, phe: Any, values: int, packed: bool) -> None:
        self.name = _PACKED if packed else _UNPACKED
        self.values = values
        self._public, self._private = phe.paillier.generate_paillier_keypair(
            n_length=_KEY_BITS
        )
        self._coding = Coding(word=_SLOT_BITS)
        # one bit less than n, and half of the rest is for negative sums
        self._slots = (_KEY_BITS - 2) // _SLOT_BITS if packed else 1
        self._bytes = _KEY_BITS // 4

    def encrypt(self, values: FloatArray) -> list[bytes]:
        numbers = self._coding.integers(values, _TERMS).tolist()
        blobs = []
        for start in range(0, len(numbers), self._slots):
            plain = sum(
                number << (_SLOT_BITS * i)
                for i, number in enumerate(numbers[start : start + self._slots])
            )
            cipher = self._public.raw_encrypt(plain % self._public.n)
            blobs.append(cipher.to_bytes(self._bytes, "big"))
        return blobs

    def add(self, shares: Sequence[list[bytes]]) -> list[bytes]:
        totals = []
        for blobs in zip(*shares, strict=True):
            total = 1
            for blob in blobs:
                total = total * int.from_bytes(blob, "big") % self._public.nsquare
            totals.append(total.to_bytes(self._bytes, "big"))
        return totals

    def decrypt(self, total: list[bytes]) -> FloatArray:
        numbers: list[int] = []
        half, mask = 1 << (_SLOT_BITS - 1), (1 << _SLOT_BITS) - 1
        for blob in total:
            plain = self._private.raw_decrypt(int.from_bytes(blob, "big"))
            if plain > self._public.n // 2:
                plain -= self._public.n
            for _ in range(self._slots):
                low = ((plain + half) & mask) - half
                numbers.append(low)
                plain = (plain - low) >> _SLOT_BITS
        values: FloatArray = np.array(numbers[: self.values], float)
        return values * 2.0**-self._coding.bits


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    # of this process, which has one thread: others on the machine count for less
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def _measure(scheme: _Scheme, shares: int) -> tuple[list[float], tuple[float, float]]:
    """Microseconds to encrypt, add, decrypt, encrypt one value alone; bytes of both."""
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(scheme.values) for _ in range(shares)]
    encrypting, blobs = _timed(lambda: [scheme.encrypt(values) for values in data])
    adding, total = _timed(lambda: scheme.add(blobs))
    decrypting, found = _timed(lambda: scheme.decrypt(total))
    if np.abs(found - sum(data)).max() > shares * 2.0**-40:
        raise RuntimeError(f"{scheme.name} has not computed the sum")
    messages = _MESSAGES if scheme.values > 1000 else 1
    alone, _ = _timed(lambda: [scheme.encrypt(data[0][:1]) for _ in range(messages)])
    count = scheme.values
    seconds = [
        encrypting / count / shares,
        adding / count / shares,
        decrypting / count,
        alone / messages,
    ]
    sizes = (sum(map(len, blobs[0])) / count, sum(map(len, total)) / count)
    return [1e6 * value for value in seconds], sizes


def _schemes(case: Case, result: Comparison) -> list[_Scheme]:
    schemes: list[_Scheme] = [
        _Ours(_STREAM, "stream", case),
        _Ours(_BFV, "tenseal-bfv", case),
    ]
    try:
        phe = importlib.import_module("phe")
    except ImportError:
        result.about += " Paillier was left out: phe is not installed."
        return schemes
    schemes.append(_Paillier(phe, case.paillier_values, False))
    schemes.append(_Paillier(phe, case.packed_values, True))
    gmpy2 = phe.util.HAVE_GMP
    result.about += f" phe computes {'with' if gmpy2 else 'without'} gmpy2 here."
    return schemes


def compare(case: Case) -> Comparison:
    """One row a cipher; the aim is on the stream cipher's encryption against BFV's."""
    result = Comparison(
        "encryption",
        f"Encryption, {case.shares} shares added",
        "Time of one core; bytes in and out, with quantisation (ours). "
        f"Encryption and addition are for each share, with room for {_TERMS} terms of "
        "fixed point with 40 fractional bits. arXiv 2210.08106 has "
        f"{_PAPER_MS} ms for Paillier, on its own machine.",
    )
    schemes = _schemes(case, result)
    times: dict[str, list[list[float]]] = {scheme.name: [] for scheme in schemes}
    sizes: dict[str, tuple[float, float]] = {}
    for _ in range(case.repetitions):
        for scheme in schemes:
            seconds, sizes[scheme.name] = _measure(scheme, case.shares)
            times[scheme.name].append(seconds)
    spreads = {
        name: [Micros(tuple(column)) for column in zip(*rows, strict=True)]
        for name, rows in times.items()
    }
    for scheme in schemes:
        encrypt, add, decrypt, alone = spreads[scheme.name]
        row: Row = {
            "cipher": scheme.name,
            "values": scheme.values,
            "encrypt a value": encrypt,
            "add a value": add,
            "decrypt a value": decrypt,
            "encrypt one alone": alone,
            "bytes a value up": f"{sizes[scheme.name][0]:.1f}",
            "of the sum": f"{sizes[scheme.name][1]:.1f}",
            "2210.08106": f"{_PAPER_MS} ms" if scheme.name == _UNPACKED else "",
        }
        row["times BFV's speed"] = ratios(spreads[_BFV][0], encrypt)
        result.rows.append(row)
    ratio = ratios(spreads[_BFV][0], spreads[_STREAM][0]).median
    result.aims.append(
        Aim(
            f"the stream cipher encrypts at least {_AIM:.0f} times as fast as BFV",
            f"{ratio:.0f} times",
            ratio >= _AIM,
        )
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encryption", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes")
    options = parser.parse_args(arguments)
    quiet()
    console = Console(highlight=False)
    if not console.is_terminal:  # a file has room
        console.width = 180
    facts = machine()
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    compare(QUICK if options.quick else FULL).show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
