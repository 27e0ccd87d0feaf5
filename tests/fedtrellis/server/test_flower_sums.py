"""Flower's own strategies on secure sums: the plain model, and blocks' sums only."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from fedtrellis import LocalGrid, SecureSums, secure_sum_mod
from fedtrellis.encryption import backend_class
from fedtrellis.settings import SettingsError
from fedtrellis.wire.summing import RECORD
from strategies import FedAvgGD
from tests.harness import Recorder, number_of, readable, refused

N, SHAPES = 7, {"w": (3, 2), "b": (2,)}
SIZE = 8
PLAIN: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": N}
INNER: dict[str, dict[str, float]] = {
    "FedAvg": {},
    "FedAvgM": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "FedAdam": {"eta": 0.02, "beta_1": 0.9, "beta_2": 0.99},
    "FedAdagrad": {"eta": 0.02},
    "FedYogi": {"eta": 0.02, "beta_1": 0.9, "beta_2": 0.99},
    "FedProx": {"proximal_mu": 0.1},
}


def app_of(mods: list[Any] | None, fails: set[int] | None = None) -> ClientApp:
    """Clients whose models go to points of their own, with weights of their own."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        assert list(msg.content) == ["arrays", "config"]  # an app sees nothing else
        index = number_of(context)
        if index in (fails or set()):
            raise ValueError(f"row 17 of client {index} is bad")
        rng, arrays, content = np.random.default_rng(index), {}, msg.content
        sent: Any = content["arrays"]
        config: Any = content["config"]
        pull = 0.3 / (1 + config.get("proximal-mu", 0.0))
        for name, array in sent.items():
            x = array.numpy()
            arrays[name] = x + pull * (rng.normal(size=x.shape) - x).astype(x.dtype)
        metrics = {"loss": float(index), "num-examples": 10 + index, "secret": 1.0}
        records: Any = {"arrays": records_of(arrays)}
        records["metrics"] = MetricRecord({**metrics})
        return Message(RecordDict(records), reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({"accuracy": 0.5, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


def records_of(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})


def model(result: Any) -> dict[str, Any]:
    return {name: array.numpy() for name, array in result.arrays.items()}


def run(strategy: Any, mods: list[Any] | None, rounds: int = 8, **options: Any) -> Any:
    dtype = options.pop("dtype", "float64")
    kind, fails = options.pop("kind", LocalGrid), options.pop("fails", None)
    grid = kind(app_of(mods, fails), N, **options)
    start = records_of({k: np.full(s, 0.5, dtype) for k, s in SHAPES.items()})
    return strategy.start(grid, start, num_rounds=rounds, timeout=0.05), grid


def reasons(grid: Any) -> list[str]:
    """Why the clients of a recorded run did not answer."""
    return [reply.error.reason for _, reply in grid.pairs if reply.has_error()]


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-9), ("float32", 5e-7)])
@pytest.mark.parametrize("name", INNER)
def test_the_model_is_the_plain_strategy_s(name: str, dtype: str, close: float) -> None:
    inner, more = getattr(flower, name), {**PLAIN, **INNER[name]}
    plain, _ = run(inner(**more), None, dtype=dtype)
    wrapped = SecureSums(inner(**more), block_size=3, metrics=["loss"])
    secure, _ = run(wrapped, [secure_sum_mod], dtype=dtype, encode=True)
    found = model(secure)
    for key, values in model(plain).items():
        assert found[key].dtype == values.dtype
        assert found[key].shape == SHAPES[key]
        assert np.abs(found[key] - values).max() < close
        assert np.abs(values - 0.5).max() > 0.01
    (before, *_), last = plain.train_metrics_clientapp, secure.train_metrics_clientapp
    assert set(last[8]) == {"loss"}
    expected = plain.train_metrics_clientapp[before]["loss"]
    assert last[1]["loss"] == pytest.approx(expected, abs=1e-9)


def heard(
    faults: dict[str, Any], **inner: Any
) -> tuple[dict[bytes, dict[str, Any]], set[tuple[str, ...]]]:
    """All terms that the server received, by attempt and client; and the blocks."""
    made = FedAvg(**{**PLAIN, **inner})
    strategy = SecureSums(made, block_size=3, metrics=["loss"])
    options: dict[str, Any] = {"kind": Recorder, "encode": True, **faults}
    _, grid = run(strategy, [secure_sum_mod], 12, **options)
    terms: dict[bytes, dict[str, Any]] = defaultdict(dict)
    for request, message in grid.pairs:
        asked = request.content[RECORD]
        if message.has_error():
            continue
        assert set(message.content) == {RECORD, "arrays"}  # nothing in the clear
        assert set(message.content[RECORD]) <= {"client-id", "refused", "why"}
        arrays = message.content["arrays"].to_numpy_ndarrays()
        if asked["step"] == "term" and arrays:
            (words,) = arrays
            assert words.dtype == np.uint64
            assert words.size == SIZE + 3  # a metric, the weight, the count
            name = message.content[RECORD]["client-id"]
            before = terms[asked["sum-attempt"]].setdefault(name, words)
            assert np.array_equal(before, words)  # a repeat says nothing new
    return terms, {tuple(block) for block in strategy._sum.blocks}


FAULTS = {"request_loss": 0.1, "reply_loss": 0.2, "late_reply": 0.1, "seed": 3}


def test_only_whole_blocks_can_be_read() -> None:
    """Lost, late and repeated answers."""
    terms, blocks = heard(FAULTS)
    assert sorted(map(len, blocks)) == [3, 4]
    assert len(terms) == 12
    assert readable(terms, range(1, N)) == blocks
    # each word of a term is uniform: its bits' mean, of 5 000 words or so
    words = np.concatenate([w for answers in terms.values() for w in answers.values()])
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(len(bits))


def test_a_failure_costs_the_block_its_round(caplog: pytest.LogCaptureFixture) -> None:
    """The model is that of the other block alone; an error's text stays there."""
    strategy = SecureSums(FedAvg(**PLAIN), block_size=3)
    options: dict[str, Any] = {"kind": Recorder, "fails": {1}}
    result, grid = run(strategy, [secure_sum_mod], 1, **options)
    left = next(block for block in strategy._sum.blocks if "1" not in block)
    expected, total = np.zeros(SHAPES["w"]), 0
    for index in map(int, left):
        goal = np.random.default_rng(index).normal(size=SHAPES["w"])
        expected += (10 + index) * (0.5 + 0.3 * (goal - 0.5))
        total += 10 + index
    assert np.abs(model(result)["w"] - expected / total).max() < 1e-9
    assert "its block's sum is lost without client 1" in caplog.text
    said = reasons(grid)
    assert len(said) == 3  # of a term it is asked for again
    assert not any("row 17" in text for text in said)


def test_whole_blocks_are_drawn() -> None:
    terms, blocks = heard({}, fraction_train=0.3, min_train_nodes=2)
    groups = {*map(frozenset, blocks), frozenset().union(*blocks)}
    assert len(terms) == 12
    drawn = {frozenset(answers) for answers in terms.values()}
    assert drawn <= groups
    assert min(map(len, drawn)) < N


def test_a_mod_after_it_and_evaluations_that_are_accepted() -> None:
    inner = FedAvg(min_train_nodes=N)
    mods = [secure_sum_mod, message_size_mod]
    result, _ = run(SecureSums(inner, exposed="accept"), mods, 2)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_what_needs_single_answers_is_refused_by_name() -> None:
    single = "Bulyan FedMedian FedTrimmedAvg Krum FedXgbBagging FedXgbCyclic MultiKrum"
    made = [getattr(flower, name)(fraction_evaluate=0.0) for name in single.split()]
    made += [flower.QFedAvg(fraction_evaluate=0.0, client_learning_rate=0.1)]
    private = flower.DifferentialPrivacyServerSideFixedClipping
    made += [FedAvgGD(), private(FedAvg(**PLAIN), 1.0, 1.0, 5)]
    for strategy in made:
        name = type(strategy).__name__
        refused(f"cannot wrap {name}, .* FedAvg,", partial(SecureSums, strategy))


@pytest.mark.parametrize(
    ("inner", "options", "node", "match"),
    [
        ({"fraction_evaluate": 1.0}, {}, {}, "fraction_evaluate = 1.*exposed='accept'"),
        ({}, {"clip": 1.0}, {}, "clip = 1: SecureSums takes none"),
        ({}, {"largest_weight": 0.0}, {}, "largest_weight = 0 must be"),
        ({}, {"value_range": 0.5}, {}, "value_range = 0.5 at least 1"),
        ({}, {"block_size": 2}, {}, "block_size = 2 must be at least 3"),
        ({}, {}, {"least": 8}, "its node wants 8"),
        ({}, {}, {"partition-id": 0}, "two clients have one name"),
        ({}, {}, {"identity-file": "x"}, "key-file, or both identity-file and roster"),
        ({}, {"metrics": ["accuracy"]}, {}, "client 0: .* have a number 'accuracy'"),
    ],
)
def test_settings_and_nodes_that_do_not_go_end_the_run(
    inner: Any, options: Any, node: Any, match: str
) -> None:
    def start() -> None:
        sums = SecureSums(FedAvg(**{**PLAIN, **inner}), **options)
        configs = [{}, node, *[{}] * (N - 2)]
        run(sums, [secure_sum_mod], 1, node_configs=configs)

    refused(match, start)


def test_without_the_mod_or_without_the_wrapper() -> None:
    with pytest.raises(SettingsError, match="7 of 7 clients gave no name: .*secure"):
        run(SecureSums(FedAvg(**PLAIN)), None)
    _, grid = run(FedAvg(**PLAIN), [secure_sum_mod], 1, kind=Recorder)
    assert len(reasons(grid)) == N
    assert all("wrap the ServerApp's strategy" in why for why in reasons(grid))


def test_with_a_key_nothing_else_travels_in_the_clear(tmp_path: Path) -> None:
    key = tmp_path / "all.key"
    key.write_bytes(backend_class("stream").generate().secret_bytes())
    key.chmod(0o600)
    configs = [{"key-file": str(key), "ledger": str(tmp_path)} for _ in range(N)]
    sums = SecureSums(FedAvg(min_train_nodes=N), exposed="accept")
    _, grid = run(sums, [secure_sum_mod], 1, node_configs=configs)
    (context, *_) = grid._contexts.values()
    for kind, what in ("evaluate", "evaluation"), ("query.counts", "answer to a query"):
        message = Message(RecordDict(), dst_node_id=1, message_type=kind)
        with pytest.raises(SettingsError, match=f"{what} would travel"):
            secure_sum_mod(message, context, lambda message, context: message)


def test_a_weight_that_does_not_fit_costs_its_block_the_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client 6 has 16 examples."""
    run(SecureSums(FedAvg(**PLAIN), largest_weight=12.0), [secure_sum_mod], 1)
    assert "0 of 1 blocks" in caplog.text
    assert "from 0 to largest_weight = 12" in caplog.text
