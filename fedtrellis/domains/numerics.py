"""The few numerics that the sets share, and the checks of their parameters."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.domains.atoms.base import FloatArray


def positive(domain: str, parameter: str, value: Any, below: float = math.inf) -> float:
    """Return a parameter as float; ValueError unless positive and below a bound."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool | str) or not 0.0 < number < below:
        kind = "finite number" if below == math.inf else f"number below {below:g}"
        raise ValueError(
            f"{domain}: {parameter} must be a positive {kind}, got {value!r}"
        )
    return number


def positive_integer(domain: str, parameter: str, value: Any) -> int:
    """Return a parameter as int; ValueError unless an integer of at least 1."""
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or value < 1:
        raise ValueError(
            f"{domain}: {parameter} must be an integer of at least 1, got {value!r}"
        )
    return int(value)


def unit(vector: FloatArray) -> tuple[FloatArray, float]:
    """Return vector/‖vector‖₂ and ‖vector‖₂, safe against overflow and underflow.

    The first unit vector and 0.0 for a zero vector. Any shape; the norm is that of
    the entries.
    """
    largest = max(float(vector.max()), -float(vector.min()))
    if largest == 0.0:
        direction = np.zeros(vector.shape)
        direction.flat[0] = 1.0
        return direction, 0.0
    scale = 1.0
    if not 1e-100 < largest < 1e100:  # the squares would leave the range of floats
        # a power of two, so that the division is exact
        scale = 2.0 ** math.floor(math.log2(largest))
        vector = vector / scale
    norm = math.sqrt(float(np.vdot(vector, vector)))
    return vector / norm, scale * norm


def scaled(magnitudes: FloatArray) -> tuple[FloatArray, float]:
    """Return the magnitudes over the largest, and that; 1 for zeros."""
    largest = float(magnitudes.max()) or 1.0
    return magnitudes / largest, largest


def smallest(values: FloatArray, k: int) -> NDArray[np.intp]:
    """Return where the k smallest values are; of equal ones the first."""
    threshold = np.partition(values, k - 1)[k - 1]
    below = np.flatnonzero(values < threshold)
    equal = np.flatnonzero(values == threshold)[: k - below.size]
    return np.concatenate([below, equal])


def root(function: Callable[[float], float], largest: float) -> float:
    """Return where a function that grows from 0 to ``largest`` is 0, to full precision.

    An end where rounding leaves no change of sign.
    """
    if function(0.0) >= 0.0:
        return 0.0
    if function(largest) <= 0.0:
        return largest
    found: float = scipy.optimize.brentq(
        function, 0.0, largest, xtol=5e-324, rtol=1e-15, maxiter=2000
    )
    return found


def magnitude(array: FloatArray) -> float:
    """Return a power of two near ‖array‖₂, for exact scaling; 0.0 if all are zero.

    Not finite where an entry is not.
    """
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(array))  # one pass, and NaN and infinity show
    if not 1e-100 < size < 1e100:  # the squares have left the range of floats
        size = float(np.abs(array).max(initial=0.0))
    if size == 0.0 or not math.isfinite(size):
        return size
    # half of the largest power still is a float, and so is its inverse
    return math.ldexp(1.0, min(max(math.frexp(size)[1], -1000), 1000))


def power_of_two_scaled(
    x: FloatArray, axes: tuple[int, ...]
) -> tuple[FloatArray, FloatArray]:
    """Return x over a power of two near its largest entry along axes, and the power.

    So that squares stay in the range of floats; exact, as it is a power of two.
    """
    largest = np.abs(x).max(axis=axes, keepdims=True)
    # the exponent of 0 is 0; half of the largest power still is a float
    _, exponent = np.frexp(largest)
    scale = np.ldexp(1.0, np.clip(exponent, -1000, 1000))
    return x / scale, scale


def unit_vectors(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return u = x/‖x‖ and ‖x‖ along the last axis, safe against over- and underflow.

    The first unit vector and 0.0 for a zero vector.
    """
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(np.einsum("...i,...i->...", x, x))
    awkward = ~((norms > 1e-100) & (norms < 1e100))
    if not awkward.any():
        unit: FloatArray = x / norms[..., None]
        return unit, norms
    scaled, scale = power_of_two_scaled(x, (-1,))
    norms = np.sqrt(np.einsum("...i,...i->...", scaled, scaled))
    zero = norms == 0.0
    unit = scaled / np.where(zero, 1.0, norms)[..., None]
    unit[zero, 0] = 1.0
    with np.errstate(over="ignore", under="ignore"):
        return unit, norms * scale[..., 0]


def thin_svd(x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the thin SVD U, σ, Vᵀ of a matrix, or of each of a batch; σ decreases."""
    scaled, scale = power_of_two_scaled(x, (-2, -1))
    try:
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
    except np.linalg.LinAlgError:  # the divide-and-conquer driver fails now and then
        each = [
            scipy.linalg.svd(a, full_matrices=False, lapack_driver="gesvd")
            for a in scaled.reshape(-1, *x.shape[-2:])
        ]
        left, values, right = (
            np.stack(parts).reshape(*x.shape[:-2], *parts[0].shape)
            for parts in zip(*each, strict=True)
        )
    return left, scale[..., 0] * values, right


def project_simplex(vector: FloatArray, radius: float) -> FloatArray:
    """Solve argmin ½‖s − vector‖² over s ≥ 0 with Σ s_i = radius.

    The answer is max(v − θ, 0), θ found by sorting (Duchi, Shalev-Shwartz, Singer,
    Chandra, "Efficient projections onto the l1-ball for learning in high dimensions",
    ICML 2008, figure 1). A vector in, a new vector out.
    """
    # The answer does not change when all entries shift. After this shift entries
    # below −radius are zero in it, and no sum can overflow.
    with np.errstate(over="ignore"):  # −∞ is as good as any value below −radius
        shifted = vector - vector.max()
    descending = np.sort(shifted[shifted > -radius])[::-1]
    # θ_k = (Σ_{i≤k} v_i − radius) / k  for the largest k with v_k > θ_k
    thresholds = (np.cumsum(descending) - radius) / np.arange(1, descending.size + 1)
    theta = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    # s_i = max(v_i − θ, 0)
    shifted -= theta
    projection: FloatArray = np.maximum(shifted, 0.0, out=shifted)
    return projection


def project_l1(vector: FloatArray, radius: float) -> FloatArray:
    """Solve argmin ½‖s − vector‖² over ‖s‖₁ ≤ radius; a vector in, a new one out.

    Outside the ball it is the projection of |vector| onto the simplex, with the signs
    put back (Duchi et al. 2008, §4).
    """
    magnitudes = np.abs(vector)
    with np.errstate(over="ignore"):  # a sum of ∞ is outside, which is all we ask
        if magnitudes.sum() <= radius:
            return vector.copy()
    projection = project_simplex(magnitudes, radius)
    # θ is not below 0, but where the norm is above the radius by rounding it may come
    # out as −1e-16: zeros stay zeros
    np.minimum(projection, magnitudes, out=projection)
    signed: FloatArray = np.copysign(projection, vector, out=projection)
    return signed
