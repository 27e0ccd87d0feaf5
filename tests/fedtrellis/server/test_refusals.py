"""A client that says no: the server acts on its code, whatever the words."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedtrellis import LocalGrid, LoopStrategy, StatefulClient, client_app
from fedtrellis.encryption import EncryptionError, RefusedError
from fedtrellis.server.conversation import Conversation, ask_everyone
from fedtrellis.settings import CodedError, SettingsError
from fedtrellis.wire.exchange import NO_ANSWER, Reason, Traffic
from fedtrellis.wire.protocol import NodeReply
from tests.harness import number_of


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


class Saying(StatefulClient):
    """Number 1 raises what the test says, after it has changed its state."""

    error: ClassVar[Exception]

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        self.state["rounds"] = self.state.get("rounds", np.zeros(1)) + 1
        if number_of(self.context) == 1 and config["number"] == 2:
            raise self.error
        return [self.state["rounds"]], 0, {}

    fit_agree = fit


class Listening(LoopStrategy):
    """Asks everybody, in a round of one wave."""

    everyone = False

    def setup(self, point: Any, layout: Any) -> None:
        pass

    def run_round(self, conversation: Any, t: int, config: Any, timeout: float) -> Any:
        self.sampled = list(self.clients)
        entries = {name: {"number": t} for name in self.clients}
        if self.everyone:
            ask_everyone(
                conversation,
                "train.agree",
                lambda name: {"number": 2},
                conversation.note_version,
                timeout,
                self.clients,
            )
        answers = conversation.ask(t, "train", entries, timeout)
        self.used = [answer.client for answer in answers]
        for name in self.used:
            conversation.note_used(t, name)
        self.counts = [float(answer.arrays[0][0]) for answer in answers]
        rejected = conversation.traffic.rejected
        codes = [(why.code, why.refusal) for _, why in rejected]
        self.seen = [*getattr(self, "seen", []), *codes]
        return {}


def run(error: Exception, **options: Any) -> Listening:
    client = type("Client", (Saying,), {"error": error})
    strategy = Listening()
    grid = LocalGrid(client_app(client), 3, **options)
    strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
    return strategy


@pytest.mark.parametrize("options", [{}, {"encode": True}, {"batched": True}])
@pytest.mark.parametrize("code", list(ERRORS))
def test_a_code_travels_and_words_mean_nothing(
    code: str, options: dict[str, Any]
) -> None:
    strategy = run(ERRORS[code], **options)
    assert strategy.seen == [("refused", code) if code else ("error", "")]
    ((who, why),) = strategy.history[1].rejected
    assert who == "1"
    assert WORDS in why
    # its state is as it was before
    assert strategy.counts == [3.0, 2.0, 3.0]


def test_whoever_is_to_agree_and_refuses_ends_the_run() -> None:
    class Agreeing(Listening):
        everyone = True

    client = type("Client", (Saying,), {"error": ERRORS["encryption"]})
    grid = LocalGrid(client_app(client), 3)
    with pytest.raises(SettingsError) as caught:
        Agreeing().start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
    assert str(caught.value) == f"client 1: {WORDS}"


def test_a_refusal_is_checked_like_an_answer() -> None:
    status: dict[str, Any] = {
        "session": "s",
        "server-round": 1,
        "in-sync": True,
        "refused": "settings",
        "why": "no",
    }

    conversation = Conversation(LocalGrid(client_app(Saying), 1), Listening())
    conversation.session = "s"

    def opened(name: str = "a", **changes: Any) -> Any:
        expected = {"session": "s", "server-round": 1, "in-sync": True}
        return conversation._open(NodeReply(name, {**status, **changes}), "a", expected)

    refused = opened()
    assert (refused, refused.code, refused.refusal) == ("no", "refused", "settings")
    for name, wrong in ("a", {"session": "t"}), ("a", {"server-round": 2}), ("b", {}):
        other = opened(name, **wrong)
        assert other.startswith("the answer has")
        assert (other.code, other.refusal) == ("dropped", "")


def test_a_long_reason_keeps_its_codes() -> None:
    traffic = Traffic()
    traffic.reject("a", Reason("x" * 900, "refused", "labels"))
    traffic.reject("b", "dropped by a method's own check")
    (_, long), (_, short) = traffic.rejected
    assert (len(long), long.code, long.refusal) == (504, "refused", "labels")
    assert (short.code, short.refusal) == ("dropped", "")
    assert NO_ANSWER.code == "no-answer"
