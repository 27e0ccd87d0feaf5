"""What a project that comes from Flower may expect: the plug-in page's table."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.client.mod import secagg_mod
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
)

import strategies
from clients import FedAvgGDClient
from fedtrellis import LocalGrid, Progress, client_app
from fedtrellis.domains import L1Ball
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from strategies import FedAvgGD, FedFW
from tests.harness import Distance, number_of
from tests.strategies.methods import EVERY, P

START = ArrayRecord([np.zeros(P)])
CENTRES = np.random.default_rng(0).normal(size=(4, P))


class Loss(Distance):
    """½‖x − c_i‖², of i + 1 examples."""

    def __init__(self, index: int) -> None:
        super().__init__(CENTRES[index])
        self.num_examples = index + 1


def grid(client: Any = FedAvgGDClient, mods: Any = None) -> LocalGrid:
    def client_fn(context: Any) -> Any:
        return client(context, Loss(number_of(context)))

    return LocalGrid(client_app(client_fn, mods=mods), 4)


def model(strategy: Any, on: LocalGrid | None = None, rounds: int = 3, **m: Any) -> Any:
    result = strategy.start(on or grid(), START, rounds, **m)
    return record_arrays(result.arrays)[0]


PLAIN: dict[str, Any] = {"step_size": 0.1, "local_steps": 2}


def test_rounds_are_logged_once(logged: list[str]) -> None:
    for callbacks in ([], [Progress()]):
        logged.clear()
        evaluated = MetricRecord({"loss": 0.5})
        strategy = FedAvgGD(**PLAIN, callbacks=callbacks)
        model(strategy, evaluate_fn=lambda t, a, found=evaluated: found)
        lines = [line for line in logged if line.startswith("round ")]
        assert [line.split()[1] for line in lines] == ["0/3", "1/3", "2/3", "3/3"]
        assert all("  loss 0.5  " in line for line in lines)
        assert lines[3].startswith("round 3/3  4 of 4 used  ")


@pytest.mark.parametrize(
    "hook",
    ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"],
)
def test_parts_of_flowers_loop_cannot_be_called(hook: str) -> None:
    strategy = FedAvgGD(**PLAIN)
    model(strategy)
    with pytest.raises(RuntimeError, match="FedAvgGD has a loop and messages of its"):
        getattr(strategy, hook)(1, START, ConfigRecord(), grid())


def test_the_rest_of_start_is_as_in_flower() -> None:
    seen: dict[str, list[Any]] = {"lr": [], "fold": [], "timeout": []}

    class Client(FedAvgGDClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            seen["lr"].append(config["lr"])
            assert config["num-clients"] == 4
            return super().fit(parameters, config)

        def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
            seen["fold"].append(config["fold"])
            return super().evaluate(parameters, config)

    class Timed(FedAvgGD):
        def run_round(self, *asked: Any) -> Any:
            seen["timeout"].append(asked[-1])
            return super().run_round(*asked)

    configs: dict[str, Any] = {
        "train_config": ConfigRecord({"lr": 0.25, "step-size": 1e9}),
        "evaluate_config": ConfigRecord({"fold": 2}),
    }
    strategy = Timed(**PLAIN, client_evaluate_every=3)
    found = model(strategy, grid(Client), timeout=123.0, **configs)
    # the method's own entries count
    assert np.array_equal(found, model(FedAvgGD(**PLAIN)))
    # clients evaluate before round 1, too
    assert seen == {"lr": [0.25] * 12, "fold": [2] * 8, "timeout": [123.0] * 3}


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
def test_mods_that_look_on_work(mod: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        seen = model(FedAvgGD(**PLAIN), grid(mods=[mod]))
    assert np.array_equal(seen, model(FedAvgGD(**PLAIN)))
    # they say what they saw: a message a client and round, at least
    assert sum(record.module == "comms_mods" for record in caplog.records) >= 12


@pytest.mark.parametrize(
    "mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(1, 1, 1, 1), secagg_mod]
)
def test_mods_that_perturb_plain_arrays_are_refused(mod: Any) -> None:
    with pytest.raises(SettingsError, match="which clips or perturbs"):
        grid(mods=[mod])


def test_wrappers_stop_before_anything_is_sent() -> None:
    on = grid()
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvgGD(**PLAIN), 1.0, 1.0, 4)
    with pytest.raises(RuntimeError, match="FedAvgGD has a loop and messages of its"):
        wrapped.start(on, START, 3)
    assert on._handled == 0


_WHOLE = {"batch_fraction": 1.0, "server_momentum": 0.0}
#: The methods whose clients can weigh by their examples, and their exact steps.
WEIGHED: dict[str, dict[str, Any]] = {
    "fedavg-gd": {},
    "fedavg": {"batch_fraction": 1.0},
    "local-sgd": {"batch_fraction": 1.0},
    "fedprox": {},
    "fedopt": _WHOLE,
    "compressed-sgd top-k": {**_WHOLE, "kept_fraction": 1.0},
    "projected-fedavg": {},
    "zeroth-order-sgd": {"step_size": 0.3, "smoothing": 1e-7, "samples": 40},
}


@pytest.mark.parametrize("name", WEIGHED)
def test_clients_weigh_by_their_examples_where_that_is_said(name: str) -> None:
    options = {"client_weights": "examples", **WEIGHED[name]}
    if name.split("-")[0] not in ("projected", "zeroth"):
        options["step_schedule"] = "constant"
    found = model(EVERY[name].make(**options), grid(EVERY[name].client), rounds=100)
    # the minimum of Σ d_i f_i / Σ d_i, d_i = 1, 2, 3, 4
    expected = np.average(CENTRES, axis=0, weights=[1, 2, 3, 4])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weights_by_examples_are_refused_where_they_mean_nothing() -> None:
    named = {name.split()[0] for name in WEIGHED}
    methods = [getattr(strategies, name) for name in strategies.__all__]
    sums = [cls for cls in methods if getattr(cls, "needs", None) == "sum"]
    assert {cls.name for cls in sums} == named

    def weighed(cls: Any = FedAvgGD, *given: Any, **options: Any) -> Any:
        return cls(*given, client_weights="examples", **options)

    with pytest.raises(SettingsError, match=r"'examples' does not apply to fedfw; al"):
        weighed(FedFW, L1Ball(1.0))
    with pytest.raises(SettingsError, match="beside aggregation = 'median', with"):
        weighed(aggregation="median")
    app = client_app(lambda context: FedAvgGDClient(context, Nameless()))
    with pytest.raises(SettingsError, match=r"client 0 declared none; its objective"):
        model(weighed(**PLAIN), LocalGrid(app, 2))


class Nameless:
    """Without a word on its examples."""

    def gradient(self, x: Any) -> Any:
        return x
