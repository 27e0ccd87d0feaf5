"""A checkpoint that lacks something, or is of another variant, is refused in one line.

For every method, as ``python sim.py`` runs it; what a single strategy checks stands in
the tests of checkpoints.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis import SettingsError
from tests.harness import run_app

LASSO = {"task": "lasso", "lasso.rows": 40}
LINEAR = {"task": "linear-regression"}
HYBRID = {"task": "hybrid-svm", "hybrid-svm.dataset": "breast-cancer"}
HYFDCA = {
    **HYBRID,
    "method": "hyfdca",
    "hyfdca.encryption": "none",
    "hyfdca.secure-sum": False,
    "hyfdca.exposed": "accept",
}
CASES: dict[str, dict[str, Any]] = {
    "fedfw": {**LASSO, "method": "fedfw", "fedfw.variant": "plain"},
    "fedfw+": {**LASSO, "method": "fedfw", "fedfw.variant": "augmented"},
    "naive-frank-wolfe": LASSO,
    "projected-fedavg": {**LASSO, "projected-fedavg.local-step-size": 1e-4},
    "feddr": {**LASSO, "feddr.local-step-size": 1e-4},
    "fedgia": LINEAR,
    "fedavg-gd": LINEAR,
    "first-order-rfl": {"task": "kernel-pca"},
    "zeroth-order-rfl": {"task": "kernel-pca"},
    "hyfdca": {**HYFDCA, "hyfdca.secure-sum": True},
    "hyfdca-practical": {**HYFDCA, "hyfdca.step": "practical"},
    "hyfem": HYBRID,
    "hybrid-fedavg": HYBRID,
}
Arrays = dict[str, Any]

pytestmark = pytest.mark.usefixtures("no_pictures")


def refusal(parent: Path, config: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        run_app(config, 3, parent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Arrays:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("name", CASES)
def test_no_entry_may_be_missing_or_have_another_shape(
    name: str, tmp_path: Path
) -> None:
    config = {"method": name, **CASES[name], "rounds": 2}
    record = run_app(config, 3, tmp_path)
    path = record / "checkpoint.npz"
    arrays = read(path)
    # of those that differ in a number only, one
    kinds = {re.sub(r"\d+", "0", entry): entry for entry in arrays}
    config |= {"rounds": 3, "resume": str(record)}
    for entry in kinds.values():
        write(path, {n: a for n, a in arrays.items() if n != entry})
        message = refusal(tmp_path, config)
        assert str(path) in message
        assert f"no entry {entry!r}" in message
        if entry != "meta":
            write(path, arrays | {entry: arrays[entry][None]})
            assert repr(entry) in refusal(tmp_path, config)
    write(path, arrays)
    run_app(config, 3, tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ("plain", "augmented", "fedfw.variant"),
        ("augmented", "plain", "fedfw.variant"),
        ("plain", "stochastic", "fedfw.variant"),
        ("bundle", "practical", "hyfdca.step"),
        ("practical", "bundle", "hyfdca.step"),
    ],
)
def test_another_variant_is_refused(
    first: str, second: str, key: str, tmp_path: Path
) -> None:
    case = LASSO if key == "fedfw.variant" else HYFDCA
    config = {**case, "rounds": 2, key: first}
    record = run_app(config, 3, tmp_path)
    # the record would say so before; a strategy in Python has no record
    settings = record / "config.toml"
    settings.write_text(
        settings.read_text().replace(f'{key} = "{first}"', f'{key} = "{second}"')
    )
    config |= {"resume": str(record), "rounds": 3, key: second}
    name = key.partition(".")[2]
    expected = f"its {name} is {first}, this run's is {second}"
    assert refusal(tmp_path, config).endswith(expected)
