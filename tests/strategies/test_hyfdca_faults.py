"""HyFDCA with clients away, lost answers, lost states, and a run that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.hyfdca.run import NodeRules
from fedtrellis import LocalGrid
from fedtrellis.encryption.cipher import PlainCipher
from strategies import HyFDCA
from strategies.hyfdca.mixtures import MixtureSteps
from tests.harness import Stop, calm, refused
from tests.strategies.hyfdca_runs import KINDS, Run, small
from tests.strategies.methods import EVERYTHING

# pseudonyms differ between two runs, the order of sums does not
ROUNDING = 1e-12
FAULTS = {**dict.fromkeys(EVERYTHING, 0.1), "crash": 0.05} | dict.fromkeys(
    ("state_loss", "wipe"), 0.02
)
# a group's α moves without the others', and v_k is no sum
APART: dict[str, Any] = {"secure_sum": False}


def calm_from(t: int) -> Callable[[Run, int], None]:
    """Nothing goes wrong any more from a round on."""

    def each(run: Run, round_: int) -> None:
        if round_ == t - 1:
            calm(run.grid)

    return each


def _converged(run: Run, tolerance: float = 1e-6) -> None:
    run.check()
    if run.strategy.secure_sum:  # a single simplex needs more iterations
        tolerance = max(tolerance, 1e-3)
    assert abs(run.split.relative(run.steps.w)) < tolerance


class Away(HyFDCA):
    """One client is gone for 20 iterations."""

    def sample(self, server_round: int) -> list[str]:
        everybody = super().sample(server_round)
        return [k for k in everybody if k != "1" or not 10 < server_round <= 30]


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


def test_a_short_run_with_clients_away_ends_at_its_newest_weights() -> None:
    """P is known of w = 0 first, when the others have moved far from there."""
    run = Run(small(), 10, participation=0.6, secure_sum=False, seed=1)
    known = [r.train["primal"] for r in run.strategy.history if "primal" in r.train]
    assert known == [1.0]
    assert np.array_equal(run.model, run.strategy.steps.w)
    assert run.split.problem.value(run.model) < 0.6


@pytest.mark.parametrize(
    ("kind", "secure"), [("hybrid", True), ("hybrid", False), ("horizontal", False)]
)
def test_a_client_gone_for_20_iterations(kind: Any, secure: bool) -> None:
    """The others wait for it where they have to; nobody takes that for a failure."""
    run = Run(
        small(parts=kind),
        80,
        strategy=Away,
        max_failed_rounds=5,
        secure_sum=secure,
        each=lambda run, _: run.note_dual(),
    )
    _converged(run)
    assert (np.diff(run.duals) >= -1e-12).all()
    moved = [r.train.get("moved-groups", 0.0) for r in run.strategy.history]
    groups = len(run.strategy.alignment.groups)
    rest = {"hybrid": 2, "horizontal": 5}[kind]
    assert set(moved[12:30]) == {0.0 if secure else float(rest)}
    # what the group had ready when it went is used when it is back
    assert set(moved[31:]) == {float(groups)}
    if not secure:
        stuck = [r.round_trips for r in run.strategy.history[12:30]]
        assert set(stuck) == {{"hybrid": 2, "horizontal": 1}[kind]}


@pytest.mark.parametrize("secure", [True, False])
def test_a_fifth_of_the_replies_lost(secure: bool) -> None:
    """In every phase, and without a second try within the iteration: D never falls."""
    run = Run(
        small(),
        70,
        faults={"reply_loss": 0.2, "seed": 2},
        secure_sum=secure,
        retries=0,
        each=calm_from(60),
    )
    assert run.grid.fault_counts["reply_loss"] > 30
    _converged(run)
    dual = [r.train.get("dual-bound", -1.0) for r in run.strategy.history]
    assert (np.diff([value for value in dual if value > -1.0]) >= -1e-12).all()


@pytest.mark.parametrize(
    ("kind", "secure"),
    [("irregular", True), ("irregular", False), ("horizontal", True)],
)
def test_everything_at_once(kind: str, secure: bool) -> None:
    run = Run(
        small(parts=kind),
        130,
        faults=FAULTS,
        each=calm_from(80),
        participation=0.9,
        secure_sum=secure,
    )
    assert all(run.grid.fault_counts.values())
    _converged(run, 1e-4)


@pytest.mark.parametrize(("name", "secure"), [("0", True), ("4", False)])
def test_one_client_that_lost_its_state_is_given_alpha_by_its_partner(
    name: str, secure: bool
) -> None:
    """D does not fall, and all holders go on from the same α."""

    def each(run: Run, t: int) -> None:
        if t == 15:
            run.wipe(name)
        if t != 15:
            run.note_dual()

    run = Run(small(), 70, each=each, secure_sum=secure)
    assert (np.diff(run.duals) >= -1e-10).all()
    _converged(run)
    moved = run.metric("moved-groups")
    assert moved[15:].min() >= 2.0  # nobody is held up
    assert (moved[18:] == 3.0).all()


def _flip(blobs: list[bytes]) -> None:
    damaged = bytearray(blobs[0])
    damaged[-5] ^= 8
    blobs[0] = bytes(damaged)


@pytest.mark.parametrize(
    ("kind", "secure", "who"),
    [("hybrid", True, "0"), ("hybrid", True, "all"), ("horizontal", False, "all")],
)
def test_holders_that_lost_their_states_and_a_damaged_backup(
    kind: str, secure: bool, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go back to the last backup, and without any they start over.

    One bit of the server's enc(α) flipped costs two iterations at most.
    """
    idle = {}
    keep = MixtureSteps.keep_alphas
    to_damage: list[bool] = []

    def keeping(self: Any, groups: list[int], parts: Any) -> None:
        keep(self, groups, parts)
        if groups and to_damage:
            to_damage.clear()
            _flip(self.units[self.unit_of[groups[0]]].alphas[groups[0]][1])

    monkeypatch.setattr(MixtureSteps, "keep_alphas", keeping)
    for damage in (False, True):
        bounds: dict[int, float] = {}

        def each(run: Run, t: int, damage: bool = damage, bounds: Any = bounds) -> None:
            bounds[t] = run.steps.bundle.dual_values().sum()
            if t not in (2, 17):  # no backup is due in the next
                return
            for name in run.strategy.clients if who == "all" else [who]:
                run.wipe(name)
            if t == 17 and damage and who == "all":
                for unit in run.steps.units:
                    _flip(unit.backups[0].alphas[unit.groups[0]][1])
            elif t == 17 and damage:
                to_damage.append(True)  # what its partner will send for it

        options: Any = {"secure_sum": secure, "backup_every": 5}
        run = Run(small(parts=kind), 60, each=each, **options)
        assert not to_damage
        moved = [r.train.get("moved-groups", 0.0) for r in run.strategy.history]
        idle[damage] = moved.count(0.0)
        spoilt = [why for _, why in run.rejected if "ciphertext was refused" in why]
        assert bool(spoilt) == damage
        run.check()
        assert abs(run.split.relative(run.steps.w)) < 1e-2
        if not damage:
            assert min(bounds[t] for t in range(18, 24)) >= bounds[10] - 1e-9
            assert bounds[10] > bounds[1]
    assert idle[True] <= idle[False] + 2


class Damages(LocalGrid):
    """Every sum of ciphertexts that client 0 is sent has a flipped bit."""

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        for message in messages:
            node = self._contexts[message.metadata.dst_node_id].node_config
            config = message.content.config_records.get("config", {})
            for key in config if node["partition-id"] == 0 else ():
                if key.startswith("scores/"):
                    blobs = list(config[key])
                    _flip(blobs)
                    config[key] = blobs
        return super().push_messages(messages)


@pytest.mark.parametrize("secure", [True, False])
def test_rounds_in_which_nothing_can_move_have_failed(secure: bool) -> None:
    """Answers come in all the time, and lead nowhere."""
    split = small(parts="vertical")
    grid = Damages(split.app(), split.num_clients)
    options: Any = {"grid": grid, "max_failed_rounds": 4, "secure_sum": secure}
    why = "in 4 rounds .*ciphertext was refused"
    refused(why, lambda: Run(split, 50, **options), RuntimeError)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_wiped_client_is_a_newcomer_to_the_papers_steps(kind: str) -> None:
    """It is given α of its samples before it moves them: nothing is different."""
    split = small("logistic", kind, n=36)
    same: Any = {**_keyed(), **APART, "step": "theoretical"}

    def each(run: Run, t: int) -> None:
        if t in (6, 9):
            run.wipe("1")

    calm, rough = Run(split, 15, **same), Run(split, 15, each=each, **same)
    if kind == "horizontal":  # noticed one phase later, so one step is missed
        rough.check_reported()
        return
    assert np.abs(calm.strategy.steps.w - rough.strategy.steps.w).max() < 1e-9


def _keyed() -> dict[str, Any]:
    key = PlainCipher.generate()
    client = {"key": key, "rules": NodeRules(exposed="accept")}
    return {"client": client, "context": key.evaluation_bytes()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step": "line-search", "local_fraction": 0.3},
        {"step": "practical", "local_fraction": 0.05, "participation": 0.7, **APART},
        {"parts": 2, "backup_every": 3, **APART},
    ],
    ids=["bundle", "line-search", "practical", "parts"],
)
def test_a_resumed_run_is_the_same_run(options: dict[str, Any], tmp_path: Path) -> None:
    # what is drawn depends on the session, which a checkpoint keeps: both runs that
    # are compared go on from one
    split, path, same = small(), tmp_path / "checkpoint", _keyed() | options
    first = Run(split, 20, checkpoint=path, callbacks=[Stop(8)], **same)
    straight = Run(split, 20, resume=path, **same)
    further: Any = {"checkpoint": path, "checkpoint_every": 5, "callbacks": [Stop(15)]}
    Run(split, 20, resume=path, **further, **same)
    broken = Run(split, 20, resume=path, **same)
    assert [r.round for r in straight.strategy.history] == list(range(1, 21))
    assert np.abs(straight.strategy.steps.w - broken.strategy.steps.w).max() < 1e-12
    straight.check_reported()
    assert first.strategy.conversation.session == straight.strategy.conversation.session
    if not {"participation", "local_fraction", "parts"} & options.keys():
        # everybody there, all samples proposed: nothing is random but the key
        whole = Run(split, 20, **same)
        assert np.abs(whole.model - straight.model).max() < 10 * ROUNDING
        assert np.abs(whole.metric("dual") - straight.metric("dual")).max() < ROUNDING


def test_resumed_with_another_context_is_refused(tmp_path: Path) -> None:
    split, path = small(), tmp_path / "checkpoint"
    Run(split, 5, checkpoint=path, **_keyed())
    refused("fingerprint", lambda: Run(split, 9, resume=path, **_keyed()))
