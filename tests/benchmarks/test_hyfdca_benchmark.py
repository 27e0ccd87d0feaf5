"""HyFDCA's benchmarks run, at sizes that mean nothing, and their parts add up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__, encryption, hyfdca
from benchmarks.hyfdca_split import ENCRYPTION, PARTS, Clock, instrumented
from benchmarks.report import Spread
from clients import HyFDCAClient
from fedtrellis.dual.alignment import align
from fedtrellis.encryption import Cipher
from tasks import HybridSVM

SMALL = hyfdca.IterationCase(120, 4, 2, iterations=2, turns=2, real=False)


def tiny() -> HybridSVM:
    return HybridSVM(num_clients=16, seed=0, train_limit=200)


TINY = hyfdca.Cases(SMALL, (hyfdca.LossCase("tiny", tiny, (25, 20), 1, (0.5, 1e-12)),))


def busy(seconds: float) -> None:
    """Work for so long: the clock does not count waiting."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_clock_counts_inner_calls_once() -> None:
    clock = Clock()
    with clock.part("local"):
        busy(0.01)
        with clock.part("encrypt"):
            busy(0.02)
    assert clock.seconds["encrypt"] >= 0.02
    assert 0.01 <= clock.seconds["local"] < 0.02 + clock.seconds["encrypt"]
    assert clock.seconds["search"] == 0.0
    assert set(ENCRYPTION) < set(PARTS)


def test_the_instruments_are_taken_out_again() -> None:
    before = (Cipher.add, HyFDCAClient.fit_propose)
    clock = Clock()
    inside = []

    def fail() -> None:
        with instrumented(clock):
            inside.append(Cipher.add)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside != [before[0]]
    assert (Cipher.add, HyFDCAClient.fit_propose) == before


def test_random_quadrants_hold_every_entry_once() -> None:
    shares = hyfdca.random_quadrants(SMALL)
    assert len(shares) == 8
    hashes = {
        str(k): np.array([int(i) for i in share.sample_ids], "<u8")
        .repeat(2)
        .view(np.uint8)
        .reshape(-1, 16)
        for k, share in enumerate(shares)
    }
    features = {str(k): share.feature_names for k, share in enumerate(shares)}
    found = align(hashes, features)
    assert found.num_samples == 120
    assert len(found.feature_names) == 17
    assert len(found.groups) == 2
    assert not found.overlaps()


@pytest.fixture(scope="module")
def compared() -> Any:
    """The parts of an iteration, and loss against time."""
    return tuple(hyfdca.compare(TINY))


def test_the_parts_of_an_iteration(compared: Any) -> None:
    result, _ = compared
    rows = {str(row["part"]): row for row in result.rows}
    for name in ("stream", "none"):
        values = {}
        for part, row in rows.items():
            spread = row[name]
            assert isinstance(spread, Spread)
            assert len(spread.values) == SMALL.turns
            values[part] = np.array(spread.values)
        inner = (
            "local work",
            "encryption",
            "messages and state",
            "the server's search",
        )
        total = sum(values[part] for part in inner)
        np.testing.assert_allclose(total, values["the whole iteration"])
        assert all((values[part] > 0.0).all() for part in inner)
        secret = sum(values[f"· {part}"] for part in ENCRYPTION)
        np.testing.assert_allclose(secret, values["encryption"])
    ratio = rows["the whole iteration"]["ratio"]
    assert isinstance(ratio, Spread)
    assert ratio.median > 0.0
    (aim,) = result.aims
    assert aim.measured.endswith(" %")


def test_loss_against_time(compared: Any) -> None:
    _, result = compared
    rows = {str(row["method"]): row for row in result.rows}
    assert list(rows) == ["HyFDCA", "HyFDCA, not encrypted", "HybridFedAvg", "HyFEM"]
    ours = rows["HyFDCA"]
    assert isinstance(ours["seconds to 50 %"], Spread)
    ratio = ours["× HyFDCA to 50 %"]
    assert isinstance(ratio, Spread)
    assert ratio.values == (1.0,)
    for row in rows.values():
        assert row["seconds to 1e-10 %"] == "not reached"
        assert float(str(row["lowest, %"])) > 0.0


def test_data_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    case = hyfdca.LossCase("MNIST", lambda: hyfdca._mnist(100), (1, 1), 1)
    _, result = hyfdca.compare(hyfdca.Cases(SMALL, (case,)))
    assert not result.rows
    assert "MNIST was left out" in result.about


def test_the_command_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hyfdca, "QUICK", TINY)
    monkeypatch.setattr(encryption, "QUICK", encryption.Case(1, 50, 1, 2, 2))
    out = tmp_path / "out.json"
    arguments = ["--quick", "--only", "hyfdca", "--only", "encryption"]
    assert __main__.main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("the whole iteration", "encryption is below 15 %", "lowest, %"):
        assert text in printed
    names = [entry["name"] for entry in json.loads(out.read_text())["comparisons"]]
    assert names == ["hyfdca-iteration", "hyfdca-loss", "encryption"]
