"""What a project that comes from Flower may expect: the plug-in page's table."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.client import mod as older
from flwr.client.mod import secagg_mod
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as mods_of
from flwr.serverapp import strategy as flowers

import clients
import strategies
from clients import FedAvgGDClient, FedProxClient
from fedtrellis import Callback, LocalGrid, Progress, client_app
from fedtrellis.domains import L1Ball
from fedtrellis.server.callbacks import Call
from fedtrellis.server.secure_sum import SecureSum
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from strategies import FedAvgGD, FedFW, FedProx
from tests.harness import Distance, number_of, refused
from tests.strategies.methods import EVERY, P

START = ArrayRecord([np.zeros(P)])
CENTRES = np.random.default_rng(0).normal(size=(4, P))


class Loss(Distance):
    """½‖x − c_i‖², of i + 1 examples."""

    def __init__(self, index: int) -> None:
        super().__init__(CENTRES[index])
        self.num_examples = index + 1


def grid(client: Any = FedAvgGDClient, mods: Any = None, **options: Any) -> LocalGrid:
    def client_fn(context: Any) -> Any:
        return client(context, Loss(number_of(context)))

    return LocalGrid(client_app(client_fn, mods=mods), 4, **options)


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


def test_parts_of_flowers_loop_cannot_be_called_nor_wrapped() -> None:
    on, strategy = grid(), FedAvgGD(**PLAIN)
    for hook in ("aggregate_train", "configure_evaluate", "aggregate_evaluate"):
        with pytest.raises(RuntimeError, match="FedAvgGD has a loop and messages of"):
            getattr(strategy, hook)(1, START, ConfigRecord(), on)
    wrapped = flowers.DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 4)
    with pytest.raises(RuntimeError, match="FedAvgGD has a loop and messages of its"):
        wrapped.start(on, START, 3)
    assert on._handled == 0


def test_the_rest_of_start_is_as_in_flower(caplog: pytest.LogCaptureFixture) -> None:
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
    strategy = Timed(**PLAIN, client_evaluate_every=4)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = model(strategy, grid(Client), timeout=123.0, **configs)
    assert caplog.text.count("has lr, which no client of fedtrellis reads: step") == 1
    # the method's own entries count
    assert np.array_equal(found, model(FedAvgGD(**PLAIN)))
    # clients evaluate before round 1, too
    assert seen == {"lr": [0.25] * 12, "fold": [2] * 8, "timeout": [123.0] * 3}
    # and after the round in which a callback stops the run
    ends = Call(lambda record: record.round == 2)
    stopped = FedAvgGD(**PLAIN, client_evaluate_every=4, callbacks=[ends])
    model(stopped, grid(Client), **configs)
    assert [bool(r.client_evaluation) for r in stopped.history] == [True, False, True]
    assert stopped.history[2].bytes_up > strategy.history[2].bytes_up


@pytest.mark.parametrize("mod", [mods_of.message_size_mod, mods_of.arrays_size_mod])
def test_mods_that_look_on_work(mod: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        seen = model(FedAvgGD(**PLAIN), grid(mods=[mod]))
    assert np.array_equal(seen, model(FedAvgGD(**PLAIN)))
    # they say what they saw: a message a client and round, at least
    assert sum(record.module == "comms_mods" for record in caplog.records) >= 12


NORM = 0.25
CLIPPED = ConfigRecord({"clipping_norm": NORM})
STEPS: dict[str, Any] = {"step_size": 0.1, "step_schedule": "constant"}


def clipped_rounds(norms: list[float], steps: int = 5) -> tuple[Any, list[float]]:
    """FedAvg with full gradients, a loop: x, and the share of changes that are cut."""
    x, bits = np.zeros(P), []
    for norm in norms:
        # x_i − x after so many steps of ½‖x − c_i‖²
        changes = (1 - 0.9**steps) * (CENTRES - x)
        sizes = np.linalg.norm(changes, axis=1)
        bits.append(float((sizes > norm).mean()))
        shares = np.minimum(1.0, norm / sizes)
        x = x + (shares[:, None] * changes).mean(axis=0)
    return x, bits


@pytest.mark.parametrize("way", ["direct", "encode", "batched"])
def test_fixed_clipping_is_that_of_a_plain_loop(way: str) -> None:
    options = {way: True} if way != "direct" else {}
    others = [mods_of.message_size_mod] if way == "batched" else []
    on = grid(clients.FedAvgClient, [*others, mods_of.fixedclipping_mod], **options)
    strategy = strategies.FedAvg(**STEPS, batch_fraction=1.0)
    found = model(strategy, on, 3, train_config=CLIPPED)
    np.testing.assert_allclose(found, clipped_rounds([NORM] * 3)[0], atol=1e-12)


def test_adaptive_clipping_tells_the_share_that_it_cut() -> None:
    config, norms = ConfigRecord({"clipping_norm": 0.8}), [0.8]

    class Adaptive(Callback):
        def on_round(self, strategy: Any, record: Any) -> None:
            # C ← C exp(0.2 (b − ½)), with b the share that was cut
            factor = math.exp(0.2 * (record.train["norm-bit"] - 0.5))
            norms.append(config["clipping_norm"] * factor)  # type: ignore[operator]
            config["clipping_norm"] = norms[-1]

    strategy = FedProx(**STEPS, proximal_weight=0.0, callbacks=[Adaptive()])
    on = grid(FedProxClient, [mods_of.adaptiveclipping_mod])
    found = model(strategy, on, 6, train_config=config)
    expected, bits = clipped_rounds(norms[:6])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert [record.train["norm-bit"] for record in strategy.history] == bits
    assert len(set(bits)) > 1


@pytest.mark.parametrize("way", ["mean", SecureSum(exposed="accept")])
def test_local_noise_has_the_mods_deviation_also_in_secure_sums(way: Any) -> None:
    mod = mods_of.LocalDpMod(NORM, NORM, 2.0, 1e-3)
    sigma = NORM * np.sqrt(2 * np.log(1.25 / 1e-3)) / 2.0
    np.random.seed(1)  # noqa: NPY002, which the mod draws from
    strategy = strategies.FedAvg(**STEPS, batch_fraction=1.0, aggregation=way)
    ran = [model(strategy, grid(mods=[mod]), 1) for _ in range(20)]
    off = np.std(ran - clipped_rounds([NORM])[0])
    assert 0.8 < off / (sigma / 2) < 1.2  # a mean of four


@pytest.mark.parametrize(
    "mod", [secagg_mod, older.fixedclipping_mod, older.LocalDpMod(1, 1, 1, 1)]
)
def test_mods_for_other_messages_are_refused(mod: Any) -> None:
    refused(
        "takes a message.s arrays for the model; of those", lambda: grid(mods=[mod])
    )


def test_mods_that_change_models_are_refused_elsewhere() -> None:
    def stops(why: str, strategy: Any, config: Any = CLIPPED) -> None:
        client = getattr(clients, f"{type(strategy).__name__}Client")
        on = grid(client, [mods_of.fixedclipping_mod])
        with pytest.raises((RuntimeError, SettingsError), match=why):
            model(strategy, on, train_config=config)

    other = "fixedclipping_mod, and ScaffoldClient sends something else than a model"
    stops(other, strategies.Scaffold(**STEPS))
    stops("clipping_norm = None must be above 0", FedAvgGD(**STEPS), None)
    stops("FedAvgGDClient fit_lipschitz answers unchanged: .*step_size", FedAvgGD())


def test_a_client_of_flowers_ends_our_strategy_with_an_error() -> None:
    """The reverse is a line of the cookbook."""
    app = ClientApp()
    app.train()(lambda message, context: Message(message.content, reply_to=message))
    with pytest.raises(RuntimeError, match="by FedProx: .*not one of Flower's own"):
        FedProx(**STEPS).start(LocalGrid(app, 4), START, 3)


def test_a_keyword_that_is_no_option_is_refused_with_the_page_of_flowers() -> None:
    given: dict[str, Any] = {"proximal_mu": 7}
    refused("proximal_mu = 7 is no option of FedProx; ", lambda: FedProx(**given))
    given = {"fraction_evaluate": 0.5}  # all clients or none
    refused("fraction_evaluate = 0.5 is no option", lambda: FedProx(**given))


def test_flowers_keywords_that_are_options() -> None:
    theirs: dict[str, Any] = {"fraction_train": 0.5, "fraction_evaluate": 1.0}
    theirs |= {"min_available_nodes": 3, "weighted_by_key": "num-examples"}
    ours: dict[str, Any] = {"participation": 0.5, "sampling": "fixed", "min_nodes": 3}
    ours |= {"client_weights": "examples", "client_evaluate_every": 1}
    assert vars(FedProx(**theirs).options) == vars(FedProx(**ours).options)
    both: dict[str, Any] = {"fraction_train": 0.5, "participation": 0.5}
    refused("fraction_train and participation are one", lambda: FedProx(**both))
    refused("'examples' does not apply", lambda: FedFW(L1Ball(1.0), **theirs))


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
