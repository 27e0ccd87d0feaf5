"""Random generators that depend on what they are for, and on nothing else.

A run must not change with the order in which nodes answer, with the engine it runs on,
or with what else was drawn before. So no generator is handed around: each use derives
its own from the run's seed and its purpose, for example::

    generator(seed, "mini-batch", client_id, server_round)
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *keys: str | int) -> np.random.Generator:
    """Return the PCG64 generator of one purpose of a run with this seed.

    ``purpose`` is what the numbers are for, such as ``"participation"``, and ``keys``
    tell one use from another: client identity, round, ... Equal arguments give equal
    streams, on every machine.
    """
    # repr keeps 1 and "1" apart, and the separator keeps ("ab", "c") from ("a", "bc")
    text = "\x1f".join(repr(part) for part in (int(seed), purpose, *keys))
    digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
    words = np.frombuffer(digest, dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
