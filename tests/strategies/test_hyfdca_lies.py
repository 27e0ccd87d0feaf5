"""One client of HyFDCA that reports what is not so, and what the server makes of it.

Whatever it is, the run ends with an error, or what it certifies is true: as long as
each sample has another, honest holder.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from fedtrellis import LocalGrid
from fedtrellis.wire.arrays import array_record, record_arrays
from strategies.hyfdca.mixtures import MixtureSteps, WrongReportError
from tests.strategies.hyfdca_runs import Run, Split, small

Words = NDArray[np.uint64]
TOLERANCE = 0.03


def lie(words: Words, rng: np.random.Generator, v: int) -> Words:
    """Some of v's words or of the sums' changed, by a number of any size.

    ``v`` is how many of them are v's.
    """
    told = words.copy()
    first, last = (0, v) if rng.random() < 0.5 else (v, len(words))
    if rng.random() < 0.2:
        first, last = 0, len(words)
    count = int(rng.integers(1, last - first + 1)) if rng.random() < 0.5 else 1
    where = first + rng.choice(last - first, size=count, replace=False)
    size = 2.0 ** rng.uniform(0.0, 63.0, size=count if rng.random() < 0.5 else 1)
    change = np.broadcast_to(rng.choice([-1.0, 1.0], size=count) * size, count)
    with np.errstate(over="ignore"):
        told[where] += change.astype(np.int64).view(np.uint64)
    return told


def _certificate_is_true(split: Split, primal: float, dual: float, w: Any) -> None:
    true = split.problem.value(w)
    assert primal == pytest.approx(true, rel=1e-6)
    assert dual <= split.optimum + 1e-6


@pytest.mark.parametrize("at", [2, 6, 15])
def test_no_lie_of_one_wave_is_certified(at: int, monkeypatch: Any) -> None:
    """167 lies about each of three waves: early, in the middle, nearly done."""
    split = small(n=48, p=6)
    rng = np.random.default_rng(at)
    search = MixtureSteps._search
    seen = {"wrong": 0, "kept": 0}

    def with_lies(self: Any) -> dict[str, float]:
        known = self
        if known.version != at:
            return search(self)
        w, words = known.w.copy(), dict(known.units[0].words)
        kept = {name: copy.deepcopy(vars(known)[name]) for name in ("bundle", "units")}
        for _ in range(167):
            name = rng.choice(self.strategy.clients)
            told = lie(words[name], rng, len(words[name]) - 4 * self._numbers - 1)
            known.units[0].words = {**words, name: told}
            try:
                metrics = search(self)
            except WrongReportError:
                seen["wrong"] += 1
            else:
                seen["kept"] += 1
                _certificate_is_true(split, metrics["primal"], metrics["dual"], w)
            for key, value in kept.items():
                setattr(known, key, copy.deepcopy(value))
            known.w, known.version = w, at
            self.certified = w
        return search(self)

    monkeypatch.setattr(MixtureSteps, "_search", with_lies)
    run = Run(split, at + 8)
    run.check()
    assert seen["wrong"] > 120
    # what is so small that it is no lie
    assert sum(seen.values()) == 167


class Lies(LocalGrid):
    """One client's term of the sum of one round is another than it was."""

    liar, at, split = 0, 0, small()
    rng: np.random.Generator
    struck = False

    def _strikes(self, message: Message) -> set[str]:
        node = self._contexts[message.metadata.dst_node_id].node_config
        kind, t = message.metadata.message_type, message.metadata.group_id
        mine = node["partition-id"] == self.liar and t == str(self.at)
        return {"garbage"} if mine and kind == "train.propose" else set()

    def _spoil(self, reply: Message, message: Message) -> Message:
        words, *rest = record_arrays(reply.content.array_records["arrays"])
        columns = self.split.parts[self.liar][1]
        told = lie(words, self.rng, len(columns))
        reply.content["arrays"] = array_record([told, *rest])
        self.struck = True
        return reply


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 200), marks=pytest.mark.slow)]
)
def test_a_run_with_a_liar_ends_with_an_error_or_a_true_certificate(
    seeds: range,
) -> None:
    """Also if what it said is only used in later rounds."""
    split = small(n=48, p=6)
    caught = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        grid = Lies(split.app(), split.num_clients)
        grid.liar, grid.at = (
            int(rng.integers(split.num_clients)),
            int(rng.integers(1, 9)),
        )
        grid.split, grid.rng = split, rng
        try:
            run = Run(split, 40, grid=grid, tolerance=TOLERANCE)
        except WrongReportError:
            caught += 1
            continue
        finally:
            assert grid.struck
        strategy = run.strategy
        if strategy.converged():
            primal, dual = float(strategy._primals[0]), float(strategy._duals[0])
            assert strategy._certified is not None
            _certificate_is_true(split, primal, dual, strategy._certified[0])
            assert run.split.relative(strategy._certified[0]) <= 1.1 * TOLERANCE
    assert caught > len(seeds) // 2
