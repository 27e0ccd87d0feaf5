"""Steps of a network, layer by layer: a linear minimisation oracle for every array.

Each layer has a norm of its own, and its step goes to the point of that norm's unit
ball that the momentum D likes best, s = argmin over ‖S‖ ≤ 1 of ⟨D, S⟩:

    spectral   ‖S‖ = the largest singular value / scale      s = −scale · U Vᵀ
    sign       ‖S‖ = the largest entry                       s = −sign(D)
    rows       ‖S‖ = the largest row's length / √columns     s_j = −√columns · D_j/‖D_j‖

with D = U Σ Vᵀ. A convolution's kernel is the matrix of its output channels.

Source: Pethick, Xie, Antonakopoulos, Zhu, Silveti-Falls, Cevher, "Training Deep
Learning Models with Norm-Constrained LMOs" (Scion), arXiv 2502.07529, tables 2 and 3;
Jordan et al., "Muon", 2024, for the Newton-Schulz iteration and its coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError, check_choice

Scaling = Literal["scion", "muon"]
Orthogonalization = Literal["newton-schulz", "bfloat16", "svd"]
StepSchedule = Literal["constant", "linear"]

_KINDS = ("spectral", "sign", "rows")

# Muon's: in five iterations they bring singular values of [0, 1] to about 1 ± 0.3, and
# the smallest to 485 times what they were
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
# of ‖D‖ that it is divided by, so that zeros stay zeros
_EPS = 1e-7

Array = NDArray[Any]


def scheduled(schedule: str, size: float, server_round: int, rounds: int) -> float:
    """γ_t, the step size of round t = 1, 2, … of T; beyond T that of the last."""
    if schedule == "constant":
        return size
    # γ_t = γ (1 − (t − 1)/T)
    return size * (1.0 - min(server_round - 1, rounds - 1) / rounds)


def with_momentum(m: Array, g: Array, mu: float, nesterov: bool) -> tuple[Array, Array]:
    """Return the next momentum m, and the D that the oracle is asked at.

    FloatingPointError where the gradient is not finite: a step of its signs would not
    show it.
    """
    if not np.isfinite(g).all():
        raise FloatingPointError("the objective's gradient is not finite")
    # m ← μ m + (1 − μ) g
    m = m + (1.0 - mu) * (g - m)
    # D = (1 − μ) g + μ m, or m
    return m, (m + (1.0 - mu) * (g - m) if nesterov else m)


def moved(x: Array, s: Array, gamma: float, radius: float) -> Array:
    """Return x after a step of size γ along s, within balls where radius r > 0."""
    if radius > 0.0:
        # x ← (1 − γ) x + γ r s
        return (1.0 - gamma) * x + (gamma * radius) * s
    # x ← x + γ s
    return x + gamma * s


def settle_kinds(kinds: str, shapes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """Return the kind of every layer: the words of ``kinds``, separated by commas.

    Of no words: "spectral" for layers of two and more axes, "sign" for the others.
    SettingsError unless there is a known word a layer, which fits its shape.
    """
    if not kinds:
        return tuple("spectral" if len(shape) > 1 else "sign" for shape in shapes)
    words = tuple(word.strip() for word in kinds.split(","))
    if len(words) != len(shapes):
        raise SettingsError(
            f"layers = {kinds!r} names {len(words)} layers; the model has {len(shapes)}"
        )
    for word, shape in zip(words, shapes, strict=True):
        check_choice("layers", word, _KINDS)
        if word != "sign" and len(shape) < 2:
            raise SettingsError(
                f"layers = {kinds!r}: {word!r} is for layers of two and more axes, not "
                f"for one of shape {shape}; allowed there: sign"
            )
    return words


def newton_schulz(matrix: Array) -> Array:
    """Return nearly U Vᵀ of a matrix U Σ Vᵀ, in the matrix's dtype.

    X ← a X + (b X Xᵀ + c (X Xᵀ)²) X from X = D/‖D‖_F: singular values above some
    0.002 end between 0.7 and 1.2, smaller ones up to 485 times as large. Zeros stay so.
    """
    x = matrix / max(float(np.linalg.norm(matrix)), _EPS)
    # the smaller of the two squares
    wide = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(_ITERATIONS):
        square = wide @ wide.T
        # X ← a X + (b X Xᵀ + c (X Xᵀ)²) X
        wide = _A * wide + (_B * square + _C * (square @ square)) @ wide
    return wide.T if x.shape[0] > x.shape[1] else wide


def _newton_schulz_bfloat16(matrix: Array) -> Array:
    """The same in bfloat16, in the order of operations of ``torch.optim.Muon``."""
    import torch

    x = torch.tensor(matrix).bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(_ITERATIONS):
        square = x @ x.T
        update = torch.addmm(square, square, square, beta=_B, alpha=_C)
        x = torch.addmm(x, update, x, beta=_A)
    result: Array = (x.T if tall else x).float().numpy()
    return result


@dataclass(frozen=True)
class LayerOracle:
    """The oracles of a model's layers.

    ``kinds``: "spectral", "sign" or "rows", one a layer. ``scaling``, the spectral
    oracle's scale: "scion", √(outputs/inputs), for a convolution divided by its
    kernel's number of pixels; "muon", √max(1, rows/columns).
    ``orthogonalization``: U Vᵀ by "newton-schulz" in the model's dtype; the same in
    "bfloat16", which needs PyTorch; or exact, "svd".
    """

    kinds: tuple[str, ...]
    scaling: str = "scion"
    orthogonalization: str = "newton-schulz"

    def __call__(self, layers: Sequence[Array]) -> list[Array]:
        """Return s of every layer, in its shape and dtype."""
        return [
            self._layer(kind, layer).astype(layer.dtype, copy=False)
            for kind, layer in zip(self.kinds, layers, strict=True)
        ]

    def _layer(self, kind: str, d: Array) -> Array:
        if kind == "sign":
            # s = −sign(D)
            return -np.sign(d)
        matrix = d.reshape(d.shape[0], -1)
        if kind == "rows":
            # s_j = −√columns D_j/‖D_j‖
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
            directions = matrix / np.where(lengths > 0.0, lengths, 1.0)
            rows: Array = -sqrt(matrix.shape[1]) * directions
            return rows.reshape(d.shape)
        # s = −scale U Vᵀ
        step: Array = -self.scale(d.shape) * self._orthogonal(matrix)
        return step.reshape(d.shape)

    def _orthogonal(self, matrix: Array) -> Array:
        """U Vᵀ, exact over the singular values that are not 0."""
        if self.orthogonalization == "svd":
            u, sigma, vt = np.linalg.svd(matrix, full_matrices=False)
            kept = sigma > sigma[0] * max(matrix.shape) * np.finfo(sigma.dtype).eps
            product: Array = u[:, kept] @ vt[kept]
            return product
        if self.orthogonalization == "bfloat16":
            return _newton_schulz_bfloat16(matrix)
        return newton_schulz(matrix)

    def scale(self, shape: tuple[int, ...]) -> float:
        """Return the spectral oracle's scale for a layer of this shape."""
        outputs, inputs, *kernel = shape
        if self.scaling == "scion":
            # √(outputs/inputs) / pixels of the kernel
            return sqrt(outputs / inputs) / prod(kernel)
        return sqrt(max(1.0, outputs / (inputs * prod(kernel))))
