"""PyTorch objectives in the clients' hands: steps, dtypes, copies, cohorts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402

RNG = np.random.default_rng(5)
INPUTS = RNG.standard_normal((23, 6))
LABELS = RNG.integers(0, 4, 23)
cross_entropy: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy


def perceptron(dtype: Any = torch.float32, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).to(dtype)


def objective(model: nn.Module | None = None, **options: Any) -> TorchObjective:
    data = options.pop("data", (INPUTS, LABELS))
    options = {"device": "cpu"} | options
    return TorchObjective(model or perceptron(), cross_entropy, data, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [4096, 10])
def test_local_steps_are_those_of_torchs_sgd(dtype: Any, limit: int) -> None:
    target = objective(perceptron(dtype), weight=2.0, l2=0.1, batch_size_limit=limit)
    start = target.parameters_to_vector(target.initial_point())
    assert start.dtype == (np.float32 if dtype == torch.float32 else np.float64)
    before = start.copy()
    ends = target.local_steps(start, [0.5, 0.4, 0.3], pull=0.7)
    model, inputs = perceptron(dtype), torch.tensor(INPUTS, dtype=dtype)
    anchors = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for size in (0.5, 0.4, 0.3):
        optimizer.param_groups[0]["lr"] = size
        optimizer.zero_grad()
        loss = 2.0 * cross_entropy(model(inputs), torch.tensor(LABELS))
        for p, anchor in zip(model.parameters(), anchors, strict=True):
            # weight (l2/2)‖x‖² + (pull/2)‖x − start‖²
            loss = loss + 0.1 * p.square().sum() + 0.35 * (p - anchor).square().sum()
        torch.autograd.backward(loss)
        optimizer.step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    assert ends.dtype == expected.dtype
    assert np.abs(ends - start).max() > 0.01
    np.testing.assert_allclose(
        ends, expected, atol=1e-6 if dtype == torch.float32 else 1e-14
    )
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.float64])
def test_a_model_can_compute_in_another_dtype(dtype: Any) -> None:
    target, exact = objective(dtype=dtype), objective(dtype="float64")
    x = exact.parameters_to_vector(exact.initial_point())
    error = np.abs(target.gradient(x) - exact.gradient(x)).max()
    assert error == 0.0 if dtype is torch.float64 else 0.0 < error < 0.01
    wide = np.float64 if dtype is torch.float64 else np.float32
    assert target.initial_point()[0].dtype == wide
    # steps add up in the dtype of the point, not of the model: 100 small ones count
    moved = target.local_steps(x.astype(np.float32), [1e-5] * 100)
    assert moved.dtype == np.float32
    change = np.abs(moved - x).max()
    assert change == pytest.approx(1e-3 * np.abs(exact.gradient(x)).max(), rel=0.05)


def normed(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, **options))


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4).double())


REFUSED: list[tuple[str, Callable[[], object]]] = [
    (
        "'1' normalises by the statistics of a batch",
        lambda: objective(normed(track_running_stats=False)),
    ),
    ("'1' has the running statistics that it was made", lambda: objective(normed())),
    ("has a lazy layer", lambda: objective(nn.LazyLinear(4))),
    ("of torch.float32, torch.float64; they must have one", lambda: objective(mixed())),
    ("dtype is 'int8'; it must be one of", lambda: objective(dtype="int8")),
    ("device is 'tpu'", lambda: objective(device="tpu")),
]


@pytest.mark.parametrize(("message", "run"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(message: str, run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        run()
    assert "\n" not in str(caught.value)


# -- cohorts


def image_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 4),
        )


def cohort(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> list[Any]:
    """Sixteen objectives with 4 or 7 examples, and weights of their own."""
    rng = np.random.default_rng(3)
    objectives = []
    for i in range(16):
        count = 4 + 3 * (i % 2)
        inputs = rng.standard_normal((count, *shape))
        data = (inputs, rng.integers(0, 4, count))
        objectives.append(objective(make(), data=data, weight=1.0 + i, l2=0.01 * i))
    return objectives


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (perceptron, (6,)),
        (lambda: perceptron(torch.float64), (6,)),
        (image_net, (1, 6, 6)),
    ],
    ids=["perceptron", "double", "convolutions"],
)
def test_a_cohort_is_its_objectives_one_by_one(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    objectives = cohort(make, shape)
    stacked = TorchObjective.stack(objectives)
    assert stacked is not None
    x = objectives[0].parameters_to_vector(objectives[0].initial_point())
    rng = np.random.default_rng(1)
    points = (x + 0.1 * rng.standard_normal((16, len(x)))).astype(x.dtype)
    tolerance: dict[str, Any] = {"rtol": 0.0, "atol": 1e-13}
    if x.itemsize == 4:
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
    one_by_one = zip(objectives, points, strict=True)
    expected = np.array([f.gradient(point) for f, point in one_by_one])
    ours = stacked.gradients(points)
    assert ours.dtype == x.dtype
    np.testing.assert_allclose(ours, expected, **tolerance)
    sizes = [0.03, 0.02]
    steps = np.array(
        [
            f.local_steps(p, sizes, pull=0.3)
            for f, p in zip(objectives, points, strict=True)
        ]
    )
    before = points.copy()
    np.testing.assert_allclose(
        stacked.local_steps(points, sizes, pull=0.3), steps, **tolerance
    )
    np.testing.assert_array_equal(points, before)
    # mini-batches: three rows of each
    rows = [rng.choice(f.num_examples, 3, replace=False) for f in objectives]
    for i, slope in enumerate(stacked.gradients(points, rows)):
        f = objectives[i]
        named = f.flat.named(torch.tensor(points[i]).requires_grad_())
        layers = [layer.detach().requires_grad_() for layer in named.values()]
        batch = f.examples.batch(rows[i])
        loss = f.mean_loss(dict(zip(named, layers, strict=True)), batch)
        parts = torch.autograd.grad(loss, layers)
        wanted = torch.cat([part.reshape(-1) for part in parts]).numpy()
        wanted = f.weight * (wanted + f.l2 * points[i])
        np.testing.assert_allclose(slope, wanted, **tolerance)


def test_what_differs_in_more_than_data_is_no_cohort() -> None:
    def stacks(*others: TorchObjective) -> bool:
        same = [objective() for _ in range(8)]
        return TorchObjective.stack([*same, *others]) is not None

    class Own(nn.Linear):
        def __init__(self, rule: Any) -> None:
            super().__init__(6, 4)
            self.rule = rule

    frozen = perceptron()
    frozen[0].requires_grad_(False)  # type: ignore[index]
    relu = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    assert stacks(objective(perceptron(seed=1)))  # other weights at first
    assert not stacks(objective(relu))
    assert not stacks(objective(frozen))
    assert not stacks(objective(perceptron(torch.float64)))
    assert not stacks(objective(vectorize=False))
    assert not stacks(objective(batch_size_limit=22))
    assert not stacks(objective(data=(INPUTS[:5], LABELS[:5])))  # too few of 5
    wide = nn.Linear(6, 5000)  # as quick one by one
    assert TorchObjective.stack([objective(wide) for _ in range(8)]) is None
    mse = TorchObjective(perceptron(), nn.MSELoss(), (INPUTS, INPUTS[:, :4]))
    assert not stacks(mse)
    # settings that cannot be compared
    own = [objective(Own(lambda: 1)) for _ in range(8)]
    assert TorchObjective.stack(own) is None
