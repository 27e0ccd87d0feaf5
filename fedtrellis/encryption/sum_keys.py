"""What ties a sum to its shares: masks from nonces, and coefficients of checksums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from fedtrellis.encryption.checksum import CHECKS, checksums
from fedtrellis.encryption.fixed_point import IntArray
from fedtrellis.encryption.keystream import Keystream
from fedtrellis.encryption.labels import KEY_BYTES, Label, encode_label, expand

__all__ = ["SumKeys"]


class SumKeys(NamedTuple):
    """Keys that all shares of one sum have in common, and nothing else has.

    Parameters
    ----------
    modulus : int
        p.
    coefficients, shares : bytes
        For the checksums, and for what belongs to one share.
    """

    modulus: int
    coefficients: bytes
    shares: bytes

    @classmethod
    def of(
        cls,
        secret: bytes,
        modulus: int,
        label: Label,
        block: tuple[int, int],
        size: int,
        terms: int,
    ) -> Self:
        """Derive them for a label, a block of a vector, its size and the terms."""
        use = ("sum", encode_label(label), *block, size, terms)
        both = expand(secret, *use, size=2 * KEY_BYTES)
        return cls(modulus, both[:KEY_BYTES], both[KEY_BYTES:])

    def share(self, sender: str, nonce: bytes) -> tuple[Keystream, list[int]]:
        """Return a share's keystream, and the masks m_a that it begins with."""
        stream = Keystream(expand(self.shares, sender, nonce))
        return stream, stream.residues(CHECKS, self.modulus)

    def checks(self, integers: IntArray, masks: Iterable[int]) -> list[int]:
        """Return t_a = Σ_j c_aj X_j + m_a (mod p), a = 1, 2.

        Parameters
        ----------
        integers : ndarray of int64
            X, of a share or a sum.
        masks : iterable of int
            m_1 and m_2, the sums of the shares' masks.
        """
        sums = checksums(integers, self.coefficients, self.modulus)
        return [
            (total + mask) % self.modulus
            for total, mask in zip(sums, masks, strict=True)
        ]
