"""TorchObjective against NumPy objectives, autograd, loops and torch's own SGD."""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset  # noqa: E402

from fedtrellis.objectives import MultinomialLogistic  # noqa: E402
from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402
from tests.fedtrellis.objectives.cases import FixedBatch  # noqa: E402

Array = NDArray[np.float64]
RNG = np.random.default_rng(5)
INPUTS = RNG.standard_normal((23, 6))
LABELS = RNG.integers(0, 4, 23)
DATA = (INPUTS, LABELS)
cross_entropy: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy


def seeded(*layers: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(layer() for layer in layers))


def perceptron(dtype: Any = torch.float32) -> nn.Module:
    return seeded(lambda: nn.Linear(6, 5), nn.Tanh, lambda: nn.Linear(5, 4)).to(dtype)


def objective(model: nn.Module | None = None, **options: Any) -> TorchObjective:
    data, loss = options.pop("data", DATA), options.pop("loss", cross_entropy)
    return TorchObjective(model or perceptron(), loss, data, device="cpu", **options)


def random_point(target: TorchObjective, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng([seed, 78])
    return [rng.standard_normal(shape) for shape in target.shapes]


@pytest.mark.parametrize("limit", [1, 5, 4096])
def test_a_linear_module_is_multinomial_logistic(limit: int) -> None:
    """However many examples are in a pass."""
    more: Any = {"l2": 0.3, "weight": 2.5}
    ours = objective(nn.Linear(6, 4).double(), batch_size_limit=limit, **more)
    expected = MultinomialLogistic(*DATA, 4, **more)
    W = np.random.default_rng(1).standard_normal((7, 4))
    layers = [W[:-1].T, W[-1]]  # a Linear's weight is (classes, features)
    assert ours.value(layers) == pytest.approx(expected.value(W), rel=1e-13)
    gradient, reference = ours.gradient(layers), expected.gradient(W)
    np.testing.assert_allclose(gradient[0], reference[:-1].T, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(gradient[1], reference[-1], rtol=1e-11, atol=1e-14)
    assert ours.metrics(layers) == expected.metrics(W)
    mine = ours.stochastic_gradient(layers, np.random.default_rng(3), 8)
    theirs = expected.stochastic_gradient(W, np.random.default_rng(3), 8)
    np.testing.assert_allclose(mine[0], theirs[:-1].T, rtol=1e-11, atol=1e-14)


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.a + inputs @ self.b


def test_parameters_may_have_no_axes() -> None:
    targets = INPUTS @ np.arange(6.0)
    mse, data = nn.functional.mse_loss, (INPUTS, targets)
    f = objective(Affine(), loss=mse, data=data, weight=2.0, l2=0.1)
    x = random_point(f)
    flat = f._forms.vector(x)
    # the same by hand: 2 (mean (D x − targets)² + 0.05 ‖x‖²)
    design = np.column_stack([np.ones(23), INPUTS])
    error = design @ flat - targets
    value = 2.0 * (float(np.mean(error**2)) + 0.05 * float(flat @ flat))
    slope = 2.0 * (2.0 / 23 * design.T @ error + 0.1 * flat)
    assert f.value(x) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(f.gradient(flat), slope, rtol=1e-11)
    parts = f.gradient(x)
    assert [part.shape for part in parts] == f.shapes == [(), (6,)]
    np.testing.assert_allclose(f._forms.vector(parts), slope, rtol=1e-11)
    np.testing.assert_allclose(f.values(np.stack([flat] * 2)), [value] * 2, rtol=1e-12)


def test_the_module_and_torchs_random_state_are_left_alone() -> None:
    norm = nn.BatchNorm1d(5)
    norm.running_mean = torch.linspace(-1, 1, 5)
    layers = nn.Linear(6, 5), norm, nn.Dropout(), nn.Linear(5, 4)
    model = nn.Sequential(*layers).double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    target = objective(model)
    x = random_point(target)
    x[0].flags.writeable = False  # as arrays from a Message are
    first = target.value(x)
    target.gradient(x)
    target.values([part[None] for part in x])
    assert first == target.value(x)  # no dropout
    assert first == pickle.loads(pickle.dumps(target)).value(x)  # as Ray sends it
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [4096, 10])
@pytest.mark.parametrize("net", ["perceptron", "linear", "linear, no bias"])
def test_local_steps_are_those_of_torchs_sgd(net: str, dtype: Any, limit: int) -> None:
    """Of all examples, and of a few; a linear layer's without autograd."""
    bias = net == "linear"
    make = perceptron if net == "perceptron" else lambda _: nn.Linear(6, 4, bias=bias)
    model = make(torch.float32).to(dtype)
    options: Any = {"weight": 2.0, "l2": 0.1, "batch_size_limit": limit}
    target = objective(model, loss=nn.CrossEntropyLoss(), **options)
    assert (target.closed is not None) == (net != "perceptron")
    start = target._forms.vector(target.initial_point())
    before, sizes = start.copy(), (0.5, 0.4, 0.3)
    anchors = [p.detach().clone() for p in model.parameters()]
    for rows in (tuple(range(23)), (1, 5, 7, 20)):
        size = 0 if len(rows) == 23 else len(rows)
        ends = target.local_steps(start, [*sizes], FixedBatch(rows), size, pull=0.7)
        inputs, labels = torch.tensor(INPUTS[[*rows]], dtype=dtype), LABELS[[*rows]]
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
        for step in sizes:
            optimizer.param_groups[0]["lr"] = step
            optimizer.zero_grad()
            loss = 2.0 * cross_entropy(twin(inputs), torch.tensor(labels))
            for p, anchor in zip(twin.parameters(), anchors, strict=True):
                # weight (l2/2)‖x‖² + (pull/2)‖x − start‖²
                away = (p - anchor).square().sum()
                loss = loss + 0.1 * p.square().sum() + 0.35 * away
            torch.autograd.backward(loss)
            optimizer.step()
        expected = nn.utils.parameters_to_vector(twin.parameters()).detach().numpy()
        assert start.dtype == ends.dtype == expected.dtype
        assert np.abs(ends - start).max() > 0.01
        tolerance = 1e-6 if dtype == torch.float32 else 1e-14
        np.testing.assert_allclose(ends, expected, atol=tolerance)
        np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.float64])
def test_a_model_can_compute_in_another_dtype(dtype: Any) -> None:
    target, exact = objective(dtype=dtype), objective(dtype="float64")
    x = exact._forms.vector(exact.initial_point())
    error = np.abs(target.gradient(x) - exact.gradient(x)).max()
    assert error == 0.0 if dtype is torch.float64 else 0.0 < error < 0.01
    wide = np.float64 if dtype is torch.float64 else np.float32
    assert target.initial_point()[0].dtype == wide
    # steps add up in the dtype of the point, not of the model: 100 small ones count
    moved = target.local_steps(x.astype(np.float32), [1e-5] * 100)
    assert moved.dtype == np.float32
    change = np.abs(moved - x).max()
    assert change == pytest.approx(1e-3 * np.abs(exact.gradient(x)).max(), rel=0.05)


def image_net() -> nn.Module:
    return seeded(
        lambda: nn.Conv2d(1, 3, 3),
        nn.ReLU,
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Linear(12, 4),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (6,)),
    "double": (lambda: perceptron(torch.float64), (6,)),
    "linear": (lambda: nn.Linear(6, 4).double(), (6,)),
    "convolutions": (image_net, (1, 6, 6)),
}


@pytest.mark.parametrize("net", NETS)
def test_a_cohort_is_its_objectives_one_by_one(net: str) -> None:
    make, shape = NETS[net]
    rng = np.random.default_rng(3)
    objectives: list[Any] = []
    for i, count in enumerate((4, 7) * 8):
        labels = rng.integers(0, 4, count, np.int32)  # not int64
        data = rng.standard_normal((count, *shape)), labels
        objectives.append(objective(make(), data=data, weight=1.0 + i, l2=0.01 * i))
    stacked = TorchObjective.stack(objectives)
    assert stacked is not None
    x = objectives[0]._forms.vector(objectives[0].initial_point())
    points = (x + 0.1 * rng.standard_normal((16, len(x)))).astype(x.dtype)
    tolerance: dict[str, Any] = {"rtol": 0.0, "atol": 1e-13}
    if x.itemsize == 4:
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
    pairs = list(zip(objectives, points, strict=True))
    ours, before, sizes = stacked.gradients(points), points.copy(), [0.03, 0.02]
    assert ours.dtype == x.dtype
    np.testing.assert_allclose(ours, [f.gradient(p) for f, p in pairs], **tolerance)
    steps = [f.local_steps(p, sizes, pull=0.3) for f, p in pairs]
    found = stacked.local_steps(points, sizes, pull=0.3)
    np.testing.assert_allclose(found, steps, **tolerance)
    np.testing.assert_array_equal(points, before)
    # mini-batches: three rows of each
    rows = [rng.choice(f.num_examples, 3, replace=False) for f in objectives]
    found = stacked.gradients(points, rows)
    wanted = [
        f.stochastic_gradient(p, FixedBatch(tuple(some)), 3)
        for (f, p), some in zip(pairs, rows, strict=True)
    ]
    np.testing.assert_allclose(found, wanted, **tolerance)


def test_what_differs_in_more_than_data_is_no_cohort() -> None:
    def stacks(*others: TorchObjective) -> bool:
        same = [objective() for _ in range(8)]
        return TorchObjective.stack([*same, *others]) is not None

    frozen, other = perceptron(), perceptron()
    frozen[0].requires_grad_(False)  # type: ignore[index]
    nn.init.zeros_(other[0].weight)  # type: ignore[index]
    assert stacks(objective(other))  # other weights at first
    relu = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    for different in (
        objective(relu),
        objective(frozen),
        objective(perceptron(torch.float64)),
        objective(vectorize=False),
        objective(batch_size_limit=22),
        objective(data=(INPUTS[:5], LABELS[:5])),  # too few of 5
        objective(loss=nn.MSELoss(), data=(INPUTS, INPUTS[:, :4])),
    ):
        assert not stacks(different)
    # settings that cannot be compared
    own = [objective(loss=lambda z, y: cross_entropy(z, y)) for _ in range(8)]
    assert TorchObjective.stack(own) is None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = seeded(lambda: nn.Linear(6, 4))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs if scale is None else outputs * scale[:, None]


FLOATS, CLASSES = torch.tensor(INPUTS, dtype=torch.float32), torch.tensor(LABELS)
PAIRS = TensorDataset(FLOATS, CLASSES)


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": FLOATS[i], "scale": torch.tensor(2.0), "labels": CLASSES[i]}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(FLOATS, CLASSES, strict=True))


def of_data(data: Any, **options: Any) -> TorchObjective:
    return objective(Scaled(), data=data, **options)


def pack(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, labels = zip(*examples, strict=True)
    return torch.stack(inputs), torch.stack(labels)


WHOLE: dict[str, Callable[[], TorchObjective]] = {
    "subset": lambda: of_data(Subset(PAIRS, range(23))),
    "own collate": lambda: of_data(PAIRS, collate_fn=pack),
    "shuffled": lambda: of_data(DataLoader(PAIRS, 7, shuffle=True)),
    "workers' collate": lambda: of_data(DataLoader(PAIRS, 7, collate_fn=pack)),
    "stream": lambda: of_data(DataLoader(Stream(), batch_size=7)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_source_is_the_mean_over_its_examples(name: str) -> None:
    state = torch.random.get_rng_state()
    ours, expected = WHOLE[name](), of_data((FLOATS, CLASSES))
    assert torch.equal(torch.random.get_rng_state(), state)
    x = expected.initial_point()
    assert ours.num_examples == 23
    assert ours.value(x) == pytest.approx(expected.value(x), rel=1e-6)
    assert ours.metrics(x) == expected.metrics(x)
    for part, wanted in zip(ours.gradient(x), expected.gradient(x), strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-4, atol=1e-7)
    # mini-batches of the same rows, whatever order the loader would have
    batch = ours.stochastic_gradient(x, np.random.default_rng(1), 5)
    same = expected.stochastic_gradient(x, np.random.default_rng(1), 5)
    np.testing.assert_allclose(batch[0], same[0], rtol=1e-4, atol=1e-7)


MAPPINGS = {"data set": Named(), "loader": DataLoader(Named(), batch_size=5)}


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_are_keyword_arguments(name: str) -> None:
    ours = of_data(MAPPINGS[name])
    assert ours.num_examples == 23
    x = ours.initial_point()
    weight, bias = (torch.tensor(part) for part in x)
    scores = 2.0 * (FLOATS @ weight.T + bias)
    value = float(cross_entropy(scores, CLASSES))
    assert ours.value(x) == pytest.approx(value, rel=1e-6)
    stacked = [np.stack([part, part]) for part in x]
    np.testing.assert_allclose(ours.values(stacked), [value, value], rtol=1e-6)
    right = float((scores.argmax(dim=1) == CLASSES).float().mean())
    assert ours.metrics(x) == {"accuracy": pytest.approx(right)}
    assert ours.curvature(x, x) >= 0.0


def test_attention_has_a_curvature_and_missing_labels_are_no_mistakes() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (2, 2)), layer.double(), nn.Flatten())
    X, y = torch.randn(17, 4, dtype=torch.float64), torch.arange(17) % 4
    y[:5] = -100
    f = TorchObjective(model, nn.CrossEntropyLoss(), (X, y), device="cpu")
    x = f.initial_point()
    d = [np.full_like(part, 0.1) for part in x]
    h, pairs = 1e-3, list(zip(x, d, strict=True))
    ahead, behind = ([p + s * q for p, q in pairs] for s in (h, -h))
    expected = (f.value(ahead) - 2.0 * f.value(x) + f.value(behind)) / h**2
    assert f.curvature(x, d) == pytest.approx(expected, rel=1e-3)
    right = (model(X).argmax(dim=1) == y)[5:].double().mean().item()
    assert f.metrics(x) == {"accuracy": pytest.approx(right)}


NO_STATISTICS = nn.Sequential(
    nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False)
)
NEW = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
MIXED = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4).double())


def sum_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def first_only(batch: Any) -> Any:
    return batch[0][0][None], batch[0][1][None]


X = np.zeros(59)
REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("no parameter", lambda: objective(nn.Linear(6, 4).requires_grad_(False))),
    ("at least 1 of each", lambda: objective(data=(INPUTS[:0], LABELS[:0]))),
    ("inputs has NaN", lambda: objective(data=(INPUTS * np.nan, LABELS))),
    ("labels is a scalar", lambda: objective(data=(INPUTS, np.float64(1.0)))),
    ("the batch is <class 'tuple'>", lambda: objective(data=(INPUTS,))),
    ("l2 is -1", lambda: objective(l2=-1)),
    (r"loss returned shape \(23,\)", lambda: objective(loss=sum_loss).value(X)),
    ("x has shapes", lambda: objective().gradient([X[:3]])),
    ("normalises by the statistics of a batch", lambda: objective(NO_STATISTICS)),
    ("'1' has the running statistics that it", lambda: objective(NEW)),
    ("has a lazy layer", lambda: objective(nn.LazyLinear(4))),
    ("of torch.float32, torch.float64; they must", lambda: objective(MIXED)),
    ("dtype is 'int8'; it must be one of", lambda: objective(dtype="int8")),
    *(  # one that PyTorch does not know, and one that no machine has
        (f"device is '{d}'", partial(TorchObjective, MIXED, sum_loss, DATA, device=d))
        for d in ("tpu", "cuda:99")
    ),
    ("data is a int", lambda: of_data(7)),
    ("data has 0 examples", lambda: of_data(Subset(PAIRS, []))),
    ("collate_fn is for a Dataset", lambda: of_data((1, 2), collate_fn=len)),
    (r"keys\(\['x', 'scale', 'labels'\]\)", lambda: of_data(Named(), target_key="y")),
    ("have 23 of each", lambda: of_data(PAIRS, collate_fn=first_only).value(X[:28])),
]


@pytest.mark.parametrize(("message", "run"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(message: str, run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        run()
    assert "\n" not in str(caught.value)
