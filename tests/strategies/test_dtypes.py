"""Models of other dtypes than float64, from the client to the checkpoint."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import strategies
from clients import FedAvgGDClient, FedFWClient
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    L1Ball,
    L2Ball,
    NuclearNormBall,
    Product,
)
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.protocol import ARRAYS, MODEL
from strategies import FedAvgGD, FedFW, HyFDCA
from tests.harness import Distance, Recorder, app_of, grid_of, play
from tests.strategies import methods
from tests.strategies.methods import Method

N = 5
#: Also what is kept of an answer, which changes where two entries are about as large.
HERE = (
    *("fedavg-gd", "local-sgd", "fedprox", "fedopt", "compressed-sgd top-k"),
    *("scaffold", "projected-fedavg", "feddr", "fedgia"),
    *("fedlmo corrected", "fedlmo server", "fedlmo ef21"),
)
#: Those that have a test of their own here, and the one whose clients send numbers: its
#: differences of two values have half of float32's digits.
ELSEWHERE = {
    *("fedfw", "first-order-rfl", "zeroth-order-rfl"),
    *("naive-frank-wolfe", "zeroth-order-sgd"),
}
EVERY = pytest.mark.parametrize("name", HERE)


def test_every_method_that_takes_float32_is_here() -> None:
    kinds = (getattr(strategies, name) for name in strategies.__all__)
    takes = {kind.name for kind in kinds if "float32" in getattr(kind, "dtypes", ())}
    assert takes == {methods.EVERY[name].make().name for name in HERE} | ELSEWHERE


def value(method: Method, x: NDArray[Any]) -> float:
    everyone = method.losses[:N]
    return float(sum(loss.value(np.asarray(x, np.float64)) for loss in everyone))


@EVERY
def test_float32_ends_where_float64_does(name: str) -> None:
    method = methods.EVERY[name]
    kinds = (method, methods.of_dtype(method, "float32"))
    double, single = (kind.play(kind.grid(N), 60).model for kind in kinds)
    assert single.dtype == np.float32
    # it is not the same arithmetic, and not the start either
    assert 0.0 < np.linalg.norm(single - double) / np.linalg.norm(double) <= 1e-5
    assert value(method, single) == pytest.approx(value(method, double), rel=1e-5)


def seen(grid: Recorder) -> set[tuple[str, str]]:
    """Dtypes of what travelled, and in which record."""
    replies = [reply for sent in grid.answers.values() for reply in sent]
    return {
        (record, str(array.dtype))
        for message in (*grid.sent, *replies)
        for record in (MODEL, ARRAYS)
        if message.has_content() and record in message.content
        for array in record_arrays(message.content.array_records[record])
    }


@EVERY
@pytest.mark.parametrize(
    ("dtype", "wire"), [("float32", "float32"), ("bfloat16", "uint16")]
)
def test_both_directions_the_state_and_the_result_are_of_the_dtype(
    name: str, dtype: str, wire: str
) -> None:
    method = methods.EVERY[name]
    grid = Recorder(method.grid(N).client_app, N, encode=True)
    played = method.play(grid, 3, dtype=dtype)
    # which entries are kept travels as bits
    bits = {(ARRAYS, "uint8")} if re.search("sgd top-k|ef21", name) else set()
    assert seen(grid) == {(MODEL, wire), (ARRAYS, wire)} | bits
    assert played.used == [list(range(N))] * 3
    layout = played.strategy.broadcast.layout
    assert (
        layout.rounded(played.model).tobytes()
        == layout.rounded(played.strategy.broadcast.model).tobytes()
    )
    # half as many digits, and still downhill
    assert value(method, played.model) < value(method, method.start)


def test_a_method_that_needs_float64_says_so() -> None:
    with pytest.raises(SettingsError, match="'float32' does not fit hyfdca; allowed"):
        HyFDCA(regularization=0.1, dtype="float32")


SETS: list[tuple[Domain, tuple[int, ...]]] = [
    *((L1Ball(1.5), (12,)), (L2Ball(1.0), (12,)), (Box(-0.2, 0.4), (12,))),
    *((NuclearNormBall(2.0), (14, 9)), (BirkhoffPolytope(), (9, 9))),
    (Product([L1Ball(1.0), L2Ball(1.0)], [(5,), (7,)]), (12,)),
]


@pytest.mark.parametrize(("domain", "shape"), SETS, ids=str)
@pytest.mark.parametrize("variant", ["corrective", "plain"])
def test_frank_wolfe_in_float32(
    domain: Domain, shape: tuple[int, ...], variant: Any
) -> None:
    rng = np.random.default_rng(0)
    losses = [Distance(rng.standard_normal(shape) / 3) for _ in range(N)]
    faults = {"reply_loss": 0.1, "wipe": 0.05, "state_loss": 0.05, "seed": 5}
    app, ends = app_of(FedFWClient, losses, domain), []
    for dtype in (np.float64, np.float32):
        grid = Recorder(app, N, encode=True, **faults)
        strategy = FedFW(domain, participation=0.8, variant=variant)
        played = play(strategy, grid, domain.centre(shape).astype(dtype), 30)
        ends.append(sum(loss.value(played.model.astype(float)) for loss in losses))
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)
    assert played.model.dtype == np.float32
    assert domain.contains(played.model, 1e-6)
    # the model is, and so is whatever of an answer is as long as one
    assert {d for r, d in seen(grid) if r == MODEL} <= {"float32", "uint8", "uint16"}
    # x̄ is the mean of the x_i but for a few roundings
    points = [strategy._client_iterate(name) for name in strategy.clients]
    assert np.abs(strategy._result_point() - np.mean(points, axis=0)).max() <= 2e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_pytorch_model_of_any_dtype_learns(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    from fedtrellis.objectives.torch_objective import TorchObjective

    kind = getattr(torch, dtype)

    def loss(seed: int) -> Any:
        network = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        ).to(kind)
        X = torch.randn(40, 6, generator=torch.Generator().manual_seed(seed))
        data = X.to(kind), X.sum(1, keepdim=True).to(kind)
        return TorchObjective(network, torch.nn.functional.mse_loss, data)

    rng = np.random.default_rng(0)
    shapes = [(8, 6), (8,), (1, 8), (1,)]
    start = [0.3 * rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    parts = [loss(seed) for seed in range(3)]
    ends = []
    for encode in (False, True):
        strategy = FedAvgGD(step_size=0.05, step_schedule="constant", dtype=dtype)
        grid = grid_of(FedAvgGDClient, parts, encode=encode)
        played = play(strategy, grid, start, 30)
        ends.append(b"".join(array.tobytes() for array in played.arrays))
    assert ends[0] == ends[1]
    # what the server has is what the module computes with, to the last bit
    for array in played.arrays:
        tensor = torch.from_numpy(array)
        assert torch.equal(tensor, tensor.to(kind).to(torch.float32))
    assert parts[0].value(played.arrays) < 0.1 * parts[0].value(start)
