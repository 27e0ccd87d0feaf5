"""What every method keeps, whatever is lost, late, repeated, spoilt or forgotten.

The methods and their small problems are the lines of ``methods.py``. That a method's
rounds are its paper's stands in the file of that method.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.protocol import ARRAYS, MODEL
from tests.harness import (
    Played,
    Recorder,
    Stop,
    distance,
    in_part,
    node_states,
    not_daily,
)
from tests.strategies.methods import EVERY, EVERYTHING, METHODS, A, B, P, of_dtype
from tests.strategies.soak_runs import chaos, evaluates, mirrored, undisturbed

#: What is replayed along a client's random directions is added in another order.
NEAR = {"zeroth-order-rfl": 1e-10, "zeroth-order-rfl dense": 1e-10}
#: FedFW's server replays the steps of each client, one by one or since a checkpoint.
SUMMED = [name for name in EVERY if re.match("fedfw (plain|augm|stoch)", name)]
NARROW = [name for name, m in EVERY.items() if "float32" in m.make().dtypes]


def check_same(
    one: Played[Any], other: Played[Any], near: float, first: int = 0
) -> None:
    """The same answers used, models, and states on both sides."""
    assert one.used[first:] == other.used
    for mine, theirs in zip(one.models[first:], other.models, strict=True):
        assert mine.dtype == theirs.dtype
        assert distance(mine, theirs) <= near
    names = one.strategy.clients
    assert names == other.strategy.clients
    for name in names:
        a, b = (run.strategy.client_state(name) for run in (one, other))
        assert a.keys() == b.keys()
        # the server replays in float64, and after a checkpoint in another order
        assert all(distance(a[key], b[key]) <= max(10 * near, 1e-12) for key in a)
    states = [node_states(run.strategy, run.grid) for run in (one, other)]
    # who was wiped, and has not been asked since, has nothing
    for name in states[0].keys() & states[1].keys():
        a, b = (state[name] for state in states)
        assert a.keys() == b.keys()
        assert all(distance(a[key], b[key]) <= 10 * near for key in a)
    if one.strategy.stateful and one.used[-1]:
        assert states[0].keys() & states[1].keys() >= set(map(str, one.used[-1]))


@pytest.mark.parametrize("encode", [True, *not_daily(False)])
@pytest.mark.parametrize("name", EVERY)
def test_the_unheard_were_not_asked(name: str, encode: bool, tmp_path: Path) -> None:
    """Under chaos; and a client has lost nothing but what the method says."""
    options: dict[str, Any] = {"participation": 1.0 if encode else 0.8}
    # evaluations in between are lost and spoilt as well
    every = 3 if encode and evaluates(name) else 0
    more = {**options, "client_evaluate_every": every, "encode": encode}
    ran, conduct = chaos(name, 40, tmp_path, seed=1 + encode, **more)
    assert all({**ran.grid.fault_counts, **conduct.counts, "wipe": 1}.values())
    assert len({len(used) for used in ran.used}) > 3
    for record in ran.strategy.history[1:]:  # before that some ask again
        assert every or record.sampled - record.used == len(record.rejected)
    # the run is that in which nobody else was asked, and nothing went wrong
    check_same(ran, undisturbed(name, ran, conduct, **options), NEAR.get(name, 1e-13))
    assert distance(ran.models[-1], ran.models[0]) > 1e-3


@pytest.mark.parametrize("dtype", ["float64", *not_daily("float32")])
@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_run_is_bit_equal(name: str, dtype: str, tmp_path: Path) -> None:
    """Under all faults; and so is one whose messages pass as bytes, or in cohorts."""
    if dtype not in EVERY[name].make().dtypes:
        pytest.skip("not a model of that")
    method, path = of_dtype(EVERY[name], dtype), tmp_path / "checkpoint"

    def run(encode: bool = False, batched: bool = False, **options: Any) -> Played[Any]:
        grid = method.grid(seed=2, encode=encode, batched=batched, **EVERYTHING)
        return method.play(grid, 16, participation=0.8, **options)

    whole = run()
    check_same(whole, run(encode=True), 0.0)
    # a wave's clients at once are its clients one by one
    if dtype == "float64" or name not in SUMMED:
        check_same(whole, run(batched=True), 1e-12 if dtype == "float64" else 1e-5)
    if dtype == "float64":
        states = node_states(whole.strategy, whole.grid)
        assert bool(states) == whole.strategy.stateful
        assert mirrored(whole.strategy, states) < 1e-9
    run(checkpoint=path, callbacks=[Stop(9)])
    rest = run(resume=path)
    near = 1e-12 if name in SUMMED and dtype == "float64" else 0.0
    check_same(whole, rest, near, 9)
    assert len(rest.strategy.history) == 16
    for mine, theirs in zip(whole.watch.metrics[9:], rest.watch.metrics, strict=True):
        assert mine == theirs
    other = {"float64": "float32", "float32": "float64"}[dtype]
    if other in method.make().dtypes and "fedkseed" not in name:  # x is not its model
        again = of_dtype(method, other)
        with pytest.raises(SettingsError, match=f"its dtype is {dtype}, this run's is"):
            again.play(again.grid(), 16, resume=path)


def dtypes_of(grid: Recorder, record: str) -> set[str]:
    """Dtypes of the model's and the answers' arrays that travelled."""
    replies = [reply for sent in grid.answers.values() for reply in sent]
    return {
        str(array.dtype)
        for message in (*grid.sent, *replies)
        if message.has_content() and record in message.content
        for array in record_arrays(message.content.array_records[record])
    }


@pytest.mark.parametrize("name", in_part(NARROW, 3))
def test_float32_ends_where_float64_does(name: str) -> None:
    """And what travels is as narrow as the model, which is worth half the digits."""
    double, single = (of_dtype(EVERY[name], d) for d in ("float64", "float32"))
    ends = [method.play(method.grid(5), 60).model for method in (double, single)]
    away = np.linalg.norm(ends[1] - ends[0]) / np.linalg.norm(ends[0])
    # it is not the same arithmetic, and not the start either
    assert ends[1].dtype == np.float32
    assert 0.0 < away <= 1e-5
    assert distance(ends[0], double.start) > 1e-3
    # scales, shares of a change and a pool's sums are numbers of their own
    if re.search("fw|wolfe|rfl|-sgd$|kseed", name):
        return
    single.play(grid := single.grid(5, Recorder, encode=True), 3)
    assert "float32" in dtypes_of(grid, MODEL)
    # which entries are kept travels as bits
    assert dtypes_of(grid, ARRAYS) <= {"float32", "uint8"}


@pytest.mark.parametrize("name", [n for n in EVERY if not n.startswith("hy")])
def test_a_checkpoint_from_before_any_answer(name: str, tmp_path: Path) -> None:
    """What is settled by the first answers is settled after it."""
    method, path = EVERY[name], tmp_path / "checkpoint"

    def run(**options: Any) -> Played[Any]:
        grid = method.grid(3, request_loss=1.0)
        return method.play(grid, 5, last_fault=2, **options)

    whole = run()
    assert [len(used) for used in whole.used] == [0, 0, 3, 3, 3]
    with pytest.raises(RuntimeError, match="no usable answer"):
        run(checkpoint=path, callbacks=[Stop(2)])
    grid = method.grid(3)  # who was asked in vain has kept nothing
    check_same(whole, method.play(grid, 5, resume=path), NEAR.get(name, 0.0), 2)


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides_everything(name: str) -> None:
    """Node ids and the order of nodes change nothing; the seed does."""
    method = EVERY[name]

    def run(seed: int, grid: Any = ()) -> Played[Any]:
        made = method.grid(**dict(grid))
        return method.play(made, 10, seed=seed, participation=0.5)

    first, again, other = run(3), run(3, {"seed": 2}), run(4)
    assert np.array_equal(first.models, again.models)
    assert not np.array_equal(first.models[-1], other.models[-1])


#: How many points each method of a loss is given.
POINTS = {"lipschitz": 0, "hessian_bound": 0, "curvature": 2}
POINTS |= dict.fromkeys(("value", "gradient", "stochastic_gradient"), 1)


class Layered:
    """The loss of layers, the first a number, that a vector has."""

    def __init__(self, flat: Any) -> None:
        self.flat, self.num_examples = flat, flat.num_examples

    def __getattr__(self, name: str) -> Any:
        if name not in POINTS:
            raise AttributeError(name)

        def call(*given: Any) -> Any:
            layers = [x if isinstance(x, list) else [x] for x in given[: POINTS[name]]]
            flat = [np.concatenate([*map(np.ravel, x)]) for x in layers]
            g = getattr(self.flat, name)(*flat, *given[len(flat) :])
            if "gradient" not in name:
                return g
            if g.size == 1:  # a NumPy scalar for a layer which has no axes
                return g[0]
            split = [g[0], g[1:5].reshape(2, 2), g[5:]]
            assert [x.shape for x in split] == [x.shape for x in layers[0]]
            return split

        return call


#: FedLMO looks at layers, a pool of directions is no vector of the model's.
VECTORS = [
    name
    for name, method in EVERY.items()
    if method.losses is METHODS["fedavg-gd"].losses
    and not re.match("fedlmo|.*fedkseed", name)
]


@pytest.mark.parametrize("p", [1, P])
@pytest.mark.parametrize("name", VECTORS)
def test_layers_and_single_numbers_are_entries_of_one_vector(name: str, p: int) -> None:
    """Also of clients that lose their states, and in what these say of the losses."""
    data = zip(A[:3], B[:3], strict=True)
    losses = [LeastSquares(a[:, :p], b, scale="half-mean") for a, b in data]
    flat = replace(EVERY[name], losses=losses, start=np.linspace(0.25, 0.5, p))
    start: Any = [np.array(flat.start[0])]
    if p > 1:
        start += [flat.start[1:5].reshape(2, 2), flat.start[5:]]
    layered = replace(flat, losses=[Layered(f) for f in flat.losses], start=start)
    runs = []
    for method in (flat, layered):
        grid = method.grid(3, encode=True, wipe=0.2)
        runs.append(method.play(grid, 6, client_evaluate_every=2))
    vector, layers = (run.arrays for run in runs)
    assert [layer.shape for layer in layers] == [layer.shape for layer in start]
    assert distance(vector[0], flat.start) > 0.0
    # values of many points, and bounds, are summed in another order where they can be
    near = 1e-8 if "zeroth" in name else 1e-12 if name == "fedgia" else 0.0
    assert distance(np.concatenate([v.ravel() for v in layers]), vector[0]) <= near
    for one, other in zip(*(run.strategy.history for run in runs), strict=True):
        evaluated = pytest.approx(one.client_evaluation, rel=near, abs=0.0)
        assert other.client_evaluation == evaluated
        assert not one.rejected
        assert not other.rejected


class Spoilt:
    """A loss whose numbers are none."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.loss, name)
        if not re.match("values?$|(stochastic_)?gradient$", name):
            return found
        return lambda *given, **more: np.nan * found(*given, **more)


@pytest.mark.parametrize("name", [n for n in EVERY if not n.startswith("hy")])
def test_a_client_whose_numbers_are_none_is_left_out_with_a_reason(name: str) -> None:
    own = EVERY[name].losses[:4]
    method = replace(EVERY[name], losses=[*own[:3], Spoilt(own[3])])
    ran = method.play(method.grid(4), 3)
    assert ran.used == [[0, 1, 2]] * 3
    assert np.isfinite(ran.model).all()
    for record in ran.strategy.history:
        ((who, why),) = record.rejected
        assert who == "3"
        assert re.search("finite|not a number|is nan|diverged", why)
