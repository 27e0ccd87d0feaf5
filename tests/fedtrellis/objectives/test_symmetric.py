"""The largest eigenvalue against a full decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from fedtrellis.objectives.base import (
    DIRECT_ORDER,
    largest_eigenvalue,
    symmetric_operator,
)
from fedtrellis.objectives.linear_models import DesignMatrix

Array = NDArray[np.float64]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("shape", [(400, 90), (90, 400), (150, 150), (65, 3000)])
def test_lanczos_is_the_largest_eigenvalue(
    shape: tuple[int, int],
    sparse: bool,
    intercept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    A = rng.standard_normal(shape)
    if sparse:
        A[rng.random(shape) < 0.9] = 0.0
    full = np.hstack([A, np.ones((len(A), 1))]) if intercept else A
    small = full @ full.T if shape[0] < shape[1] else full.T @ full
    expected = float(np.linalg.eigvalsh(small)[-1])
    design = DesignMatrix(
        scipy.sparse.csr_array(A) if sparse else A, intercept=intercept
    )

    def never(self: DesignMatrix) -> Array:
        raise AssertionError("the Gram matrix was formed")

    monkeypatch.setattr(DesignMatrix, "gram", never)
    assert design.largest_gram_eigenvalue == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("spectrum", "tolerance"),
    [
        (np.zeros(100), 0.0),
        (np.ones(100), 1e-12),
        (np.r_[np.zeros(99), 4.0], 1e-12),
        (1.0 - 1e-9 * np.arange(300), 1e-10),
        # so dense at its end that the iteration gives up
        (1.0 - np.linspace(0.0, 1.0, 1500) ** 4, 1e-10),
        (1.0 - np.linspace(0.0, 1.0, 3000) ** 4, 1e-4),
    ],
)
def test_lanczos_on_hard_spectra(spectrum: Array, tolerance: float) -> None:
    operator = symmetric_operator(len(spectrum), lambda v: spectrum * v)
    assert largest_eigenvalue(operator) == pytest.approx(
        spectrum.max(), rel=tolerance, abs=0.0
    )


def test_lanczos_of_a_dense_bound() -> None:
    A = np.random.default_rng(0).standard_normal((30, 12))
    H = A.T @ A + 0.2 * np.eye(12)
    H = np.asarray(np.kron(H, np.diag(np.linspace(1.0, 2.0, 10))), dtype=np.float64)
    assert len(H) > DIRECT_ORDER
    assert largest_eigenvalue(H) == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-12)
