"""What a message may say without being believed: a test for each way that was open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from clients import FedAvgGDClient
from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import encode
from fedtrellis.wire.exchange import Traffic
from strategies import FedAvgGD
from tests.harness import Distance, app_of, number_of, play

SHAPE = (4,)


class Keeping(FedAvgGD):
    """Counts on the clients' keeping the model."""

    keep_model = True


class Spoils(LocalGrid):
    """The replies of the first node are changed on their way, by type of message."""

    spoil: Callable[[RecordDict], None]
    kind = "train"

    def _strikes(self, message: Message) -> set[str]:
        kind, node_id = message.metadata.message_type, message.metadata.dst_node_id
        hit = kind == self.kind and number_of(self._contexts[node_id]) == 0
        return {"garbage"} if hit else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        self.spoil(reply.content)
        return reply


def run(
    spoil: Callable[[RecordDict], None], kind: str = "train", **options: Any
) -> Keeping:
    grid = Spoils(app_of(FedAvgGDClient, [Distance(np.ones(SHAPE))] * 3), 3)
    grid.spoil, grid.kind = spoil, kind
    return play(Keeping(**options), grid, np.zeros(SHAPE), rounds=2).strategy


def put(record: str, key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        changed: Any = content[record]
        changed[key] = value

    return spoil


def test_what_a_dropped_answer_says_of_the_model_is_not_believed() -> None:
    """Its client may have no model at all; it is sent all of it in the next round."""
    strategy = run(put("arrays", "0", encode(np.zeros(3))))
    assert strategy.conversation.client("0").version is None
    assert strategy.conversation.client("1").version is not None


def test_an_introduction_without_its_records_leaves_the_node_out() -> None:
    """It ended the run with a KeyError."""
    for spoil in (
        lambda content: content.pop("config"),
        lambda content: content.pop("status"),
        put("status", "client-id", 7),
        lambda content: content.update({"config": ArrayRecord()}),
    ):
        strategy = run(spoil, "query.hello")
        assert strategy.clients == ["1", "2"]
        reasons = [why for record in strategy.history for _, why in record.rejected]
        assert len(reasons) >= 1
        assert all("introduction" in why for why in reasons)


def test_a_reason_is_cut_before_it_is_kept() -> None:
    """A client's word of megabytes would be in the history of every round."""
    traffic = Traffic()
    traffic.reject("0", "x" * 10**6)
    assert len(traffic.rejected[0][1]) < 600
    strategy = run(put("status", "client-id", "y" * 10**5))
    assert all(len(why) < 600 for r in strategy.history for _, why in r.rejected)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num-examples", -5), ("num-examples", -(2**63)), ("loss", 1e308)],
)
def test_a_metric_that_no_mean_could_hold_has_no_weight(key: str, value: Any) -> None:
    strategy = run(put("metrics", key, value), "evaluate", client_evaluate_every=1)
    for record in strategy.history:
        found = record.client_evaluation
        assert ("loss" in found) == (key != "loss")
        assert found["num-examples"] == (3.0 if key == "loss" else 2.0)
