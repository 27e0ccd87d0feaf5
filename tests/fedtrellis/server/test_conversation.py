"""A method of several waves a round, by somebody else, through the conversation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtrellis import LocalGrid, LoopStrategy, StatefulClient, client_app
from fedtrellis.encryption import EncryptionError, RefusedError
from fedtrellis.server.callbacks import Call
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.exchange import Reason, Traffic
from fedtrellis.wire.protocol import NodeReply
from tests.fedtrellis.server.steps import (
    EVERY,
    StepClient,
    Steps,
    expected,
    grid_of,
    model_of,
    start,
)
from tests.harness import calm

Arrays = list[NDArray[Any]]
NODES, ROUNDS = 4, 12


class Counter(StatefulClient):
    """Node k has the number k; counts the rounds that were used of its answers."""

    seen: ClassVar[dict[str, float]]

    def fit_their_number(self, parameters: Arrays, config: dict[str, Any]) -> Any:
        return [np.array([float(self.client_id)])], 1, {}

    def fit_their_distance(self, parameters: Arrays, config: dict[str, Any]) -> Any:
        self.state["rounds"] = self.state.get("rounds", np.zeros(1)) + 1
        self.seen[self.client_id] = float(self.state["rounds"][0])
        return [np.array([(float(self.client_id) - config["mean"]) ** 2])], 1, {}


class Spread(LoopStrategy):
    """The first wave asks for numbers, the second how far each is from their mean."""

    def setup(self, point: FloatArray, layout: Layout) -> None:
        self.counts = dict.fromkeys(self.clients, 0)

    def client_state(self, client: str) -> dict[str, FloatArray]:
        return {"rounds": np.array([float(self.counts[client])])}

    def run_round(
        self, conversation: Conversation, t: int, config: Any, timeout: float
    ) -> dict[str, float] | None:
        self.sampled, self.used = self.sample(t), []
        ask: dict[str, dict[str, Any]] = {name: {} for name in self.sampled}
        answers = conversation.ask(t, "train.their_number", ask, timeout)
        if not answers:
            return None
        mean = float(np.mean([answer.arrays[0] for answer in answers]))
        asked = {answer.client: {"mean": mean} for answer in answers}
        distances = []
        for answer in conversation.ask(t, "train.their_distance", asked, timeout):
            conversation.note_version(answer)
            conversation.note_used(t, answer.client)
            self.counts[answer.client] += 1
            self.used.append(answer.client)
            distances.append(float(answer.arrays[0][0]))
        self.broadcast.replace(np.array([mean]))
        return {"variance": float(np.mean(distances))} if distances else None


def test_waves_stay_in_step_whatever_is_lost() -> None:
    losses: dict[str, Any] = {"request_loss": 0.2, "reply_loss": 0.2, "wipe": 0.05}
    grid = LocalGrid(client_app(Counter), NODES, seed=3, **losses)

    def end_faults(record: Any) -> None:
        if record.round == ROUNDS - 2:
            calm(grid)

    Counter.seen = {}
    strategy = Spread(callbacks=[Call(end_faults)])
    result = strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds=ROUNDS)
    assert result.arrays.to_numpy_ndarrays()[0] == 1.5
    assert any(record.rejected for record in strategy.history)
    # nothing was lost in the last two rounds: each client's count is the server's
    assert Counter.seen == strategy.counts
    last = strategy.history[-1]
    assert (last.used, last.round_trips) == (NODES, 2)
    assert last.train == {"variance": 1.25}


# ----------------------------------------------------- a client that says no, by a code


class LabelError(CodedError):
    """One of a method's own."""

    code = "labels"


WORDS = "SettingsError: error 2: no answer"
ERRORS: dict[str, Exception] = {
    "settings": SettingsError(WORDS),
    "encryption": EncryptionError(WORDS),
    "ciphertext": RefusedError(WORDS),
    "labels": LabelError(WORDS),
    "": ValueError(WORDS),
}


class Saying(StepClient):
    """Number 1 raises what the test says, after it has changed its state."""

    error: ClassVar[Exception]

    def fit(self, parameters: Arrays, config: Any) -> Any:
        answer = super().fit(parameters, config)
        if self.client_id == "1" and config["server-round"] in (0, 2):
            raise self.error
        return answer

    fit_agree = fit


@pytest.mark.parametrize("options", [{}, {"encode": True}])
@pytest.mark.parametrize("code", list(ERRORS))
def test_a_code_travels_and_words_mean_nothing(
    code: str, options: dict[str, Any]
) -> None:
    client = type("Client", (Saying,), {"error": ERRORS[code]})
    strategy = Steps()
    result = start(strategy, grid_of(client=client, **options), rounds=3)
    ((who, why),) = strategy.history[1].rejected
    found: Any = why
    assert who == "1"
    assert WORDS in why
    seen = found.code, found.refusal
    assert seen == (("refused", code) if code else ("error", ""))
    # its state is as it was before
    assert model_of(result) == expected({1: EVERY, 2: (0, 2), 3: EVERY})


def test_whoever_is_to_agree_and_refuses_ends_the_run() -> None:
    class Agreeing(Steps):
        def prepare(self, conversation: Conversation, timeout: float) -> None:
            entries = {name: self.instruction(0, name) for name in self.clients}
            asked = entries.__getitem__, None, timeout, self.clients
            conversation.ask_everyone("train.agree", *asked)

    client = type("Client", (Saying,), {"error": ERRORS["encryption"]})
    with pytest.raises(SettingsError) as caught:
        start(Agreeing(), grid_of(client=client))
    assert str(caught.value) == f"client 1: {WORDS}"


def test_a_refusal_is_checked_like_an_answer() -> None:
    expected: dict[str, Any] = {"session": "s", "server-round": 1, "in-sync": True}
    conversation = Conversation(grid_of(1), Steps())
    for name, changes, codes in (
        ("a", {}, ("refused", "settings")),
        ("a", {"session": "t"}, ("dropped", "")),
        ("b", {}, ("dropped", "")),
    ):
        status = {**expected, "refused": "settings", "why": "no", **changes}
        found: Any = conversation._open(NodeReply(name, status), "a", expected)
        assert (found.code, found.refusal) == codes
    # a reason is cut before it is kept, and keeps its codes
    traffic = Traffic()
    traffic.reject("a", Reason("x" * 10**6, "refused", "labels"))
    ((_, long),) = traffic.rejected
    assert (len(long), long.code, long.refusal) == (504, "refused", "labels")
