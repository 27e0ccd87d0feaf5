"""TorchObjective against the NumPy objectives, autograd, loops and differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from fedtrellis.objectives import MultinomialLogistic  # noqa: E402
from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402

Array = NDArray[np.float64]
RNG = np.random.default_rng(5)
INPUTS = RNG.standard_normal((23, 6))
LABELS = RNG.integers(0, 4, 23)
cross_entropy: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy


def network(dtype: Any = torch.float64) -> nn.Module:
    """Return a small network with every kind of layer that needs care."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4)
    ).to(dtype)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(torch.linspace(-1, 1, 5))
    norm.running_var.copy_(torch.linspace(0.5, 2, 5))
    return model


def objective(**options: Any) -> TorchObjective:
    model = options.pop("model", None) or network()
    return TorchObjective(model, cross_entropy, (INPUTS, LABELS), **options)


def random_point(target: TorchObjective, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng([seed, 78])
    return [rng.standard_normal(shape) for shape in target.shapes]


def linear_pair(l2: float, weight: float) -> tuple[TorchObjective, MultinomialLogistic]:
    model = nn.Linear(6, 4).double()
    return (
        TorchObjective(model, cross_entropy, (INPUTS, LABELS), l2=l2, weight=weight),
        MultinomialLogistic(INPUTS, LABELS, 4, l2=l2, weight=weight),
    )


@pytest.mark.parametrize(("l2", "weight"), [(0.0, 1.0), (0.3, 2.5)])
def test_a_linear_module_is_multinomial_logistic(l2: float, weight: float) -> None:
    ours, expected = linear_pair(l2, weight)
    W = np.random.default_rng(1).standard_normal((7, 4))
    layers = [W[:-1].T, W[-1]]  # a Linear's weight is (classes, features)
    gradient = ours.gradient(layers)
    assert ours.value(layers) == pytest.approx(expected.value(W), rel=1e-13)
    reference = expected.gradient(W)
    np.testing.assert_allclose(gradient[0], reference[:-1].T, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(gradient[1], reference[-1], rtol=1e-11, atol=1e-14)
    assert ours.metrics(layers) == expected.metrics(W)
    mine = ours.stochastic_gradient(layers, np.random.default_rng(3), 8)
    theirs = expected.stochastic_gradient(W, np.random.default_rng(3), 8)
    np.testing.assert_allclose(mine[0], theirs[:-1].T, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("limit", [1, 5, 22, 23, 1000])
def test_chunks_do_not_change_the_result(limit: int) -> None:
    whole, chunked = objective(), objective(batch_size_limit=limit)
    x = random_point(whole)
    assert chunked.value(x) == pytest.approx(whole.value(x), rel=1e-13)
    for ours, expected in zip(chunked.gradient(x), whole.gradient(x), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-14)
    assert chunked.metrics(x) == whole.metrics(x)
    stacked = [np.stack([part, -part]) for part in x]
    np.testing.assert_allclose(
        chunked.values(stacked), whole.values(stacked), rtol=1e-13
    )


class Affine(nn.Module):
    def __init__(self, slopes: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        if slopes:
            self.b = nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.a + inputs @ self.b if hasattr(self, "b") else self.a * inputs[:, 0]


@pytest.mark.parametrize("slopes", [False, True])
def test_parameters_may_have_no_axes(slopes: bool) -> None:
    targets = INPUTS @ np.arange(6.0)
    data = (INPUTS, targets)
    f = TorchObjective(
        Affine(slopes), nn.functional.mse_loss, data, weight=2.0, l2=0.1, device="cpu"
    )
    x = random_point(f)
    flat = f.parameters_to_vector(x)
    # the same by hand: 2 (mean (D x − targets)² + 0.05 ‖x‖²)
    design = np.column_stack([np.ones(23), INPUTS]) if slopes else INPUTS[:, :1]
    error = design @ flat - targets
    value = 2.0 * (float(np.mean(error**2)) + 0.05 * float(flat @ flat))
    slope = 2.0 * (2.0 / 23 * design.T @ error + 0.1 * flat)
    assert f.value(x) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(f.gradient(flat), slope, rtol=1e-11)
    parts = f.gradient(x)
    assert [(type(part), part.shape) for part in parts] == [
        (np.ndarray, shape) for shape in f.shapes
    ]
    np.testing.assert_allclose(f.parameters_to_vector(parts), slope, rtol=1e-11)
    values = [f.value(x), f.value(-flat)]
    np.testing.assert_allclose(f.values(np.stack([flat, -flat])), values, rtol=1e-12)
    stacked = [np.stack([part, -part]) for part in x]
    np.testing.assert_allclose(f.values(stacked), values, rtol=1e-12)
    if not slopes:
        assert f.gradient(x[0]).shape == ()


def test_the_module_and_torchs_random_state_are_left_alone() -> None:
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    target = objective(model=model)
    x = random_point(target)
    x[0].flags.writeable = False  # as arrays from a Message are
    first = target.value(x)
    target.gradient(x)
    target.values([part[None] for part in x])
    assert first == target.value(x)  # no dropout
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(torch.random.get_rng_state(), state)


def sum_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def frozen() -> nn.Module:
    return nn.Linear(6, 4).requires_grad_(False)


def make(model: nn.Module | None = None, **options: Any) -> TorchObjective:
    data = options.pop("data", (INPUTS, LABELS))
    loss = options.pop("loss", cross_entropy)
    return TorchObjective(model or network(), loss, data, **options)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("model has no parameter", lambda: make(frozen())),
    ("'inputs': 22, 'labels': 23", lambda: make(data=(INPUTS[1:], LABELS))),
    ("must have at least 1 of each", lambda: make(data=(INPUTS[:0], LABELS[:0]))),
    ("inputs has NaN", lambda: make(data=(INPUTS * np.nan, LABELS))),
    ("labels is a scalar", lambda: make(data=(INPUTS, np.float64(1.0)))),
    ("the batch is <class 'tuple'>", lambda: make(data=(INPUTS,))),
    ("batch_size_limit is 0", lambda: make(batch_size_limit=0)),
    ("weight is -1", lambda: make(weight=-1)),
    ("l2 is -1", lambda: make(l2=-1)),
    (r"loss returned shape \(23,\)", lambda: make(loss=sum_loss).value(np.zeros(69))),
    (r"x has shape \(3,\); it must be \(69,\)", lambda: make().value(np.zeros(3))),
    ("x has shapes", lambda: make().gradient([np.zeros(3)])),
    ("x has shapes", lambda: make().values([])),
    ("x has shape", lambda: make().values(np.zeros(69))),
    ("batch_size is 0", lambda: make().stochastic_gradient(np.zeros(69), RNG, 0)),
]


@pytest.mark.parametrize(("message", "run"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(message: str, run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        run()
    assert "\n" not in str(caught.value)


LINEAR_RNG = np.random.default_rng(3)


def objective_linear(
    size: int, dtype: Any, *, bias: bool = True, **options: Any
) -> Any:
    torch.manual_seed(size)
    net = nn.Linear(5, 4, bias=bias, dtype=dtype)
    data = LINEAR_RNG.standard_normal((size, 5)), LINEAR_RNG.integers(4, size=size)
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
    ours, theirs = objective_linear(9, dtype, bias=bias, weight=0.7, l2=0.2)
    x = 30.0 * LINEAR_RNG.standard_normal(ours.shape[0])
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
    pairs = [objective_linear(size, torch.float64) for size in (7,) * 8 + (9,) * 8]
    stacked = TorchObjective.stack([ours for ours, _ in pairs])
    assert stacked is not None
    points = LINEAR_RNG.standard_normal((16, 24))
    expected = [f.gradient(x) for (_, f), x in zip(pairs, points, strict=True)]
    np.testing.assert_allclose(stacked.gradients(points), expected, atol=1e-14)
    rows = [np.arange(1, 5)] * 9 + [np.arange(3)] * 7
    expected = [
        f._gradient_like(x, some)
        for (_, f), x, some in zip(pairs, points, rows, strict=True)
    ]
    np.testing.assert_allclose(stacked.gradients(points, rows), expected, atol=1e-14)
