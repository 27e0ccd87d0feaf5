"""``flwr run`` with Ray, and its agreement with ``python sim.py``."""

import json
from pathlib import Path

import numpy as np
import pytest
from flower_process import Flower
from threadpoolctl import threadpool_limits

import sim
from fedtrellis.app.command_line import read_config
from tests.fedtrellis.wire.test_contract import PLAIN, TASKS
from tests.harness import history_of, not_daily

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]


# What runs besides every method's default: other ways of the wire, and settings that
# the comparison or so few rounds need.
MORE = {
    "fedavg, deadline": 'method="fedavg" local-deadline=60.0',
    "fedfw, plain": 'method="fedfw" fedfw.variant="plain" participation=0.6',
    "fedfw, certificate": 'method="fedfw" fedfw.certificate=true participation=0.6',
    "zeroth-order-sgd, fedkseed": 'method="zeroth-order-sgd" participation=0.6 '
    'zeroth-order-sgd.variant="fedkseed" zeroth-order-sgd.pool=100',
    "fedavg-gd, secure sums": 'method="fedavg-gd" aggregation="secure-sum"',
    "fedgia, secure sums": 'method="fedgia" aggregation="secure-sum"',
}
#: That which runs every day, with hundreds of nodes and a few rounds.
DAILY = "fedfw, plain"


def config_of(case: str, rounds: int) -> str:
    method = case.split(",")[0]
    space = sim.app.registry.methods[method].strategy.space
    plain = {k: json.dumps(v) for k, v in PLAIN.items() if k.startswith(f"{method}.")}
    parts = MORE.get(case, f'method="{method}"'), *map("=".join, plain.items())
    return f'task="{TASKS[space]}" {" ".join(parts)} seed=3 rounds={rounds}'


@pytest.mark.parametrize(
    "case", [DAILY, *not_daily(*sorted({*MORE, *sim.app.registry.methods} - {DAILY}))]
)
def test_ray_runs_as_this_process(flower: Flower, tmp_path: Path, case: str) -> None:
    nodes, count = (200, 2) if case == DAILY else (5, 8)
    config = config_of(case, count)
    output = flower.run(f'{config} results-dir="{tmp_path}"', nodes, limit=480)
    assert flower.status() == "finished:completed", output[-3000:]
    assert f"The run goes with {nodes} nodes: the whole federation" in output
    (record,) = tmp_path.iterdir()
    settings = {**sim.app.default_config(), **read_config([config])}
    experiment = sim.app.experiment(settings, nodes)
    strategy, grid = experiment.strategy(), experiment.grid(encode=True)
    with threadpool_limits(1):  # as Ray has it: BLAS adds up otherwise with more
        result = strategy.start(grid, experiment.initial_arrays(), num_rounds=count)
    found = np.load(record / "model.npz")
    for name, array in zip(found, result.arrays.to_numpy_ndarrays(), strict=True):
        np.testing.assert_array_equal(found[name], array)
    # the same messages, so the same bytes, but for the digits of node ids and times
    rounds = [line for line in history_of(record) if line["round"]]
    for line, here in zip(rounds, strategy.history, strict=True):
        for way in ("bytes_up", "bytes_down"):
            assert line[way] == pytest.approx(getattr(here, way), rel=0.03)


@pytest.mark.slow
def test_a_bad_setting_fails_before_any_round(flower: Flower, tmp_path: Path) -> None:
    output = flower.run(f'task="diggits" results-dir="{tmp_path}"', 2)
    assert "task = 'diggits' is not known (did you mean 'digits'?)" in output
    assert flower.status() == "finished:failed"
    assert not list(tmp_path.iterdir())
