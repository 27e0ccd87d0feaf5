"""FedFW, FedFW+ and FedFW-sto: a plain loop, λ_0 that nobody has chosen, messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from clients import FedFWClient, NaiveFrankWolfeClient
from fedtrellis import client_app
from fedtrellis.corrective.schedules import Schedule
from fedtrellis.domains import (
    BirkhoffPolytope,
    Box,
    Domain,
    L1Ball,
    L2Ball,
    LInfBall,
    NuclearNormBall,
    Product,
    Simplex,
)
from fedtrellis.domains.atoms import DenseAtom, SignAtom, SparseAtom, unpack_atoms
from fedtrellis.manifolds import Stiefel
from fedtrellis.objectives import LeastSquares
from fedtrellis.random import generator
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.protocol import ARRAYS, CONFIG, RESTORE, STATUS
from strategies import FedFW, FirstOrderRFL, NaiveFrankWolfe
from tests.harness import (
    Array,
    Distance,
    Played,
    Recorder,
    app_of,
    encode_message,
    grid_of,
    only_for,
    play,
    refused,
)

N, P, RADIUS = 5, 12, 3.0
BALL = L1Ball(RADIUS)
_rng = np.random.default_rng(0)
A, B = _rng.standard_normal((N, 6, P)), _rng.standard_normal((N, 6))
# F = ‖Ax − b‖² of f_i = n ‖A_i x − b_i‖²; clients are unequal
LOSSES = [
    LeastSquares(1.5**i * a, b, weight=N, scale="sum")
    for i, (a, b) in enumerate(zip(A, B, strict=True))
]


def recorded(
    strategy: Any,
    rounds: int,
    *,
    losses: Sequence[Any] = LOSSES,
    start: Array | None = None,
    domains: Sequence[Domain] | None = None,
    client: Any = FedFWClient,
    missed: Any = (),
    wiped: Any = (),
) -> tuple[Played[Any], Recorder]:
    own = list(zip(losses, domains or [strategy.domain] * len(losses), strict=True))
    app = app_of(lambda context, both: client(context, *both), own)
    grid = Recorder(app, len(losses), encode=True)
    grid.missed, grid.wiped = set(missed), set(wiped)
    point = np.full(P, RADIUS / P / 2) if start is None else start
    return play(strategy, grid, point, rounds), grid


def schedule(
    name: str, lam0: float, p: float, T: int, t: float
) -> tuple[float, float, float]:
    """η_t, λ_t, ρ_t; the constant schedule has η = 0.2 and ρ = 0.3."""
    rho = min(1.0, 4 / (t + 7) ** (2 / 3))
    if name == "convex":
        return 2 / (p * (t - 1) + 2), lam0 * math.sqrt(p * (t - 1) + 2), rho
    if name == "nonconvex":
        return (p * T + 1) ** (-2 / 3), lam0 * (p * T + 1) ** (1 / 3), rho
    if name == "stochastic":
        return 9 / (t + 8), lam0 * math.sqrt(t + 8), rho
    return 0.2, lam0, 1.0 if t == 1 else 0.3


def draws(seed: int, purpose: str) -> Callable[[int, int], np.random.Generator]:
    """A client's generator of a round, from which its steps draw one by one."""
    made: dict[tuple[int, int], np.random.Generator] = {}

    def draw(i: int, t: int) -> np.random.Generator:
        return made.setdefault((i, t), generator(seed, purpose, str(i), t))

    return draw


def check_loop(
    strategy: FedFW,
    rounds: int,
    start: Array,
    losses: Sequence[Any] = LOSSES,
    near: float = 1e-10,
) -> None:
    """METHODS §1 and §5.2, with the clients that take part.

    η, λ, ρ of a step are counted from 1: of k a round, or of the client's own, and then
    λ goes by the mean over all clients.
    """
    s, k, n = strategy, strategy.local_steps or 1, len(losses)
    ran = play(s, grid_of(FedFWClient, losses, s.domain, encode=True), start, rounds)
    own = s.step_count == "own" if s.step_count else s.schedule == "convex"
    # 3 of 5 clients in every round, where half of them were asked for
    p = 1.0 if own else 0.6 if s.sampling == "fixed" else s.participation
    batches, noise = draws(s.seed, "mini-batch"), draws(s.seed, "oracle noise")

    def numbers(t: float) -> tuple[float, float, float]:
        return schedule(s.schedule, s.penalty or 0.0, p, k * rounds, t)

    x, x_bar = [start.copy() for _ in losses], start.copy()
    y, taken = [np.zeros_like(start) for _ in losses], np.zeros(n)
    d: list[Array | None] = [None] * n
    for t, S in enumerate(ran.used, start=1):
        assert [int(name) for name in s.sample(t)] == S
        before, mean = [z.copy() for z in x], taken.mean()
        for i in S:
            for j in range(1, k + 1):
                tau = (t - 1) * k + j
                eta, _, rho = numbers(taken[i] + 1 if own else tau)
                _, lam, _ = numbers(mean + j if own else tau)
                if s.variant == "stochastic":
                    rng = batches(i, t)
                    g = losses[i].stochastic_gradient(x[i], rng, s.batch_size) / n
                    old = d[i]
                    d[i] = g = g if old is None else (1 - rho) * old + rho * g
                else:
                    g = losses[i].gradient(x[i]) / n
                if s.variant == "augmented":
                    if j == 1:
                        y[i] = y[i] + s.penalty * (x[i] - x_bar)
                    g = g + y[i]
                if s.lmo_noise:
                    size = math.sqrt(eta) if s.lmo_noise_decay else 1.0
                    g = g + noise(i, t).normal(0.0, s.lmo_noise * size, g.shape)
                atom = s.domain.lmo(g + lam * (x[i] - x_bar)).dense()
                x[i] = (1 - eta) * x[i] + eta * atom
                taken[i] += 1
        x_bar = x_bar + sum(x[i] - before[i] for i in S) / n
    assert ran.model.shape == start.shape
    assert np.abs(ran.model - x_bar).max() < near
    assert np.abs(x_bar - np.mean(x, axis=0)).max() < near
    assert s.domain.contains(ran.model)
    for i in range(n):
        assert np.abs(s.half._client_iterate(str(i)) - x[i]).max() < near


@pytest.mark.parametrize(
    ("name", "count", "sampling", "k"),
    [
        *(("convex", "round", "bernoulli", 1), ("nonconvex", "round", "fixed", 1)),
        *(("nonconvex", "round", "bernoulli", 3), ("stochastic", "round", "fixed", 1)),
        *(("constant", "round", "bernoulli", 3), ("convex", "own", "fixed", 3)),
        ("convex", "own", "bernoulli", 3),
    ],
)
@pytest.mark.parametrize("variant", ["plain", "augmented", "stochastic"])
def test_numpy_loop(variant: Any, name: Any, count: Any, sampling: Any, k: int) -> None:
    """Noise in the oracle is of σ √η_t, with each client's own η, or of σ."""
    own = only_for(variant, averaging=0.3, batch_size=2)
    if name != "constant":
        own.pop("averaging", None)
    shared: dict[str, Any] = {"participation": 0.5, "sampling": sampling, "seed": 7}
    steps: dict[str, Any] = {"step_count": count, "local_steps": k}
    steps |= {"step_size": 0.2} if name == "constant" else {}
    if count == "own":
        steps |= {"lmo_noise": 2.0, "lmo_noise_decay": sampling == "fixed"}
    how: dict[str, Any] = {"schedule": name, **shared, **steps, **own}
    strategy = FedFW(BALL, penalty=1.5, variant=variant, **how)
    check_loop(strategy, 30 // k, np.full(P, RADIUS / P / 2))


@pytest.mark.parametrize(
    ("domain", "start"),
    [
        (NuclearNormBall(3.0), np.zeros((4, 6))),
        (Simplex(2.0), np.full(9, 2 / 9)),
        (Box(-1.0, 0.5), np.zeros((2, 3))),
        (L2Ball(2.0), np.zeros((3, 1, 2))),
        (Product([Simplex(2.0), L2Ball(1.0)], [(2, 3), (4,)]), np.full(10, 1 / 3)),
    ],
    ids=["nuclear", "simplex", "box", "l2", "product"],
)
def test_other_sets_equal_numpy_loop(domain: Domain, start: Array) -> None:
    rng = np.random.default_rng(8)
    losses = [Distance(rng.standard_normal(start.shape)) for _ in range(N)]
    how: Any = {"participation": 0.7, "variant": "augmented"}
    check_loop(FedFW(domain, penalty=0.5, **how), 40, start, losses, 1e-9)


@pytest.mark.parametrize("variant", ["corrective", "plain"])
def test_float32_of_low_rank(variant: Any) -> None:
    rng, ends, domain = np.random.default_rng(0), [], NuclearNormBall(2.0)
    losses = [Distance(rng.standard_normal((14, 9)) / 3) for _ in range(N)]
    for dtype in (np.float64, np.float32):
        strategy = FedFW(domain, participation=0.8, variant=variant)
        grid = grid_of(FedFWClient, losses, domain, wipe=0.05, seed=5)
        played = play(strategy, grid, np.zeros((14, 9), dtype), 30)
        ends.append(sum(loss.value(played.model.astype(float)) for loss in losses))
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)
    assert domain.contains(played.model, 1e-6)


def test_a_drift_is_rounded_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step rounds a float32 x̄; beyond the bound it is sent rounded only once."""
    monkeypatch.setattr("strategies.fedfw._DRIFT", 0.0)
    strategy, start = FedFW(BALL, variant="plain"), np.zeros(P, np.float32)
    model = play(strategy, grid_of(FedFWClient, LOSSES, BALL), start, 30).model
    np.testing.assert_array_equal(model, np.float32(strategy.half.state()["mean"]))


def test_appendix_a() -> None:
    """min over [−1, 1] of ½(x − 3)² + ½(x + 1)²: naive stays at 0, FedFW+ finds 1."""
    # f_i = 2 · ½(x − c_i)², so that F = (1/2) Σ f_i
    losses = [LeastSquares([[1.0]], [c], scale="sum") for c in (3.0, -1.0)]
    domain = LInfBall(1.0)
    grid = grid_of(NaiveFrankWolfeClient, losses, domain)
    stuck = play(NaiveFrankWolfe(domain), grid, np.zeros(1), 300).model
    assert stuck.item() == pytest.approx(0.0, abs=1e-12)
    strategy = FedFW(domain, penalty=1.0, variant="augmented")
    found = play(strategy, grid_of(FedFWClient, losses, domain), np.zeros(1), 600).model
    assert found.item() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(
    ("domain", "start", "says"),
    [
        (BirkhoffPolytope(), [np.zeros(9)], "square matrices"),
        (NuclearNormBall(1.0), [np.zeros((2, 2)), np.zeros(2)], "matrices"),
        (Product([L1Ball(1.0)], [(4,)]), [np.zeros(5)], "flat vector"),
        (L1Ball(1.0), [np.array([0.0, np.nan])], "not finite"),
        (Stiefel((5, 2)), [np.zeros((4, 2))], r"\(5, 2\)"),
    ],
)
def test_a_bad_model_sends_nothing(domain: Any, start: list[Array], says: str) -> None:
    grid = Recorder(client_app(lambda context: None), 3)
    strategy: Any = (FirstOrderRFL if "Stie" in repr(domain) else FedFW)(domain)
    refused(says, lambda: play(strategy, grid, start, 3), ValueError)
    assert not grid.sent


@pytest.mark.parametrize("method", [FedFW, NaiveFrankWolfe])
def test_more_rounds_keep_the_planned_steps(method: Any, tmp_path: Path) -> None:
    """η = (pT + 1)^(−2/3) with the T of the beginning, resumed once and again."""
    own: Any = {"variant": "plain"} if method is FedFW else {}
    client = FedFWClient if method is FedFW else NaiveFrankWolfeClient
    how: Any = {"checkpoint": tmp_path / "checkpoint", "schedule": "nonconvex", **own}
    for rounds in (8, 12, 20):
        strategy = method(BALL, **how)
        play(strategy, grid_of(client, LOSSES, BALL), np.zeros(P), rounds)
        assert len(strategy.history) == rounds
        half = strategy.half if method is FedFW else strategy
        assert half._schedule.step(rounds) == 9.0 ** (-2 / 3)
        how["resume"] = how["checkpoint"]


START = np.full(P, RADIUS / P / 2)
NORMS = [float(np.linalg.norm(loss.gradient(START))) / N for loss in LOSSES]
#: What stands before G/D, by schedule; for FedFW+ it is 0.12.
MULTIPLES = {"convex": 0.7, "nonconvex": 1.4, "stochastic": 0.35, "constant": 7.0}


def automatic(clients: Sequence[int], multiple: float = 0.7) -> float:
    """Half of the clients say less, half of them more; the ball is 2 · RADIUS wide."""
    return multiple * float(np.median([NORMS[i] for i in clients])) / (2 * RADIUS)


def told(grid: Recorder) -> dict[tuple[int, int], int]:
    """How many bytes of scalars each client sent, by round and client, if any."""
    found: Any = {at: sent[0].content[STATUS] for at, sent in grid.answers.items()}
    sizes = {at: len(status.get("numbers", b"")) for at, status in found.items()}
    return {at: size for at, size in sizes.items() if size}


@pytest.mark.parametrize(
    ("variant", "schedule"),
    [*(("plain", name) for name in get_args(Schedule)), ("augmented", "convex")],
)
def test_lambda_is_a_multiple_of_a_median_gradient(variant: Any, schedule: Any) -> None:
    """In the first round that is used; one number of 8 bytes, once."""
    lost = [(1, i) for i in range(N)] + [(2, 1), (2, 2)]
    strategy = FedFW(BALL, variant=variant, schedule=schedule)
    played, grid = recorded(strategy, 6, missed=lost)
    multiple = 0.12 if variant == "augmented" else MULTIPLES[schedule]
    penalty = strategy.half.penalty or 0.0
    assert penalty == pytest.approx(automatic([0, 3, 4], multiple), rel=1e-12)
    # from round 2 on the run is that of whoever sets this number
    given = FedFW(BALL, variant=variant, schedule=schedule, penalty=penalty)
    assert np.array_equal(played.model, recorded(given, 6, missed=lost)[0].model)
    assert told(grid) == {(2, i): 8 for i in (0, 3, 4)}


@pytest.mark.parametrize("number", [1e90, None])
def test_one_client_of_several_cannot_choose_lambda(number: float | None) -> None:
    """Nor is one used that does not say its norm, before it is settled."""

    class Odd(FedFWClient):
        def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
            answer = super().fit(parameters, config)
            if self.client_id == "4" and self.numbers is not None:
                self.numbers = None if number is None else np.array([number])
            return answer

    played, _ = recorded(FedFW(BALL, variant="plain"), 6, client=Odd)
    others = list(range(4 if number is None else 5))
    assert played.strategy.half.penalty == pytest.approx(automatic(others))
    assert played.used == [others, *[list(range(N))] * 5]


def check_mean(played: Played[Any]) -> None:
    strategy = played.strategy
    points = [strategy.half._client_iterate(name) for name in strategy.clients]
    assert np.abs(played.model - np.mean(points, axis=0)).max() < 1e-12


def test_bytes_after_a_missed_round_and_a_wipe() -> None:
    """x̄ whole, but only its non-zeros; and x_i for the node that lost everything.

    An upload is one atom, a download n of them: not the 1.6 MB of x.
    """
    rng, size, n = np.random.default_rng(0), 200_000, 10
    losses = [Distance(np.zeros(size)) for _ in range(n)]
    for loss in losses:
        loss.centre[0][rng.choice(size, 50)] = rng.standard_normal(50)
    # with counts of their own the steps of ten would no longer be one
    strategy = FedFW(L1Ball(5.0), penalty=0.1, variant="plain", step_count="round")
    lost: Any = {"missed": [(3, 4)], "wiped": [(5, 7)]}
    played, grid = recorded(strategy, 6, losses=losses, start=np.zeros(size), **lost)
    assert [record.used for record in strategy.history] == [10, 10, 9, 10, 10, 10]
    for (t, i), messages in grid.requests.items():
        said: Any = [message.content[CONFIG] for message in messages]
        encodings = [config["model-encoding"] for config in said]
        if (t, i) == (5, 7):
            # asked again, with all that it needs
            assert encodings == ["steps", "sparse"]
            assert RESTORE in messages[1].content
        else:  # the step of round 3 was that of nine
            assert encodings == ["sparse" if t in (1, 4) else "steps"]
        assert all(encode_message(message)[1] < 10_000 for message in messages)
    assert all(encode_message(m[-1])[1] < 2_000 for m in grid.answers.values())
    check_mean(played)


SETS = [BALL, BALL, BALL, L2Ball(RADIUS), BALL]


@pytest.mark.parametrize(
    ("domains", "declared", "says"),
    [
        (SETS, [], "client 3 works on L2Ball(radius=3.0), and the strategy on L1Ball("),
        (SETS, [L2Ball(1.0)], "L2Ball(radius=1.0), which does not enclose L1Ball"),
    ],
)
def test_another_set_ends_the_run_before_round_1(
    domains: Sequence[Domain], declared: Any, says: str
) -> None:
    own = list(zip(LOSSES, domains, strict=True))
    grid = Recorder(app_of(lambda context, both: FedFWClient(context, *both), own), N)
    strategy = FedFW(BALL, client_domains=declared)
    refused(re.escape(says), lambda: play(strategy, grid, START, 5))
    assert {m.metadata.message_type for m in grid.sent} == {"query.hello"}


def test_larger_sets_that_are_declared() -> None:
    """§4.3: ℓ2 and ℓ∞ balls around the ℓ1 ball, so that a step has several atoms."""
    domains = [BALL, L2Ball(RADIUS), BALL, LInfBall(RADIUS), BALL]
    rng = np.random.default_rng(4)
    losses = [Distance(rng.standard_normal(400)) for _ in range(N)]
    how: Any = {"losses": losses, "start": np.zeros(400), "domains": domains}
    more: Any = {"penalty": 0.5, "client_domains": domains[1:4:2]}
    strategy = FedFW(BALL, variant="plain", **more)
    played, grid = recorded(strategy, 5, **how)
    assert [record.used for record in strategy.history] == [N] * 5
    kinds = [SparseAtom, DenseAtom, SparseAtom, SignAtom, SparseAtom]
    for (_, i), messages in grid.answers.items():
        arrays = record_arrays(messages[0].content.array_records[ARRAYS])
        (atom,) = unpack_atoms(arrays, (400,))
        assert isinstance(atom, kinds[i])
    check_mean(played)
    small = FedFW(BALL, variant="plain", client_domains=[L2Ball(0.5 * RADIUS)])
    refused("does not enclose", lambda: recorded(small, 1, **how))
    # an atom of the others may be outside, and the model says so each round
    outside = [float(np.abs(model).sum() > RADIUS) for model in played.models]
    assert 1.0 in outside
    assert outside == [m["outside-domain"] for m in played.watch.metrics]
