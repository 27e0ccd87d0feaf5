"""Pseudonyms of samples that need no common key: private set intersection.

Clients must give a sample the same pseudonym, and a server must not be able to try ids
that it guesses. Under a common key that is an HMAC. Here it is an *oblivious
pseudorandom function* with two evaluators e, two of the clients, each of whom has a
secret s_e; nobody has both. (More evaluators stand more colluders, by the same
functions: all but one of them.) With H from ids to points of P-256 and x(P) the
x-coordinate of a point P,

    client k      r_k secret;  sends x(r_k H(id)) of its ids to both evaluators (blind)
    evaluator e   answers x(s_e r_k H(id))                                   (evaluate)
    client k      x(r_k⁻¹ s_e r_k H(id)) = x(s_e H(id)) of both               (unblind)
                  pseudonym = SHA-256(x(s_1 H(id)), x(s_2 H(id))), cut to 128 bits

That is Diffie-Hellman matching (Meadows, IEEE S&P 1986; Huberman, Franklin and Hogg,
EC 1999) in the form of De Cristofaro and Tsudik (FC 2010), with the hash around it of
2HashDH (Jarecki, Kiayias and Krawczyk, ASIACRYPT 2014; RFC 9497), over the outputs
alone, since clients keep no id beside them. An x-coordinate stands for a point and its
negative, which multiplication does not tell apart. The curve is the library's
(``cryptography``, thus OpenSSL).

* H tries x = SHA-256(domain, id, counter) until the library takes x for a point's: two
  attempts on average, more for some ids than for others, which only the node can time.
* A secret is a number from 1 to n − 1, n the (prime) order of the curve, derived from
  32 secret bytes (:func:`scalar_from`), so that a client derives it again instead of
  storing it. r_k and s_e belong to one run each: with the same ones the points of two
  runs could be linked.
* A point that is not on the curve is refused; there is none of small order on it.

**Who learns what**, with a server that keeps to the protocol. (Nothing binds points to
their owner: another server could have both evaluators answer for ids that it guesses.)

* The server sees points that look random (decisional Diffie-Hellman, H a random
  oracle), then the pseudonyms: how many ids each client has, and which clients share
  how many. Trying an id takes both evaluators' secrets, so a client must check that
  they are two members of its roster.
* An evaluator sees points that look random, and how many; not which of two clients'
  points are of one id.
* The server and *one* evaluator can, as any client with the server can, hand in ids as
  that client's own and see who else has them: as many as it claims to hold samples.
* An evaluator that answers wrongly makes samples not match. It cannot make two ids
  match; both together can exchange ids of one client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.symmetric import encode_items, expand

#: Bytes of a point: its x-coordinate, big-endian.
POINT_BYTES = 32
#: 128 bits, so that two ids never meet by accident.
PSEUDONYM_BYTES = 16

ByteArray = NDArray[np.uint8]

_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# of the two points with an x-coordinate, the one with an even y
_EVEN = b"\x02"
# 2^-128 is the chance that so many numbers are no point's x-coordinate
_ATTEMPTS = 128


def scalar_from(secret: bytes) -> int:
    """A number from 1 to n − 1, of 32 secret bytes derived for this run and purpose."""
    # 16 bytes more than n has: nearly uniform (RFC 9380, section 5.1)
    wide = expand(secret, "intersection", size=48)
    return 1 + int.from_bytes(wide, "big") % (_ORDER - 1)


def _point(x: bytes) -> ec.EllipticCurvePublicKey:
    """Return a point; ValueError where there is none."""
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + x)


def _as_array(points: Sequence[bytes]) -> ByteArray:
    data = np.frombuffer(b"".join(points), dtype=np.uint8)
    return data.reshape(len(points), POINT_BYTES)


def _hashed(domain: str, name: str) -> ec.EllipticCurvePublicKey:
    """H(id)."""
    start = hashlib.sha256(encode_items("point", domain, name))
    for counter in range(_ATTEMPTS):
        attempt = start.copy()
        attempt.update(encode_items(counter))
        try:
            return _point(attempt.digest())
        except ValueError:
            continue
    raise AssertionError("SHA-256 found no point")  # once in 2^128 ids


def blind(ids: Sequence[str], scalar: int, domain: str) -> ByteArray:
    """Return x(r H(id)) of each id, uint8 of shape (n, 32); r is the client's secret.

    Evaluators see the order of the ids, so it should say nothing. ``domain`` is what
    the ids are of, the same on every client: H differs from domain to domain.
    """
    key, method = ec.derive_private_key(scalar, _CURVE), ec.ECDH()
    return _as_array([key.exchange(method, _hashed(domain, str(i))) for i in ids])


def evaluate(points: ByteArray, scalar: int) -> ByteArray:
    """Return x(s P) of each point P, uint8 of shape (n, 32); s is the evaluator's.

    An EncryptionError: a point is not on the curve.
    """
    key, method = ec.derive_private_key(scalar, _CURVE), ec.ECDH()
    products = []
    for index, row in enumerate(points):
        try:
            point = _point(row.tobytes())
        except ValueError:
            raise EncryptionError(
                f"point {index} of {len(points)} is not on the curve P-256"
            ) from None
        products.append(key.exchange(method, point))
    return _as_array(products)


def unblind(points: ByteArray, scalar: int) -> ByteArray:
    """Return x(r⁻¹ P) of each point P of an evaluator's answer, so x(s H(id))."""
    return evaluate(points, pow(scalar, -1, _ORDER))


def pseudonyms(*outputs: ByteArray) -> ByteArray:
    """Return each id's pseudonym, uint8 of shape (n, 16).

    ``outputs`` are what :func:`unblind` made of each evaluator's answer, the evaluators
    in the same order on every client. An EncryptionError: two ids have the same, as an
    id was there twice, or an evaluator answered wrongly.
    """
    purpose = encode_items("pseudonym", len(outputs))
    rows = np.concatenate(outputs, axis=1)
    found = [
        hashlib.sha256(purpose + row.tobytes()).digest()[:PSEUDONYM_BYTES]
        for row in rows
    ]
    if len(set(found)) < len(found):
        why = "an id is there twice, or an evaluator answered wrongly"
        raise EncryptionError(f"two samples got the same pseudonym: {why}")
    data = np.frombuffer(b"".join(found), dtype=np.uint8)
    return data.reshape(len(found), PSEUDONYM_BYTES)
