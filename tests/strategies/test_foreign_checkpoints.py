"""A checkpoint that lacks something, or is of another variant, is refused in one line.

For every method; what a single strategy checks stands in the tests of checkpoints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedtrellis import LocalGrid, SettingsError
from tests.strategies.soak_cases import CASES


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
