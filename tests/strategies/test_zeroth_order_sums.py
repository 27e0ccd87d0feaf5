"""ZerothOrderSGD with secure sums: the plain run's model, and nobody's own scalars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from clients import ZerothOrderSGDClient
from fedtrellis import LocalGrid
from fedtrellis.domains.atoms.packing import sign_bits
from fedtrellis.encryption import (
    EncryptionError,
    Identity,
    backend_class,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.encryption.secure_sum import Question, SumMember, total_of
from fedtrellis.objectives import LeastSquares
from fedtrellis.server.answers import Answer
from fedtrellis.settings import SettingsError
from strategies import ZerothOrderSGD
from tests.harness import Array, Stop, app_of, grid_of, play

N, P = 5, 12
_rng = np.random.default_rng(0)
LOSSES = [
    LeastSquares(
        _rng.standard_normal((30, P)),
        2.0 * _rng.standard_normal(30),
        scale="half-mean",
    )
    for _ in range(N)
]
START = [np.full(P, 0.1)]
SUMS: dict[str, Any] = {"aggregation": "secure-sum"}
QUICK: dict[str, Any] = {"step_size": 0.02, "samples": 6, "batch_size": 0, "seed": 3}


class Noted(ZerothOrderSGD):
    """Notes down what the server sees of each client."""

    def check(self, answer: Answer) -> NDArray[Any]:
        found = super().check(answer)
        seen: list[tuple[str, Any]] = self.__dict__.setdefault("seen", [])
        seen.append((answer.client, found))
        return found


def grid(**options: Any) -> LocalGrid:
    return grid_of(ZerothOrderSGDClient, LOSSES, **options)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("variant", ["decomfl", "feedsign"])
def test_the_model_is_the_plain_run_s(variant: Any, dtype: Any) -> None:
    options = {**QUICK, "variant": variant, "local_steps": 2, "dtype": dtype}
    plain = play(ZerothOrderSGD(**options), grid(), START, 20)
    summed = play(ZerothOrderSGD(**options, **SUMS), grid(), START, 20)
    close = 1e-9 if dtype == "float64" else 1e-5
    assert np.abs(summed.arrays[0] - plain.arrays[0]).max() < close
    assert np.abs(plain.arrays[0] - START[0]).max() > 0.1


def test_scalars_give_a_gradient_away_and_masked_ones_do_not() -> None:
    """The server's attack: solve ⟨g, u_j⟩ = s_j for a client's g."""

    def attacked(secure: bool) -> float:
        how: Any = "secure-sum" if secure else "mean"
        strategy = Noted(**{**QUICK, "samples": 4 * P}, aggregation=how)
        play(strategy, grid(), START, 1)
        bits = sign_bits(3, 1, P, 4 * P)
        U = np.array([2.0 * np.unpackbits(b, count=P) - 1.0 for b in bits])
        likeness = []
        for client, told in strategy.__dict__["seen"]:
            s = told
            if secure:  # as the fixed point that it is
                s = np.ldexp(told[:-1].view(np.int64).astype(float), -40)
            g = np.linalg.lstsq(U, s, rcond=None)[0]
            true = LOSSES[int(client)].gradient(START[0])
            likeness.append(g @ true / np.linalg.norm(g) / np.linalg.norm(true))
        return float(np.mean(likeness))

    assert attacked(secure=False) > 0.999
    # the mean of five cosines of random directions in R^12 has deviation 0.13
    assert abs(attacked(secure=True)) < 0.8


class Told(LeastSquares):
    """A loss whose slope along every direction is a number that is chosen."""

    def __init__(self, slope: float) -> None:
        super().__init__(np.eye(P), np.zeros(P))
        self.slope = slope

    def values(self, points: Array, *rest: Any, **more: Any) -> Array:
        slopes: Array = self.slope * np.arange(len(points), dtype=float)
        return slopes


@pytest.mark.parametrize("slope", [0.0, 1e-3, 5.0])
def test_what_a_client_sends_is_uniform_whatever_its_scalars_are(slope: float) -> None:
    strategy = Noted(**{**QUICK, "samples": 100, "step_size": 1e-9}, **SUMS)
    play(strategy, grid_of(ZerothOrderSGDClient, [Told(slope)] * 3), START, 10)
    seen = strategy.__dict__["seen"]
    for client in "012":
        words = np.concatenate([told for name, told in seen if name == client])
        counts = np.bincount(words.astype("<u8").view(np.uint8), minlength=256)
        # fails for uniform bytes once in 10^9
        assert stats.chisquare(counts).pvalue > 1e-9
    sums = total_of([told for _, told in seen[:3]])
    assert sums == pytest.approx(3e3 * slope * np.arange(1, 101), abs=1e-6)


def test_a_round_is_lost_with_a_client_that_is_silent_and_goes_on_without_it() -> None:
    """It sits out, is asked again, and is part of the sums once it is back."""
    gone: set[str] = set()

    class Client(ZerothOrderSGDClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            if self.client_id in gone:
                raise OSError("the network is down")
            return super().fit(parameters, config)

    class Server(Noted):
        def sample(self, server_round: int) -> Any:
            gone.clear()
            if 3 <= server_round <= 6:
                gone.add("1")
            return super().sample(server_round)

    strategy = Server(**QUICK, **SUMS)
    run = play(strategy, grid_of(Client, LOSSES), START, 12)
    used = [len(S) for S in run.used]
    # lost in round 3; away in 4; asked again and lost in 5; away in 6 and 7
    assert used == [5, 5, 0, 4, 0, 4, 4, 5, 5, 5, 5, 5]
    models = run.models
    assert np.array_equal(models[1], models[2])
    reason = run.strategy.history[2].rejected[-1][1]
    assert "the sum over 5 clients is lost without client 1" in reason
    plain = play(_with(run.used), grid(), START, 12)
    assert np.abs(plain.arrays[0] - run.arrays[0]).max() < 1e-9


def _with(used: list[list[int]]) -> ZerothOrderSGD:
    """The plain method on the cohorts of another run."""

    class Same(ZerothOrderSGD):
        def sample(self, server_round: int) -> list[str]:
            return [str(i) for i in used[server_round - 1]]

    return Same(**QUICK)


def test_lost_messages_cost_waves_and_change_nothing() -> None:
    faults = {"request_loss": 0.1, "reply_loss": 0.1, "late_reply": 0.1, "wipe": 0.2}
    faulty = grid(**faults, duplicate=0.1, garbage=0.1, seed=1)
    strategy = ZerothOrderSGD(**QUICK, **SUMS, max_failed_rounds=30)
    run = play(strategy, faulty, START, 30)
    assert sum(len(S) > 0 for S in run.used) > 15
    assert {len(S) for S in run.used} & {3, 4, 5}
    assert max(record.round_trips for record in strategy.history) > 1
    plain = play(_with(run.used), grid(), START, 30)
    assert np.abs(run.arrays[0] - plain.arrays[0]).max() < 1e-9


# ------------------------------------------------------------- what a client makes sure


def members(folder: Path, count: int = 4) -> list[SumMember]:
    key = backend_class("stream").generate()
    made = [
        SumMember(NodeSecrets(str(i), {"ledger": str(folder / str(i))}, key=key))
        for i in range(count)
    ]
    told = [one.introduction("s") for one in made]
    for one in made:
        one.agree("s", told)
    members.key = key.fingerprint  # type: ignore[attr-defined]
    return made


def asked(server_round: int, cohort: str, inputs: bytes = b"x") -> Question:
    return Question("s", server_round, list(cohort), members.key, inputs)  # type: ignore[attr-defined]


def test_a_round_is_answered_once_for_one_cohort_at_one_model(tmp_path: Path) -> None:
    all_four = members(tmp_path)
    values = np.array([1.0, -2.5])
    first = [one.hidden(asked(1, "0123"), values) for one in all_four]
    assert total_of(first) == pytest.approx(4 * values)
    # asked again: the same bytes, whatever the values are now
    again = all_four[0].hidden(asked(1, "0123"), 2 * values)
    assert np.array_equal(first[0], again)
    for other in (asked(1, "012"), asked(1, "0123", b"y"), asked(0, "0123")):
        with pytest.raises(EncryptionError, match="has answered in round 1 already"):
            all_four[0].hidden(other, values)
    with pytest.raises(ValueError, match="masks of the sum do not cancel"):
        total_of(first[:3])
    # told another model than the others
    second = [
        one.hidden(asked(2, "0123", b"y" if i == 3 else b"x"), values)
        for i, one in enumerate(all_four)
    ]
    with pytest.raises(ValueError, match="masks of the sum do not cancel"):
        total_of(second)


def test_small_cohorts_strangers_and_large_values_are_refused(tmp_path: Path) -> None:
    one, *_ = members(tmp_path)
    for cohort, why in (
        ("01", "a sum over 2 clients shows too much"),
        ("0112", "not one that it is in once"),
        ("123", "not one that it is in once"),
    ):
        with pytest.raises(SettingsError, match=why):
            one.hidden(asked(1, cohort), np.ones(2))
    with pytest.raises(SettingsError, match="size 3e\\+06 cannot be hidden in a sum"):
        one.hidden(asked(1, "0123"), np.array([3e6]))
    with pytest.raises(SettingsError, match="cannot be hidden"):
        one.hidden(asked(1, "0123"), np.array([np.nan]))
    with pytest.raises(SettingsError, match="has agreed to a run"):
        one.introduction("s")
    with pytest.raises(SettingsError, match="its ledger was lost"):
        one.hidden(asked(1, "0123")._replace(session="other"), np.ones(2))


def _files(folder: Path, count: int) -> list[dict[str, Any]]:
    identities: list[Identity] = [
        write_identity(folder / f"{i}.identity", str(i)) for i in range(count)
    ]
    write_roster(folder / "roster", {one.name: one.public for one in identities})
    return [
        {
            "identity-file": str(folder / f"{i}.identity"),
            "roster-file": str(folder / "roster"),
        }
        for i in range(count)
    ]


def test_nodes_with_identities_need_no_common_key(tmp_path: Path) -> None:
    nodes = _files(tmp_path, N)
    app = app_of(ZerothOrderSGDClient, LOSSES)
    run = play(
        ZerothOrderSGD(**QUICK, **SUMS),
        LocalGrid(app, N, node_configs=nodes),
        START,
        5,
    )
    plain = play(ZerothOrderSGD(**QUICK), grid(), START, 5)
    assert np.abs(run.arrays[0] - plain.arrays[0]).max() < 1e-9
    # and such a node says nothing in the clear
    with pytest.raises(RuntimeError, match="its scalars would travel in the clear"):
        play(ZerothOrderSGD(**QUICK), LocalGrid(app, N, node_configs=nodes), START, 5)
    (tmp_path / "others").mkdir()
    other = _files(tmp_path / "others", N)
    with pytest.raises(SettingsError, match="has another key than this node knows"):
        play(
            ZerothOrderSGD(**QUICK, **SUMS),
            LocalGrid(app, N, node_configs=[*nodes[:-1], other[-1]]),
            START,
            5,
        )


def test_what_does_not_go_with_sums_is_refused(tmp_path: Path) -> None:
    for settings, why in (
        ({"variant": "fedkseed"}, "with variant = 'fedkseed'; allowed: mean, median"),
        ({"client_weights": "examples"}, "client_weights = 'examples' does not apply"),
        ({"resume": tmp_path / "c"}, "resume does not apply beside aggregation"),
    ):
        with pytest.raises(SettingsError, match=why):
            ZerothOrderSGD(**SUMS, **settings)
    two = grid_of(ZerothOrderSGDClient, LOSSES[:2])
    with pytest.raises(SettingsError, match="needs at least 3 clients; there are 2"):
        play(ZerothOrderSGD(**SUMS), two, START, 1)
    large = [LeastSquares(1e6 * np.eye(P), np.ones(P)) for _ in range(3)]
    with pytest.raises(SettingsError, match="clip the values"):
        play(
            ZerothOrderSGD(**QUICK, **SUMS),
            grid_of(ZerothOrderSGDClient, large),
            START,
            1,
        )


def test_the_run_s_key_goes_with_the_run() -> None:
    from fedtrellis.encryption.run_key import _run_key_path

    strategy = ZerothOrderSGD(**QUICK, **SUMS, callbacks=[Stop(2)])
    play(strategy, grid(), START, 5)
    path = _run_key_path(strategy.conversation.session)
    assert not path.exists()
    assert not path.with_suffix(".ledgers").exists()
