"""``fedtrellis new-method``: its package keeps the contracts, and mistakes do not."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.command_line import main
from fedtrellis.testing import CONTRACTS

feddyn: Any = importlib.import_module("majoritysign.feddyn")
EACH = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda one: one.__name__)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package that is generated, loaded; the command is run in a new folder."""
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = ["quite-new", "newest", "newest", "Quite_new", "fedfw"]
        assert [main(["new-method", name]) for name in names] == [0, 0, 1, 1, 1]
        patch.syspath_prepend(folder / "quite-new" / "src")
        yield importlib.import_module("quite_new")


def test_its_own_tests_pass_as_generated(package: Any) -> None:
    # where a folder has the package's name
    top = Path(package.__file__).parents[3]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "newest"]
    done = subprocess.run(words, cwd=top, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(CONTRACTS)} passed" in done.stdout
    assert (package.QuiteNew.name, len(package.plugin.methods)) == ("quite-new", 1)


def mistakes(package: Any) -> dict[str, tuple[Any, Any]]:
    """For each contract a method that breaks it."""
    Right: Any = package.QuiteNew
    Client: Any = package.QuiteNewClient

    class Uphill(Right):  # type: ignore[misc]
        def instruction(self, server_round: int, client: str) -> dict[str, Any]:
            return {"step": -self.step_size, "steps": self.local_steps}

    class Dice(Client):  # type: ignore[misc]
        def steps(self, x: Any, config: Any) -> Any:
            moved = yield from super().steps(x, config)
            return moved + 0.01 * np.random.default_rng().normal(size=x.shape)

    class Counts(Right):  # type: ignore[misc]
        """What it counts is in no checkpoint."""

        def setup(self, point: Any, layout: Any) -> None:
            self.rounds = 0

        def aggregate(self, server_round: int, answers: Any) -> dict[str, float]:
            before = self.broadcast.model
            found: dict[str, float] = super().aggregate(server_round, answers)
            self.rounds += 1
            step = (self.broadcast.model - before) / self.rounds
            self.broadcast.replace(before + step)
            return found

    class Remembers(Client):  # type: ignore[misc]
        """Its own memory, which no server knows, shows who was asked."""

        asked: dict[str, int] = {}  # noqa: RUF012

        def __init__(self, context: Any, objective: Any) -> None:
            super().__init__(context, objective)
            self.context = context

        def steps(self, x: Any, config: Any) -> Any:
            key = f"{id(self.context)}"
            self.asked[key] = self.asked.get(key, 0) + 1
            moved = yield from super().steps(x, config)
            return x + (moved - x) / self.asked[key]

    class Hides(Client):  # type: ignore[misc]
        def steps(self, x: Any, config: Any) -> Any:
            moved = yield from super().steps(x, config)
            return np.nan_to_num(moved)

    Replays: Any = type("Replays", (feddyn.FedDyn,), {"needs": "sum"})
    return {
        "the_loss_falls": (Uphill, Client),
        "the_seed_decides_everything": (Right, Dice),
        "bytes_change_nothing": (Right, Dice),
        "who_was_not_used_was_not_asked": (Right, Remembers),
        "a_resumed_run_is_the_same": (Counts, Client),
        "numbers_that_are_none_are_dropped": (Right, Hides),
        "what_it_needs_is_declared": (Replays, feddyn.FedDynClient),
    }


@EACH
def test_mistakes_break_contracts(contract: Callable[..., None], package: Any) -> None:
    with pytest.raises(AssertionError, match=re.compile(".")):
        contract(*mistakes(package)[contract.__name__])
