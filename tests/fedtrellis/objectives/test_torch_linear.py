"""A linear layer's cross-entropy without autograd, against autograd."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402

RNG = np.random.default_rng(3)


def objective(size: int, dtype: Any, *, bias: bool = True, **options: Any) -> Any:
    """The closed form's, and the same one as autograd has it."""
    torch.manual_seed(size)
    net = nn.Linear(5, 4, bias=bias, dtype=dtype)
    data = RNG.standard_normal((size, 5)), RNG.integers(4, size=size)
    loss = nn.CrossEntropyLoss()
    ours = TorchObjective(net, loss, data, **options)
    theirs = TorchObjective(net, lambda z, y: loss(z, y), data, **options)
    assert ours.closed is not None
    assert theirs.closed is None
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_and_steps_are_those_of_autograd(dtype: Any, bias: bool) -> None:
    tolerance: Any = {"rtol": 1e-12, "atol": 1e-13}
    if dtype == torch.float32:
        tolerance = {"rtol": 2e-5, "atol": 2e-6}
    ours, theirs = objective(9, dtype, bias=bias, weight=0.7, l2=0.2)
    x = 30.0 * RNG.standard_normal(ours.shape[0])
    x = x.astype(np.float32 if dtype == torch.float32 else np.float64)
    np.testing.assert_allclose(ours.gradient(x), theirs.gradient(x), **tolerance)
    sizes = [0.5, 0.2, 0.1]
    for batch in (0, 4):
        ends = [
            f.local_steps(x, sizes, np.random.default_rng(1), batch, pull=0.3)
            for f in (ours, theirs)
        ]
        np.testing.assert_allclose(ends[0], ends[1], **tolerance)


def test_gradients_of_many_are_those_of_each() -> None:
    pairs = [objective(size, torch.float64) for size in (7,) * 8 + (9,) * 8]
    stacked = TorchObjective.stack([ours for ours, _ in pairs])
    assert stacked is not None
    points = RNG.standard_normal((16, 24))
    expected = [f.gradient(x) for (_, f), x in zip(pairs, points, strict=True)]
    np.testing.assert_allclose(stacked.gradients(points), expected, atol=1e-14)
    rows = [np.arange(1, 5)] * 9 + [np.arange(3)] * 7
    expected = [
        f._gradient_like(x, some)
        for (_, f), x, some in zip(pairs, points, rows, strict=True)
    ]
    np.testing.assert_allclose(stacked.gradients(points, rows), expected, atol=1e-14)
