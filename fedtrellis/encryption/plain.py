"""The backend ``none``: the same arithmetic without encryption, to find faults with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from logging import WARNING
from typing import ClassVar

import numpy as np

from fedtrellis.encryption.fixed_point import FIELD_MODULUS
from fedtrellis.encryption.key_format import KeyFile
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.stream import StreamCipher, Words
from fedtrellis.wire.flower_internals import log

__all__ = ["PlainCipher"]


@cache
def _warn() -> None:
    log(
        WARNING,
        "NO ENCRYPTION: the encryption backend is 'none', everybody on the way reads "
        "every value; use it to find faults, never with data that matters",
    )


class PlainCipher(StreamCipher):
    """The stream cipher with r = 0: integers in the clear, 8 bytes each.

    Fixed point, headers and checksums are those of real encryption, so what works here
    works there.
    """

    name: ClassVar[str] = "none"
    parameters: ClassVar[str] = f"NO ENCRYPTION, checksums modulo {FIELD_MODULUS}"

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        _warn()

    def _pads(self, stream: Keystream, count: int) -> Iterator[tuple[slice, Words]]:
        yield slice(0, count), np.zeros(count, dtype="<u8")
