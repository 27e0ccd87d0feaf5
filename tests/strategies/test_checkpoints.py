"""A server that goes on from a checkpoint, with nodes that have gone on without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedtrellis import Callback, LocalGrid, RoundRecord, SettingsError
from tests.strategies.soak_cases import CASES
from tests.strategies.soak_runs import Nodes, ServerDiedError

CHECKPOINT, DIES, ROUNDS = 4, 7, 10


class Scripted(Nodes):
    """Some replies are lost, and some states not stored, by round."""

    script: dict[int, str]
    resumed = False

    def _strikes(self, message: Message) -> set[str]:
        if not message.metadata.message_type.startswith("train"):
            return set()
        config: Any = message.content["config"]
        context = self._contexts[message.metadata.dst_node_id]
        if not self.resumed or context.node_config["partition-id"] != 0:
            return set()
        return {self.script.get(int(config["server-round"]), "")} - {""}


class Dies(Callback):
    def __init__(self) -> None:
        self.dead = False

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        if record.round == DIES and not self.dead:
            self.dead = True
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
    grid = Scripted(case.app, case.nodes, seed=1)
    grid.script = {5: "request_loss", 6: "state_loss"}
    options: dict[str, Any] = {
        "callbacks": [Dies()],
        "checkpoint": path,
        "checkpoint_every": CHECKPOINT,
    }
    arrays = ArrayRecord([case.start])
    with pytest.raises(ServerDiedError):
        case.strategy(**options).start(grid, arrays, num_rounds=ROUNDS)
    grid.resumed = True
    strategy = case.strategy(resume=path, **options)
    strategy.start(grid, arrays, num_rounds=ROUNDS)
    assert [r.used for r in strategy.history][4:6] == [case.nodes - 1, case.nodes]
    assert strategy.history[-1].used == case.nodes
    errors = case.errors(strategy, grid)
    assert max(errors.values()) < 1e-9, errors
    assert np.isfinite(strategy.broadcast.model).all()


# ----------------------------------------------------------------- what lacks something


def run(name: str, rounds: int = 3, **options: Any) -> None:
    case = CASES[name]
    grid = LocalGrid(case.app, case.nodes, seed=1)
    case.strategy(**options).start(grid, ArrayRecord([case.start]), num_rounds=rounds)


def refusal(name: str, path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        run(name, resume=path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_no_entry_may_be_missing_or_have_another_shape(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    run(name, 2, checkpoint=path)
    with np.load(path) as file:
        arrays = dict(file)

    def write(changed: dict[str, Any]) -> None:
        with path.open("wb") as file:
            np.savez(file, **changed)

    # of those that differ in a number only, one
    for entry in {re.sub(r"\d+", "0", entry): entry for entry in arrays}.values():
        write({n: a for n, a in arrays.items() if n != entry})
        message = refusal(name, path)
        assert str(path) in message
        assert f"no entry {entry!r}" in message
        if entry != "meta":
            write(arrays | {entry: arrays[entry][None]})
            assert repr(entry) in refusal(name, path)
    write(arrays)
    run(name, resume=path)


PAIRS = [
    ("fedfw", "variant", "plain", "augmented"),
    ("fedfw", "variant", "augmented", "plain"),
    ("fedfw", "variant", "plain", "stochastic"),
    ("fedlmo", "variant", "corrected", "ef21"),
    ("hyfdca", "step", "bundle", "practical"),
    ("hyfdca", "step", "practical", "bundle"),
]


@pytest.mark.parametrize(("method", "setting", "first", "second"), PAIRS)
def test_another_variant_is_refused(
    method: str, setting: str, first: str, second: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    run(f"{method} {first}", 2, checkpoint=path)
    expected = f"its {setting} is {first}, this run's is {second}"
    assert refusal(f"{method} {second}", path).endswith(expected)
