"""A linear layer's cross-entropy without autograd, against autograd."""

from __future__ import annotations

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


def _hooked(net: Any) -> Any:
    net.register_forward_hook(lambda module, args, output: 2.0 * output)
    return net


def _frozen(net: Any) -> Any:
    net.bias.requires_grad_(False)
    return net


class _Twice(nn.Linear):
    def forward(self, inputs: Any) -> Any:
        return 2.0 * super().forward(inputs)


def _linear() -> Any:
    return nn.Linear(5, 4)


CROSS_ENTROPY = nn.CrossEntropyLoss
OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "hook": (_hooked(_linear()), CROSS_ENTROPY(), 3),
    "frozen": (_frozen(_linear()), CROSS_ENTROPY(), 3),
    "subclass": (_Twice(5, 4), CROSS_ENTROPY(), 3),
    "two layers": (nn.Sequential(_linear(), nn.ReLU()), CROSS_ENTROPY(), 3),
    "weights": (_linear(), CROSS_ENTROPY(weight=torch.tensor([1.0, 2, 3, 4])), 3),
    "smoothing": (_linear(), CROSS_ENTROPY(label_smoothing=0.1), 3),
    "ignored": (_linear(), CROSS_ENTROPY(ignore_index=1), 3),
    "missing label": (_linear(), CROSS_ENTROPY(), -100),
    "half": (_linear().to(torch.bfloat16), CROSS_ENTROPY(), 3),
    "another loss": (_linear(), nn.MultiMarginLoss(), 3),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_anything_else_is_left_to_autograd(case: str) -> None:
    net, loss, label = OTHERS[case]
    inputs = torch.tensor(RNG.standard_normal((6, 5)), dtype=net_dtype(net))
    targets = torch.tensor([0, 1, 2, 1, label, 0])
    f = TorchObjective(net, loss, (inputs, targets))
    assert f.closed is None
    found = f.gradient(f.initial_point())
    learnt = [p for p in net.parameters() if p.requires_grad]
    loss(net(inputs), targets).backward()
    for ours, parameter in zip(found, learnt, strict=True):
        np.testing.assert_allclose(ours, parameter.grad.float(), rtol=1e-5, atol=1e-6)


def net_dtype(net: Any) -> Any:
    """Of its parameters."""
    return next(net.parameters()).dtype
