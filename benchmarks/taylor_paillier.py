"""The usual vertical logistic regression: a Taylor gradient under Paillier encryption.

Two parties hold other columns of the same samples, the second one the labels, and an
arbiter the key. With z_i = x_iᵀw and y_i = ±1 the loss is taken for its second-order
expansion at 0, ln 2 − ½ y_i z_i + ⅛ z_i², so that its gradient is linear in z:

    A         sends [[¼ u_i]] for its u = X_A w_A
    B         adds its own:  [[d_i]] = [[¼ u_i]] + ¼ u′_i − ½ y_i, and sends them to A
    A and B   [[g]] = Σ_i x_i [[d_i]] of their columns; send [[g + mask]]
    arbiter   decrypts and returns g + mask
    A and B   w ← w − γ (g/N + λw)

After Hardy et al., "Private federated learning on vertically partitioned data via
entity resolution and additively homomorphic encryption", arXiv 1711.10677, without
their mini-batches. A plain reimplementation: whole gradients, a fixed step, no packing.

Paillier is python-paillier (``phe``), which is under the GPL: it is used where it is
installed, and by benchmarks alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrellis.wire.arrays import FloatArray

__all__ = ["Paillier", "TaylorRun", "encrypted_gradient", "taylor_descent"]

_KEY_BITS = 2048
#: Fractional bits of d and of x; their product is far below the 2048 of a plaintext.
_FRACTION = 24


@dataclass(frozen=True)
class TaylorRun:
    """Gradient descent on the expanded loss.

    Attributes
    ----------
    w : ndarray of shape (p,)
    iterations : int
    """

    w: FloatArray
    iterations: int


def taylor_descent(
    X: FloatArray,
    y: FloatArray,
    regularization: float,
    value: Callable[[FloatArray], float],
    *,
    slack: float,
    iterations: int,
) -> TaylorRun:
    """Go down the expanded objective, and stop where that is best for the real one.

    In the clear: encryption changes no step. The step is 2/(L + μ), the best fixed one
    for the quadratic's largest and smallest curvature.

    Parameters
    ----------
    X : ndarray of shape (N, p)
    y : ndarray of shape (N,)
        −1 and +1.
    regularization : float
        λ.
    value : callable
        The real objective.
    slack : float
        The first iteration that is within this of the lowest value on the way, relative
        to it, is the last: a stop that knows what is to come.
    iterations : int
        How long the way is.
    """
    N, p = X.shape
    # ∇²: XᵀX/4N + λI;  −∇ at 0: Xᵀy/2N
    H = X.T @ X / (4 * N) + regularization * np.eye(p)
    b = X.T @ y / (2 * N)
    least, largest = np.linalg.eigvalsh(H)[[0, -1]]
    points = [np.zeros(p)]
    for _ in range(iterations):
        points.append(points[-1] - 2.0 / (least + largest) * (H @ points[-1] - b))
    values = np.array([value(w) for w in points])
    last = int(np.argmax(values <= (1.0 + slack) * values.min()))
    return TaylorRun(points[last], last)


class Paillier:
    """A key of phe, and what the protocol needs of it, on whole numbers."""

    def __init__(self, phe: Any) -> None:
        self._public, self._private = phe.paillier.generate_paillier_keypair(
            n_length=_KEY_BITS
        )
        self._power: Callable[[int, int, int], int] = phe.util.powmod
        self._inverse: Callable[[int, int], int] = phe.util.invert
        self.size = _KEY_BITS // 4

    def encrypt(self, number: int) -> int:
        """Return a ciphertext."""
        return int(self._public.raw_encrypt(number % self._public.n))

    def decrypt(self, cipher: int) -> int:
        """Return the number, negative ones as such."""
        plain = int(self._private.raw_decrypt(cipher))
        n = int(self._public.n)
        return plain - n if plain > n // 2 else plain

    def add(self, one: int, other: int) -> int:
        """Add two ciphertexts."""
        return one * other % int(self._public.nsquare)

    def shift(self, cipher: int, number: int) -> int:
        """Add a number that is known: (1 + n)^m = 1 + nm modulo n²."""
        n, square = int(self._public.n), int(self._public.nsquare)
        return cipher * (1 + n * (number % n)) % square

    def scaled(self, cipher: int, number: int) -> int:
        """Multiply by a number that is known."""
        if number < 0:
            cipher, number = self._inverse(cipher, self._public.nsquare), -number
        return int(self._power(cipher, number, self._public.nsquare))


@dataclass(frozen=True)
class Iteration:
    """One iteration under encryption.

    Attributes
    ----------
    gradient : ndarray of shape (p,)
        Of the expanded loss, the mean over the samples, without λw.
    seconds : float
        Processor time of all three, one after the other.
    size : int
        Bytes of all messages.
    """

    gradient: FloatArray
    seconds: float
    size: int


def encrypted_gradient(
    paillier: Paillier, parts: Sequence[FloatArray], y: FloatArray, w: FloatArray
) -> Iteration:
    """Compute one gradient as the protocol does.

    Parameters
    ----------
    paillier : Paillier
    parts : (ndarray of shape (N, p_A), ndarray of shape (N, p_B))
    y : ndarray of shape (N,)
        −1 and +1, with the second party.
    w : ndarray of shape (p_A + p_B,)
    """
    unit = 1 << _FRACTION
    rng = np.random.default_rng(0)
    first, second = parts
    N, p_first = first.shape
    began = time.process_time()
    shares = np.rint(0.25 * unit * (first @ w[:p_first])).astype(np.int64).tolist()
    sent = [paillier.encrypt(share) for share in shares]
    own = np.rint(unit * (0.25 * second @ w[p_first:] - 0.5 * y)).astype(np.int64)
    d = [paillier.shift(c, m) for c, m in zip(sent, own.tolist(), strict=True)]
    gradient: list[float] = []
    for part in parts:
        weights = np.rint(unit * part).astype(np.int64)
        for column in weights.T.tolist():
            total = 1  # the ciphertext of 0 that adds nothing
            for cipher, weight in zip(d, column, strict=True):
                if weight:
                    total = paillier.add(total, paillier.scaled(cipher, weight))
            mask = int(rng.integers(2**62))
            # encrypted anew, so that the arbiter cannot tell what it was made of
            masked = paillier.add(total, paillier.encrypt(mask))
            gradient.append((paillier.decrypt(masked) - mask) / unit**2 / N)
    passed = time.process_time() - began
    # [[u]] and [[d]], a masked ciphertext a column, and what the arbiter returns
    columns = len(gradient)
    size = (2 * N + columns) * paillier.size + columns * 8
    return Iteration(np.array(gradient), passed, size)
