"""The polar factor of many matrices at once, by products of matrices where safe."""

import math

import numpy as np
import scipy  # its parts are loaded when first used

from fedtrellis.manifolds.base import FloatArray, power_of_two_scaled
from fedtrellis.manifolds.vectors import unit_columns

__all__ = ["polar_factor", "thin_svd"]

# Up to this ‖xᵀx − I‖ the series for (xᵀx)^(−1/2) needs few enough terms (16) to be
# faster than the eigenvalues.
_NEAR = 0.1
# Smallest ratio of the eigenvalues of xᵀx for which they are used. Forming xᵀx costs
# an error of 2⁻⁵³/ratio in the factor; at this one it stays below 1e-12.
_WELL_CONDITIONED = 1e-3


def polar_factor(x: FloatArray) -> FloatArray:
    """Return the factor U Vᵀ of each x = U Σ Vᵀ, the closest orthonormal columns.

    It is x (xᵀx)^(−1/2) where the columns are independent: by the series of the
    inverse root near orthonormal columns, else through the eigenvalues of xᵀx where
    they are within a factor of 1 000, else by the singular value decomposition. With
    dependent columns the factor is not unique, and it is U Vᵀ as LAPACK completes U.

    Parameters
    ----------
    x : ndarray, shape (m, p, r), p ≥ r
        Finite.

    Returns
    -------
    ndarray of float64, shape (m, p, r)
        Orthonormal to about 1e-15.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.manifolds import polar_factor
    >>> polar_factor(np.array([[[3.0], [4.0]]])).round(3).ravel()
    array([0.6, 0.8])
    """
    if x.shape[2] == 1:  # x/‖x‖
        return unit_columns(x)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        gram = x.swapaxes(1, 2) @ x
        excess = gram - np.eye(x.shape[2])
        farthest = math.sqrt(np.einsum("mij,mij->m", excess, excess).max())
    if farthest <= _NEAR:  # not so if it is NaN
        near: FloatArray = x @ _inverse_root_near_identity(excess, farthest)
        return near
    return _far(x, gram)


def _far(x: FloatArray, gram: FloatArray) -> FloatArray:
    """Return the polar factors, given xᵀx, each by the fastest way that is safe."""
    trace = np.trace(gram, axis1=1, axis2=2)
    in_range = (trace > 1e-100) & (trace < 1e100)  # not so if it is NaN
    identity = np.eye(x.shape[2])
    values, vectors = np.linalg.eigh(np.where(in_range[:, None, None], gram, identity))
    safe = in_range & (values[:, 0] >= _WELL_CONDITIONED * values[:, -1])
    if safe.all():
        return _by_eigenvalues(x, values, vectors)
    result = np.empty_like(x)
    result[safe] = _by_eigenvalues(x[safe], values[safe], vectors[safe])
    left, _, right = thin_svd(x[~safe])
    result[~safe] = left @ right  # U Vᵀ
    return result


def _by_eigenvalues(x: FloatArray, values: FloatArray, w: FloatArray) -> FloatArray:
    """Return the polar factors, given the eigenvalues and vectors of xᵀx."""
    # x (xᵀx)^(−1/2) = x W Λ^(−1/2) Wᵀ  with xᵀx = W Λ Wᵀ
    y = x @ ((w / np.sqrt(values)[:, None, :]) @ w.swapaxes(1, 2))
    # y is orthonormal to 1e-13; once more, from so near, makes that 1e-15
    excess = y.swapaxes(1, 2) @ y - np.eye(x.shape[2])
    result: FloatArray = y @ _inverse_root_near_identity(excess, 1e-8)
    return result


def _inverse_root_near_identity(excess: FloatArray, size: float) -> FloatArray:
    """Return (I + E)^(−1/2) for symmetric E with ‖E‖ ≤ size < 1, by its series."""
    identity = np.eye(excess.shape[1])
    last, previous, *coefficients = reversed(_series(size))
    # Σ_k c_k E^k, in Horner's order
    result = last * excess + previous * identity
    for coefficient in coefficients:
        result = result @ excess
        result += coefficient * identity
    return result


def _series(size: float) -> list[float]:
    """Return the coefficients of (1 + z)^(−1/2) that count for |z| ≤ size, two or more.

    What follows the last is below 2⁻⁵³/10.
    """
    coefficients = [1.0]
    # c_k = c_{k−1} (1/2 − k)/k
    while abs(coefficients[-1]) * size ** (len(coefficients) - 1) > 1e-17:
        k = len(coefficients)
        coefficients.append(coefficients[-1] * (0.5 - k) / k)
    return coefficients


def thin_svd(x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the thin singular value decompositions U, σ, Vᵀ; σ decreases."""
    scaled, scale = power_of_two_scaled(x, (1, 2))
    try:
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
    except np.linalg.LinAlgError:  # the divide-and-conquer driver fails now and then
        each = [
            scipy.linalg.svd(a, full_matrices=False, lapack_driver="gesvd")
            for a in scaled
        ]
        left, values, right = (np.stack(parts) for parts in zip(*each, strict=True))
    return left, scale[:, :, 0] * values, right
