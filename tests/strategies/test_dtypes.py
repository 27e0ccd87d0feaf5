"""Models of other dtypes than float64, from the client to the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from benchmarks.traffic import flower_fedavg
from clients import (
    FedAvgGDClient,
    FedDRClient,
    FedGiAClient,
    FedProxClient,
    LocalSGDClient,
    ProjectedFedAvgClient,
)
from fedtrellis import LocalGrid
from fedtrellis.domains import L2Ball
from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.protocol import ARRAYS, MODEL
from strategies import (
    FedAvgGD,
    FedDR,
    FedGiA,
    FedProx,
    HyFDCA,
    LocalSGD,
    ProjectedFedAvg,
)
from tests.harness import Stop, grid_of, play

P, N = 12, 5
BALL = L2Ball(1.0)


def losses(size: int = P) -> list[LeastSquares]:
    rng = np.random.default_rng(3)
    truth = rng.standard_normal(size)
    made = []
    for _ in range(N):
        A = rng.standard_normal((3 * size, size))
        b = A @ truth + 0.3 * rng.standard_normal(3 * size)
        made.append(LeastSquares(A, b, scale="half-mean"))
    return made


# rounds until a run's error is that of its arithmetic
METHODS: dict[str, tuple[Callable[..., Any], type[Any], int]] = {
    "fedavg-gd": (
        lambda **o: FedAvgGD(step_size=0.1, step_schedule="constant", **o),
        FedAvgGDClient,
        60,
    ),
    "local-sgd": (
        lambda **o: LocalSGD(step_size=0.05, batch_fraction=0.5, seed=1, **o),
        LocalSGDClient,
        60,
    ),
    "fedprox": (
        lambda **o: FedProx(step_size=0.1, proximal_weight=0.5, **o),
        FedProxClient,
        60,
    ),
    "projected-fedavg": (
        lambda **o: ProjectedFedAvg(BALL, local_steps=2, local_step_size=0.1, **o),
        ProjectedFedAvgClient,
        60,
    ),
    "feddr": (
        lambda **o: FedDR(
            BALL, proximal_step=1.0, local_step_size=0.2, relaxation=1.0, **o
        ),
        FedDRClient,
        100,
    ),
    "fedgia": (
        lambda **o: FedGiA(sigma_scale=1.0, tolerance=0.0, seed=2, **o),
        FedGiAClient,
        100,
    ),
}
EVERY = pytest.mark.parametrize("name", METHODS)


def run(name: str, dtype: Any, rounds: int = 0, size: int = P, **options: Any) -> Any:
    make, client, enough = METHODS[name]
    faults = options.pop("faults", {})
    grid = grid_of(client, losses(size), encode=options.pop("encode", False), **faults)
    strategy = make(**options)
    return play(strategy, grid, np.zeros(size, dtype), rounds or enough)


@EVERY
def test_float32_ends_where_float64_does(name: str) -> None:
    double, single = run(name, np.float64), run(name, np.float32)
    assert single.model.dtype == np.float32
    away = np.linalg.norm(single.model - double.model) / np.linalg.norm(double.model)
    # it is not the same arithmetic, and not the start either
    assert 0.0 < away <= 1e-5
    everyone = losses()
    before, after = (
        sum(loss.value(np.asarray(m, np.float64)) for loss in everyone)
        for m in (double.model, single.model)
    )
    assert after == pytest.approx(before, rel=1e-5)


class Recording(LocalGrid):
    """Notes down the dtypes and bytes of what travels."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: set[tuple[str, str]] = set()

    def _deliver(self, message: Any) -> None:
        self._note(message.content, MODEL)
        super()._deliver(message)

    def _post(self, reply: Any, suffix: str) -> None:
        if reply.has_content():
            self._note(reply.content, ARRAYS)
        super()._post(reply, suffix)

    def _note(self, content: Any, record: str) -> None:
        if record in content:
            for array in record_arrays(content[record]):
                self.seen.add((record, str(array.dtype)))


@EVERY
@pytest.mark.parametrize(
    ("dtype", "wire"),
    [("float32", "float32"), ("float16", "float16"), ("bfloat16", "uint16")],
)
def test_both_directions_the_state_and_the_result_are_of_the_dtype(
    name: str, dtype: str, wire: str
) -> None:
    make, client, _ = METHODS[name]
    grid = Recording(grid_of(client, losses()).client_app, N, encode=True)
    played = play(make(dtype=dtype), grid, np.zeros(P), 3)
    assert grid.seen == {(MODEL, wire), (ARRAYS, wire)}
    assert played.used == [list(range(N))] * 3
    layout = played.strategy.broadcast.layout
    assert (
        layout.rounded(played.model).tobytes()
        == layout.rounded(played.strategy.broadcast.model).tobytes()
    )
    # half as many digits, and still downhill
    everyone = losses()
    assert sum(f.value(played.model) for f in everyone) < sum(
        f.value(np.zeros(P)) for f in everyone
    )


@EVERY
def test_a_resumed_float32_run_is_the_whole_one_to_the_last_bit(
    name: str, tmp_path: Path
) -> None:
    faults = {"reply_loss": 0.2, "wipe": 0.1, "seed": 4}
    whole = run(name, np.float32, 8, faults=faults)
    path = tmp_path / "checkpoint"
    cut = run(name, np.float32, 8, faults=faults, checkpoint=path, callbacks=[Stop(4)])
    assert len(cut.models) == 4
    with np.load(path) as file:
        assert file["model"].dtype == np.float32
    rest = run(name, np.float32, 8, faults=faults, resume=path)
    assert rest.model.tobytes() == whole.model.tobytes()
    encoded = run(name, np.float32, 8, faults=faults, encode=True)
    assert encoded.model.tobytes() == whole.model.tobytes()
    with pytest.raises(SettingsError, match="its dtype is float32, this run's is"):
        run(name, np.float64, 8, faults=faults, resume=path)


def test_an_answer_of_another_dtype_is_refused_with_its_reason() -> None:
    class Doubles(FedAvgGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            arrays, *rest = super().fit(parameters, config)
            if self.client_id == "0":
                arrays = [np.asarray(arrays[0], np.float64)]
            return arrays, *rest

    grid = grid_of(Doubles, losses())
    played = play(FedAvgGD(step_size=0.1), grid, np.zeros(P, np.float32), 1)
    assert played.used == [[1, 2, 3, 4]]
    (reason,) = [why for _, why in played.strategy.history[0].rejected]
    assert reason == (
        "the answer has shape (12,) and dtype float64, expected (12,) and float32"
    )


def test_a_method_that_needs_float64_says_so() -> None:
    with pytest.raises(SettingsError, match="'float32' does not fit hyfdca; allowed"):
        HyFDCA(regularization=0.1, dtype="float32")


BYTES = ("fedavg-gd", "local-sgd", "projected-fedavg")


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_travels_in_as_many_bytes_as_with_flower(name: str, dtype: Any) -> None:
    p, rounds = 100_000, 2

    class Pull:
        num_examples = 10

        def gradient(self, x: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(x - np.ones_like(x))

        def stochastic_gradient(self, x: NDArray[Any], *_: Any) -> NDArray[Any]:
            return self.gradient(x)

    make, client, _ = METHODS[name]
    start = ArrayRecord([np.full(p, 0.5, dtype)])
    grids = []
    for strategy, app in (
        (make(), grid_of(client, [Pull()] * N).client_app),
        flower_fedavg([Pull()] * N),
    ):
        grid = LocalGrid(app, N, encode=True)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
        grids.append(grid)
    ours, flowers = grids
    # the introductions of round 1 are among ours
    assert ours.bytes_down <= 1.02 * flowers.bytes_down
    assert ours.bytes_up <= 1.02 * flowers.bytes_up
    assert ours.bytes_up >= N * rounds * p * np.dtype(dtype).itemsize
