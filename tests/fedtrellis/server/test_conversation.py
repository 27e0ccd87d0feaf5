"""A client that says no, by a code."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from numpy.typing import NDArray

from fedtrellis.encryption import EncryptionError, RefusedError
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import CodedError, SettingsError
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

Arrays = list[NDArray[Any]]


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


@pytest.mark.parametrize("options", [{}, {"encode": True}])
@pytest.mark.parametrize("code", list(ERRORS))
def test_codes_travel_words_mean_nothing(code: str, options: dict[str, Any]) -> None:
    client = type("Client", (Saying,), {"error": ERRORS[code]})
    strategy = Steps()
    result = start(strategy, grid_of(client=client, **options), rounds=3)
    ((who, why),) = strategy.history[1].rejected
    found: Any = why
    assert who == "1"
    assert WORDS in why
    assert found.refusal == code
    # its state is as it was before
    assert model_of(result) == expected({1: EVERY, 2: (0, 2), 3: EVERY})


def test_a_refusal_is_checked_like_an_answer() -> None:
    expected: dict[str, Any] = {"session": "s", "server-round": 1, "in-sync": True}
    conversation = Conversation(grid_of(1), Steps())
    for name, changes, code in (
        ("a", {}, "settings"),
        ("a", {"session": "t"}, ""),
        ("b", {}, ""),
    ):
        status = {**expected, "refused": "settings", "why": "no", **changes}
        found: Any = conversation._open(NodeReply(name, status), "a", expected)
        assert found.refusal == code
    # a reason is cut before it is kept, and keeps its code
    traffic = Traffic()
    traffic.reject("a", Reason("x" * 10**6, "labels"))
    ((_, long),) = traffic.rejected
    assert (len(long), long.refusal) == (504, "labels")
