"""HyFDCA with clients away, lost answers, lost states, and a run that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.hyfdca.run import NodeRules
from fedtrellis.encryption.cipher import PlainCipher
from strategies import HyFDCA
from strategies.hyfdca import mixtures
from strategies.hyfdca.mixtures import MixtureSteps
from strategies.hyfdca.steps import add_shares
from tests.harness import Stop, calm, not_daily, refused
from tests.strategies.hyfdca_runs import APART, Run, small
from tests.strategies.methods import EVERYTHING

FAULTS = {**dict.fromkeys(EVERYTHING, 0.1), "crash": 0.05} | dict.fromkeys(
    ("state_loss", "wipe"), 0.02
)


def calm_from(t: int) -> Callable[[Run, int], None]:
    """Nothing goes wrong any more from a round on."""
    return lambda run, done: calm(run.grid) if done == t - 1 else None


def _converged(run: Run, tolerance: float) -> None:
    run.check()
    # the single simplex of secure sums needs more iterations
    tolerance = 1e-3 if run.strategy.secure_sum else tolerance
    assert abs(run.split.relative(run.steps.w)) < tolerance


class Away(HyFDCA):
    """One client is gone for 20 iterations."""

    def sample(self, server_round: int) -> list[str]:
        everybody = super().sample(server_round)
        return [k for k in everybody if k != "1" or not 10 < server_round <= 30]


class InTurn(HyFDCA):
    """Clients are there in every round, in every second, or in every third."""

    def sample(self, server_round: int) -> list[str]:
        everybody = super().sample(server_round)
        return [k for k in everybody if server_round % (1 + int(k) % 3) == 0]


def test_p_is_known_as_often_as_everybody_has_been_there() -> None:
    run = Run(small(parts="irregular"), 12, strategy=InTurn, secure_sum=False)
    known = [r.round for r in run.strategy.history if "primal" in r.train]
    assert known == [3, 6, 9, 12]


@pytest.mark.parametrize(("loss", "secure"), [("hinge", False), ("logistic", True)])
def test_a_certificate_comes_while_clients_are_away(
    loss: str, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 % are there: within 1.5 times what an uncertified run takes to that loss.

    The same clients are away in both. The other one holds no w.
    """
    split = small(loss, n=192)
    options: dict[str, Any] = {"participation": 0.7, "secure_sum": secure}
    run = Run(split, 400, tolerance=1e-5, **options)
    assert run.strategy.converged()
    reached = split.problem.value(run.model)
    assert split.relative(run.model) <= 1e-5
    certified = [r.train["primal"] for r in run.strategy.history if "primal" in r.train]
    assert reached == pytest.approx(min(certified), rel=1e-9)
    losses: list[float] = []

    def stop(run: Run, _: int) -> bool:
        losses.append(split.problem.value(run.steps.w))
        return bool(losses[-1] <= reached * (1.0 + 1e-12))

    def at_the_newest_weights(steps: MixtureSteps) -> None:
        for unit in steps.units:
            if unit.snapshot is None:
                unit.begin(steps.w, steps.version)

    monkeypatch.setattr(MixtureSteps, "begin", at_the_newest_weights)
    Run(split, 400, each=stop, **options)
    assert losses[-1] <= reached * (1.0 + 1e-12)
    assert len(run.strategy.history) <= 1.5 * len(losses)


@pytest.mark.parametrize(
    ("kind", "secure"),
    [("hybrid", True), ("horizontal", False), *not_daily(("hybrid", False))],
)
def test_a_client_gone_for_20_iterations(kind: Any, secure: bool) -> None:
    """The others wait for it where they have to; nobody takes that for a failure."""
    options: Any = {"strategy": Away, "max_failed_rounds": 5, "secure_sum": secure}
    run = Run(small(parts=kind), 80, each=lambda run, _: run.note_dual(), **options)
    _converged(run, 1e-6)
    assert (np.diff(run.duals) >= -1e-12).all()
    moved = [r.train.get("moved-groups", 0.0) for r in run.strategy.history]
    groups = len(run.strategy.alignment.groups)
    assert set(moved[12:30]) == {0.0 if secure else groups - 1.0}
    # what the group had ready when it went is used when it is back
    assert set(moved[31:]) == {float(groups)}


@pytest.mark.parametrize("secure", [True, *not_daily(False)])
def test_everything_at_once(secure: bool) -> None:
    options: Any = {"faults": FAULTS, "participation": 0.9, "secure_sum": secure}
    run = Run(small(parts="irregular"), 130, each=calm_from(80), **options)
    assert all(run.grid.fault_counts.values())
    _converged(run, 1e-4)


@pytest.mark.parametrize("damage", [*not_daily(False), True])
@pytest.mark.parametrize(("kind", "secure"), [("hybrid", True), ("horizontal", False)])
def test_all_lost_and_a_backup_damaged(kind: str, secure: bool, damage: bool) -> None:
    """They go back to the last backup, and without any they start over."""
    bounds: list[float] = []

    def each(run: Run, t: int) -> None:
        bounds.append(run.steps.bundle.dual_values().sum())
        for name in run.strategy.clients if t in (2, 17) else ():
            run.wipe(name)
        for unit in run.steps.units if t == 17 and damage else ():
            _flip(unit.backups[0].alphas[unit.groups[0]][1])

    options: Any = {"secure_sum": secure, "backup_every": 5}
    run = Run(small(parts=kind), 60, each=each, **options)
    assert any("ciphertext was refused" in why for _, why in run.rejected) == damage
    _converged(run, 1e-2)
    assert damage or min(bounds[17:23]) >= bounds[9] - 1e-9
    assert bounds[9] > bounds[0]
    moved = [r.train.get("moved-groups", 0.0) for r in run.strategy.history]
    assert moved.count(0.0) <= 6


@pytest.mark.parametrize(("name", "secure"), [("0", True), *not_daily(("4", False))])
def test_a_partner_gives_alpha_to_who_lost_its_state(name: str, secure: bool) -> None:
    """D does not fall, and all holders go on from the same α."""

    def each(run: Run, t: int) -> None:
        if t == 15:
            run.wipe(name)
        if t != 15:
            run.note_dual()

    run = Run(small(), 70, each=each, secure_sum=secure)
    assert (np.diff(run.duals) >= -1e-10).all()
    _converged(run, 1e-6)
    moved = run.metric("moved-groups")
    assert moved[15:].min() >= 2.0  # nobody is held up
    assert (moved[18:] == 3.0).all()


def _flip(blobs: list[bytes]) -> None:
    damaged = bytearray(blobs[0])
    damaged[-5] ^= 8
    blobs[0] = bytes(damaged)


@pytest.mark.parametrize("secure", [True, False])
def test_rounds_without_a_move(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in all the time, and lead nowhere: each sum has a flipped bit."""

    def damaged(*given: Any) -> Any:
        total, spoilt = add_shares(*given)
        _flip(total or [])
        return total, spoilt

    monkeypatch.setattr(mixtures, "add_shares", damaged)
    options: Any = {"max_failed_rounds": 4, "secure_sum": secure}
    why = "in 4 rounds .*ciphertext was refused"
    refused(why, lambda: Run(small(parts="vertical"), 50, **options), RuntimeError)


def test_products_are_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's arrive spoilt, and its group moves in the same round."""
    once = iter([b"no ciphertext"])

    def damaged(strategy: Any, shares: Any) -> Any:
        own = next(iter(shares.values()))
        own[0] = next(once, own[0])
        return add_shares(strategy, shares)

    monkeypatch.setattr(mixtures, "add_shares", damaged)
    run = Run(small(), 2, secure_sum=False)
    assert len(run.rejected) == 1
    assert run.metric("moved-groups").tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "options",
    [
        *not_daily({}, {"step": "line-search", "local_fraction": 0.3}),
        {"step": "practical", "local_fraction": 0.05, "participation": 0.7, **APART},
        {"parts": 2, "backup_every": 3, **APART},
    ],
)
def test_a_resumed_run_is_the_same_run(options: dict[str, Any], tmp_path: Path) -> None:
    # what is drawn depends on the session, which a checkpoint keeps: both runs that
    # are compared go on from one
    key = PlainCipher.generate()
    client = {"key": key, "rules": NodeRules(exposed="accept")}
    same: Any = {"client": client, "context": key.evaluation_bytes(), **options}
    split, path = small(), tmp_path / "checkpoint"
    first = Run(split, 20, checkpoint=path, callbacks=[Stop(8)], **same)
    straight = Run(split, 20, resume=path, **same)
    further: Any = {"checkpoint": path, "checkpoint_every": 5, "callbacks": [Stop(15)]}
    Run(split, 20, resume=path, **further, **same)
    broken = Run(split, 20, resume=path, **same)
    assert [r.round for r in straight.strategy.history] == list(range(1, 21))
    assert np.abs(straight.strategy.steps.w - broken.strategy.steps.w).max() < 1e-12
    straight.check_reported()
    other: Any = same | {"smoothing": 0.25}
    refused("smoothing was 1.0", lambda: Run(split, 20, resume=path, **other))
    assert first.strategy.conversation.session == straight.strategy.conversation.session
    if not {"participation", "local_fraction", "parts"} & options.keys():
        # everybody there, all samples proposed: nothing is random but the key
        whole = Run(split, 20, **same)
        assert np.abs(whole.model - straight.model).max() < 1e-11
