"""Mutated agreements, sealed keys, points and nodes' files for the nodes of HyFDCA.

``python -m tests.strategies.fuzz_formats`` gives 10 000 of each and prints a table;
``--messages`` and ``--seed`` make it another.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clients.hyfdca.preparation import _points
from fedtrellis.dual.alignment import Agreement, align
from fedtrellis.encryption import EncryptionError
from fedtrellis.encryption.block_sum import Introduction
from fedtrellis.encryption.intersection import blind, evaluate, scalar_from
from fedtrellis.encryption.node_file import NodeFile, private_folder
from fedtrellis.encryption.symmetric import open_sealed, seal
from tests.strategies.fuzz_runs import (
    HEADER,
    SECONDS,
    EndlessError,
    Tally,
    measured,
    time_limit,
)
from tests.strategies.mutations import mutate_bytes


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


def fuzz_formats(count: int, seed: int, folder: Path) -> Iterator[Tally]:
    """So many mutated agreements, sealed keys, points and nodes' files.

    Who reads them refuses them with a reason, or they are what they were: points that
    lie on the curve, and another agreement, are whole, and nobody signed them.
    """
    unsigned = ("agreement", "points")
    for name, whole, read in formats(folder):
        rng, tally = np.random.default_rng([seed, *name.encode()]), Tally(name)
        read(whole)
        for _ in range(count):
            data = mutate_bytes(rng, whole)
            tally.messages += 1
            try:
                with time_limit(), measured(tally, len(data)):
                    read(data)
            except EndlessError:
                tally.problem(f"more than {SECONDS} s")
            except (ValueError, EncryptionError) as error:
                tally.refuse(f"{type(error).__name__}: {error}")
            except Exception as error:
                tally.problem(f"{name}: {error!r}")
            else:
                tally.handled += 1
                if data != whole and name not in unsigned:
                    tally.problem("something that was changed was taken")
        yield tally


def main() -> int:
    """Print the table; 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    print(HEADER, flush=True)
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "ledgers"
        for tally in fuzz_formats(arguments.messages, arguments.seed, where):
            print(tally.row(), flush=True)
            for problem in sorted(set(tally.problems)):
                failed = True
                print(f"{tally.name}: {problem}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
