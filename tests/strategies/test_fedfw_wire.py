"""What FedFW's messages hold, and how many bytes that is."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Product,
    Simplex,
)
from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
    unpack_atoms,
)
from fedtrellis.domains.base import alike, describe
from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.broadcast import unpack_steps
from fedtrellis.wire.protocol import ARRAYS, CONFIG, MODEL, RESTORE, STATUS
from strategies import FedFW, NaiveFrankWolfe
from tests.harness import Array, Distance, Recorder, app_of, encode_message, play


def config_of(message: Message) -> ConfigRecord:
    return cast(ConfigRecord, message.content[CONFIG])


def arrays_of(message: Message, record: str) -> list[NDArray[Any]]:
    return record_arrays(cast(ArrayRecord, message.content[record]))


def recorded(
    strategy: Any,
    centres: Sequence[Array],
    start: Sequence[Array],
    rounds: int,
    *,
    domains: Sequence[Domain] | None = None,
    client: Any = FedFWClient,
    missed: Iterable[tuple[int, int]] = (),
    wiped: Iterable[tuple[int, int]] = (),
) -> tuple[Recorder, Array]:
    domains = domains or [strategy.domain] * len(centres)
    own = [(Distance(c), domain) for c, domain in zip(centres, domains, strict=True)]
    app = app_of(lambda context, both: client(context, *both), own)
    grid = Recorder(app, len(centres), encode=True)
    grid.missed, grid.wiped = set(missed), set(wiped)
    return grid, play(strategy, grid, start, rounds).arrays[0]


# ----------------------------------------------------------------- a million parameters

SIZE, NODES = 1_000_000, 10


def big_centres() -> list[Array]:
    rng = np.random.default_rng(0)
    centres = []
    for _ in range(NODES):
        centre = np.zeros(SIZE)
        centre[rng.choice(SIZE, 50, replace=False)] = rng.standard_normal(50)
        centres.append(centre)
    return centres


@pytest.mark.parametrize("size", [20_000, 40])
def test_several_steps_travel_as_their_atoms_where_that_is_less(size: int) -> None:
    """Up k atoms, down k steps of n atoms; of 40 entries x̄ whole is less.

    With the constant schedule the start's entries stay, so that x̄ has many.
    """
    k, n = 3, 5
    rng = np.random.default_rng(6)
    strategy = FedFW(
        L1Ball(2.0), penalty=0.1, variant="plain", schedule="constant", local_steps=k
    )
    centres = [rng.standard_normal(size) for _ in range(n)]
    start = rng.uniform(-1 / size, 1 / size, size)
    grid, model = recorded(strategy, centres, [start], 5)
    for (t, i), messages in grid.answers.items():
        atoms = unpack_atoms(arrays_of(messages[0], ARRAYS), (size,))
        assert len(atoms) == k
        config = config_of(grid.requests[t, i][0])
        assert config["step-size"] == [0.01] * k
        if t == 1:
            continue
        if size == 40:
            assert config["model-encoding"] in ("dense", "sparse")
            continue
        assert config["model-encoding"] == "steps"
        steps = unpack_steps(arrays_of(grid.requests[t, i][0], MODEL), (size,))
        assert [len(step.atoms) for step in steps] == [n] * k
    iterates = [strategy._client_iterate(name) for name in strategy.clients]
    assert np.abs(model - np.mean(iterates, axis=0)).max() < 1e-12


def test_bytes_after_a_missed_round_and_a_wipe() -> None:
    """x̄ whole, but only its non-zeros; and x_i for the node that lost everything.

    An upload is one atom, a download n of them: not the 8 MB of x.
    """
    # with counts of their own the steps of ten would no longer be one
    strategy = FedFW(L1Ball(5.0), penalty=0.1, variant="plain", step_count="round")
    grid, model = recorded(
        strategy,
        big_centres(),
        [np.zeros(SIZE)],
        6,
        missed=[(3, 4)],
        wiped=[(5, 7)],
    )
    assert [record.used for record in strategy.history] == [10, 10, 9, 10, 10, 10]
    for (t, i), messages in grid.requests.items():
        encodings = [config_of(message)["model-encoding"] for message in messages]
        if t in (1, 4):  # the step of round 3 was that of nine
            assert encodings == ["sparse"]
        elif (t, i) == (5, 7):
            # asked again, with all that it needs
            assert encodings == ["steps", "sparse"]
            assert RESTORE in messages[1].content
        else:
            assert encodings == ["steps"]
        assert all(encode_message(message)[1] < 10_000 for message in messages)
    assert all(encode_message(m[-1])[1] < 2_000 for m in grid.answers.values())
    # what the history says of each round is what went over the wire
    second = strategy.history[1]
    downs = [encode_message(grid.requests[2, i][0])[1] for i in range(NODES)]
    ups = [encode_message(grid.answers[2, i][0])[1] for i in range(NODES)]
    assert (second.bytes_down, second.bytes_up) == (sum(downs), sum(ups))
    iterates = [strategy._client_iterate(name) for name in strategy.clients]
    assert np.abs(model - np.mean(iterates, axis=0)).max() < 1e-12


# --------------------------------------------------------------------- kinds of content


@pytest.mark.parametrize(
    ("domain", "start", "kind"),
    [
        (L1Ball(1.0), np.zeros(300), SparseAtom),
        (Simplex(1.0), np.full(300, 1 / 300), SparseAtom),
        (KSupportBall(3, 1.0), np.zeros(300), SparseAtom),
        (NuclearNormBall(2.0), np.zeros((20, 30)), RankOneAtom),
        (BirkhoffPolytope(), np.full((20, 20), 0.05), PermutationAtom),
        (LInfBall(1.0), np.zeros(500), SignAtom),
        (Box(-1.0, 2.0), np.zeros((10, 50)), SignAtom),
        (L2Ball(1.0), np.zeros(50), DenseAtom),
        (
            Product([L1Ball(1.0), L2Ball(1.0)], [(40,), (5, 2)]),
            np.zeros(50),
            ProductAtom,
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_atoms_travel_in_their_smallest_form(
    domain: Domain, start: Array, kind: type[Atom]
) -> None:
    """Up: one atom, and no entry more. Down: the atoms of the last round."""
    rng = np.random.default_rng(3)
    centres = [rng.standard_normal(start.shape) for _ in range(3)]
    strategy = FedFW(domain, penalty=0.5, variant="plain")
    grid, model = recorded(strategy, centres, [start], 4)
    atoms: dict[tuple[int, int], Atom] = {}
    for where, messages in grid.answers.items():
        content = messages[0].content
        assert set(content) == {STATUS, ARRAYS}
        assert set(cast(ConfigRecord, content[STATUS])) == {
            "client-id",
            "session",
            "server-round",
            "in-sync",
            "model-version",
        }
        (atom,) = unpack_atoms(arrays_of(messages[0], ARRAYS), start.shape)
        assert isinstance(atom, kind)
        assert domain.contains(atom.dense())
        atoms[where] = atom
    for (t, _), messages in grid.requests.items():
        config = config_of(messages[0])
        dense = np.size(start) * 8
        if t == 1 or config["model-encoding"] != "steps":
            continue
        (step,) = unpack_steps(arrays_of(messages[0], MODEL), start.shape)
        assert step.decay == pytest.approx(1 - 2 / t)  # η of the round before
        assert step.weight == pytest.approx(2 / t / 3)
        assert sum(a.nbytes for a in step.atoms) < dense
        for i, atom in enumerate(step.atoms):
            assert isinstance(atom, kind)
            assert np.array_equal(atom.dense(), atoms[t - 1, i].dense())
    replayed = start
    for t in range(1, 5):
        eta = 2 / (t + 1)
        mean = np.mean([atoms[t, i].dense() for i in range(3)], axis=0)
        replayed = (1 - eta) * replayed + eta * mean
    assert np.abs(model - replayed).max() < 1e-12


def test_atoms_of_several_kinds_in_one_step() -> None:
    """§4.3: the ℓ1 ball for some, an ℓ2 and an ℓ∞ ball around it for others."""
    rng = np.random.default_rng(4)
    centres = [rng.standard_normal(400) for _ in range(5)]
    ball = L1Ball(1.0)
    domains = [ball, L2Ball(1.0), ball, LInfBall(1.0), ball]
    strategy = FedFW(ball, penalty=0.5, variant="plain", client_domains=domains[1:4:2])
    grid, model = recorded(strategy, centres, [np.zeros(400)], 3, domains=domains)
    kinds = [SparseAtom, DenseAtom, SparseAtom, SignAtom, SparseAtom]
    for (_, i), messages in grid.answers.items():
        (atom,) = unpack_atoms(arrays_of(messages[0], ARRAYS), (400,))
        assert isinstance(atom, kinds[i])
    sizes = [encode_message(grid.answers[2, i][0])[1] for i in range(5)]
    # 400 floats, against one index and one float
    assert sizes[1] > sizes[0] + 2_500
    # with a dense atom among them the n atoms are larger than x̄, so that x̄ travels
    config = config_of(grid.requests[3, 0][0])
    assert config["model-encoding"] == "dense"
    iterates = [strategy._client_iterate(name) for name in strategy.clients]
    assert np.abs(model - np.mean(iterates, axis=0)).max() < 1e-12

    domains[1] = ball  # without it they pay: one step of two kinds
    strategy = FedFW(ball, variant="plain", client_domains={"3": domains[3]})
    grid, _ = recorded(strategy, centres, [np.zeros(400)], 3, domains=domains)
    (step,) = unpack_steps(arrays_of(grid.requests[3, 0][0], MODEL), (400,))
    kinds[1] = SparseAtom
    assert [type(atom) for atom in step.atoms] == kinds


# --------------------------------------------------------- whose atoms the server takes

N, P = 4, 8
BALL = L1Ball(2.0)
rng = np.random.default_rng(3)
LOSSES = [
    LeastSquares(rng.standard_normal((5, P)), rng.standard_normal(5)) for _ in range(N)
]


# ------------------------------------------------------------------- what is announced


def of_sets(
    domains: Sequence[Domain], strategy: Any, client: Any = FedFWClient
) -> tuple[Recorder, Any]:
    """A run whose clients work on sets of their own."""

    def make(context: Context, both: tuple[Any, Domain]) -> Any:
        return client(context, *both)

    grid = Recorder(app_of(make, list(zip(LOSSES, domains, strict=True))), N)
    return grid, lambda: play(strategy, grid, np.zeros(P), 5)


SETS = [BALL, BALL, BALL, L2Ball(2.0)]


@pytest.mark.parametrize(
    ("domains", "declared", "says"),
    [
        (SETS, {}, "client 3 works on L2Ball(radius=2.0), and the strategy on L1Ball("),
        ([BALL, L1Ball(2.1), BALL, BALL], {}, "client 1 works on L1Ball(radius=2.1)"),
        (SETS, {"2": L2Ball(2.0)}, "client 3 works on L2Ball(radius=2.0)"),
        (SETS, [L2Ball(2.5)], "client 3 works on L2Ball(radius=2.0)"),
        (SETS, {"4": L2Ball(2.0)}, "client_domains has client '4'; the clients are 0,"),
        (SETS, {"3": L2Ball(1.0)}, "L2Ball(radius=1.0), which does not enclose L1Ball"),
    ],
)
@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_another_set_ends_the_run_before_round_1(
    method: Any, domains: Sequence[Domain], declared: Any, says: str
) -> None:
    client = FedFWClient if method is FedFW else NaiveFrankWolfeClient
    grid, start = of_sets(domains, method(BALL, client_domains=declared), client)
    with pytest.raises(SettingsError, match=re.escape(says)) as refused:
        start()
    assert "\n" not in str(refused.value)
    assert {m.metadata.message_type for m in grid.sent} == {"query.hello"}


@pytest.mark.parametrize("declared", [{"3": L2Ball(2.0)}, [LInfBall(2.0), L2Ball(2.0)]])
def test_a_larger_set_that_is_declared(
    declared: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = FedFW(BALL, variant="plain", penalty=0.1, client_domains=declared)
    _, start = of_sets(SETS, strategy)
    played = start()
    assert [record.used for record in strategy.history] == [N] * 5
    # an atom of the ℓ2 ball alone is outside, and the model says so each round
    outside = [float(np.abs(model).sum() > 2.0) for model in played.models]
    assert 1.0 in outside
    assert outside == [m["outside-domain"] for m in played.watch.metrics]
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("lies outside L1Ball" in r.getMessage() for r in warnings) == 1


class Foreign(FedFWClient):
    """A client of somebody else's, which announces nothing."""

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return {}


def test_who_announces_nothing_is_taken_and_its_atoms_are_looked_at() -> None:
    strategy = FedFW(BALL, variant="plain")
    _, start = of_sets(SETS, strategy, Foreign)
    start()
    for record in strategy.history:
        assert record.used == N - 1
        assert record.rejected == [("3", "an atom lies outside L1Ball(radius=2.0)")]
    strategy = FedFW(BALL, variant="plain", client_domains={"3": L2Ball(2.0)})
    _, start = of_sets(SETS, strategy, Foreign)
    start()
    assert [record.used for record in strategy.history] == [N] * 5


# ------------------------------------------------------------------ sets as one line


def test_sets_are_told_apart() -> None:
    sets: list[Domain] = [
        L1Ball(1.0),
        L2Ball(1.0),
        LInfBall(1.0),
        KSupportBall(2, 1.0),
        KSupportBall(3, 1.0),
        NuclearNormBall(1.0),
        BirkhoffPolytope(),
        Box(-1.0, 1.0),
        Box(1.0, 2.0),
        Box(np.zeros(3), np.array([1.0, 2.0, 3.0])),
        Box(np.zeros(3), np.array([1.0, 2.0, 4.0])),
        Product([L1Ball(1.0), L2Ball(1.0)], [(3,), (2, 2)]),
        Product([L1Ball(1.0), L2Ball(1.0)], [(3,), (4,)]),
    ]
    near, far = (describe(L1Ball(1.0 + off)) for off in (1e-12, 1e-6))
    assert alike(describe(sets[0]), near)
    assert not alike(describe(sets[0]), far)
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            assert alike(describe(one), describe(other)) == (i == j)
    assert "\n" not in describe(Box(np.zeros(900), np.ones(900)))
