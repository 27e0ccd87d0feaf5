"""What a PyTorch objective can be made of: tensors, data sets, loaders, mappings."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from fedtrellis.objectives.torch_objective import TorchObjective  # noqa: E402

RNG = np.random.default_rng(5)
INPUTS = torch.tensor(RNG.standard_normal((23, 6)), dtype=torch.float32)
LABELS = torch.tensor(RNG.integers(0, 4, 23))
PAIRS = TensorDataset(INPUTS, LABELS)
cross_entropy: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs if scale is None else outputs * scale[:, None]


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": INPUTS[i], "scale": torch.tensor(2.0), "labels": LABELS[i]}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(INPUTS, LABELS, strict=True))


def objective(data: Any, **options: Any) -> TorchObjective:
    return TorchObjective(Linear(), cross_entropy, data, device="cpu", **options)


def stack_pairs(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, labels = zip(*examples, strict=True)
    return torch.stack(inputs), torch.stack(labels)


WHOLE: list[tuple[str, Callable[[], TorchObjective]]] = [
    ("data set", lambda: objective(PAIRS)),
    ("subset", lambda: objective(Subset(PAIRS, range(23)))),
    ("own collate", lambda: objective(PAIRS, collate_fn=stack_pairs)),
    ("loader", lambda: objective(DataLoader(PAIRS, batch_size=7))),
    ("shuffled", lambda: objective(DataLoader(PAIRS, 7, shuffle=True))),
    (
        "workers' collate",
        lambda: objective(DataLoader(PAIRS, 7, collate_fn=stack_pairs)),
    ),
    ("stream", lambda: objective(DataLoader(Stream(), batch_size=7))),
]


@pytest.mark.parametrize(("name", "make"), WHOLE, ids=[name for name, _ in WHOLE])
def test_every_source_is_the_mean_over_its_examples(
    name: str, make: Callable[[], TorchObjective]
) -> None:
    state = torch.random.get_rng_state()
    ours, expected = make(), objective((INPUTS, LABELS))
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


@pytest.mark.parametrize(
    "data",
    [
        {"x": INPUTS, "scale": torch.full((23,), 2.0), "labels": LABELS},
        Named(),
        DataLoader(Named(), batch_size=5),
    ],
    ids=["tensors", "data set", "loader"],
)
def test_mappings_are_keyword_arguments(data: Any) -> None:
    ours = objective(data)
    assert ours.num_examples == 23
    x = ours.initial_point()
    weight, bias = (torch.tensor(part) for part in x)
    scores = 2.0 * (INPUTS @ weight.T + bias)
    value = float(cross_entropy(scores, LABELS))
    assert ours.value(x) == pytest.approx(value, rel=1e-6)
    stacked = [np.stack([part, part]) for part in x]
    np.testing.assert_allclose(ours.values(stacked), [value, value], rtol=1e-6)
    right = float((scores.argmax(dim=1) == LABELS).float().mean())
    assert ours.metrics(x) == {"accuracy": pytest.approx(right)}
    assert ours.curvature(x, x) >= 0.0


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("data is a int", lambda: objective(7)),
    ("collate_fn is for a Dataset", lambda: objective((1, 2), collate_fn=len)),
    (
        "tensors and loaders need none",
        lambda: objective(DataLoader(PAIRS), collate_fn=stack_pairs),
    ),
    (r"keys\(\['x', 'scale', 'labels'\]\)", lambda: objective(Named(), target_key="y")),
    ("inputs has NaN", lambda: objective((INPUTS * torch.nan, LABELS))),
    ("data has 0 examples", lambda: objective(Subset(PAIRS, []))),
    (
        "the batch is <class 'tuple'>",
        lambda: objective(TensorDataset(INPUTS, INPUTS, LABELS)),
    ),
    ("inputs is a list", lambda: objective((["a"] * 23, LABELS))),
    (
        "it must have 23 of each",
        lambda: objective(
            PAIRS, collate_fn=lambda b: (b[0][0][None], b[0][1][None])
        ).value(np.zeros(28)),
    ),
    (
        "give the Dataset with its collate_fn",
        lambda: objective(
            DataLoader(
                Stream(),
                7,
                collate_fn=lambda b: (torch.ones(len(b), len(b)), LABELS[: len(b)]),
            )
        ),
    ),
]


@pytest.mark.parametrize(("message", "run"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_no_data_is_refused(message: str, run: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        run()
    assert "\n" not in str(caught.value)
