"""A server that goes on from a checkpoint, with nodes that have gone on without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedtrellis import Callback, LocalGrid, RoundRecord, SettingsError
from tests.harness import number_of
from tests.strategies.soak_cases import CASES
from tests.strategies.soak_runs import Nodes, ServerDiedError


class Scripted(Nodes):
    """Of client 0 a request is lost and a state not stored, by round."""

    script: dict[int, str] = {}  # noqa: RUF012

    def _strikes(self, message: Message) -> set[str]:
        if not message.metadata.message_type.startswith("train"):
            return set()
        config: Any = message.content["config"]
        mine = number_of(self._contexts[message.metadata.dst_node_id]) == 0
        strike = self.script.get(int(config["server-round"]), "")
        return {strike} if mine and strike else set()


class Dies(Callback):
    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round == 7:
            raise ServerDiedError


@pytest.mark.parametrize(
    "name", ["fedfw corrective", "fedfw plain", "fedfw augmented", "feddr", "hyfem"]
)
def test_rounds_that_the_server_forgot_are_not_taken_for_those_it_used(
    name: str, tmp_path: Path
) -> None:
    """Rounds 5 to 7 happen twice; a node that keeps nothing still has the first ones.

    In round 5 client 0 is not heard, so that the model is another than it was; in round
    6 its answer is used, but it stores nothing: its state of round 6 is that of the
    round 6 which the server knows nothing of.
    """
    case, path = CASES[name], tmp_path / "checkpoint"
    grid, arrays = Scripted(case.app, case.nodes, seed=1), ArrayRecord([case.start])
    how: dict[str, Any] = {"checkpoint": path, "checkpoint_every": 4}
    with pytest.raises(ServerDiedError):
        case.strategy(callbacks=[Dies()], **how).start(grid, arrays, num_rounds=10)
    grid.script = {5: "request_loss", 6: "state_loss"}
    strategy = case.strategy(resume=path, **how)
    strategy.start(grid, arrays, num_rounds=10)
    used = [r.used for r in strategy.history]
    assert used[4:] == [case.nodes - 1, *[case.nodes] * 5]
    errors = case.errors(strategy, grid)
    assert max(errors.values()) < 1e-9, errors
    assert np.isfinite(strategy.broadcast.model).all()


def run(name: str, rounds: int = 3, **options: Any) -> None:
    case = CASES[name]
    grid = LocalGrid(case.app, case.nodes, seed=1)
    case.strategy(**options).start(grid, ArrayRecord([case.start]), num_rounds=rounds)


def refusal(name: str, path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        run(name, resume=path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [n for n in CASES if not n.endswith("float32")])
def test_no_entry_may_be_missing_or_have_another_shape(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    run(name, 2, checkpoint=path)
    with np.load(path) as file:
        arrays = dict(file)
    # of those that differ in a number only, one
    for entry in {re.sub(r"\d+", "0", entry): entry for entry in arrays}.values():
        np.savez(path, **{n: a for n, a in arrays.items() if n != entry})
        message = refusal(name, path)
        assert str(path) in message
        assert f"no entry {entry!r}" in message
        if entry != "meta":
            np.savez(path, **(arrays | {entry: arrays[entry][None]}))
            assert repr(entry) in refusal(name, path)
    np.savez(path, **arrays)
    run(name, resume=path)


@pytest.mark.parametrize(
    ("method", "setting", "first", "second"),
    [
        *(("fedfw", "variant", "plain", v) for v in ("augmented", "stochastic")),
        *(("fedlmo", "variant", "corrected", "ef21"),),
        *(("hyfdca", "step", *pair) for pair in [("bundle", "practical")]),
    ],
)
def test_another_variant_is_refused(
    method: str, setting: str, first: str, second: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    for saved, now in ((first, second), (second, first)):
        run(f"{method} {saved}", 2, checkpoint=path)
        expected = f"its {setting} is {saved}, this run's is {now}"
        assert refusal(f"{method} {now}", path).endswith(expected)
