"""What FedFW's server learns of a client: each test is an attack on a real run.

The server is honest but curious unless a test says otherwise: a strategy that follows
the protocol and keeps what it sees. ``docs/fedfw.md`` says in words what these show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from clients import FedFWClient
from fedtrellis.domains import Domain, L1Ball, L2Ball
from fedtrellis.objectives import LeastSquares, Logistic
from strategies import FedFW
from tests.harness import Array, grid_of, play

N, P = 5, 8
_RNG = np.random.default_rng(7)
_TRUTH = _RNG.standard_normal(P) * (_RNG.random(P) < 0.5)  # ‖·‖₁ = 2.9


def _loss(kind: Any, rows: int, spread: float) -> Any:
    a = _RNG.standard_normal((rows, P))
    b = a @ (_TRUTH + spread * _RNG.standard_normal(P)) + 0.4 * _RNG.standard_normal(
        rows
    )
    return kind(a, b > 0.0 if kind is Logistic else b)


SQUARES = [_loss(LeastSquares, 30, 0.5) for _ in range(N)]
LOGISTIC = [_loss(Logistic, 60, 0.7) for _ in range(N)]
# balls whose border the solution is on, and ones in whose interior it is
TIGHT, WIDE = 1.0, 6.0


@dataclass
class Round:
    """What the server knows of a client's round: ∇f_i(x) = c u − v, with c unknown."""

    x: Array  # where the gradient was taken
    atom: Array  # s_i
    v: Array  # n (λ_t (x_i − x̄) [+ y_i])


class Curious(FedFW):
    """Follows the protocol, and keeps all that it sees."""

    def setup(self, point: Array, layout: Any) -> None:
        super().setup(point, layout)
        self.rounds: dict[str, list[Round]] = {name: [] for name in self.clients}
        self.answers: list[dict[str, Any]] = []

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        self.answers.append(answers)
        if self.variant == "corrective":
            return super().aggregate(server_round, answers)
        x_bar = self.broadcast.model.copy()
        points = {name: self.half._client_iterate(name) for name in answers}
        asked = {name: self.half.instruction(server_round, name) for name in answers}
        metrics = super().aggregate(server_round, answers)
        for name, answer in answers.items():
            v = asked[name]["penalty"] * (points[name] - x_bar)
            if self.variant == "augmented":
                v = v + self.client_state(name)["y"]
            atom = answer[0][0].dense()
            self.rounds[name].append(Round(points[name], atom, N * v))
        return metrics


def spy(
    domain: Domain, rounds: int, losses: Sequence[Any] = SQUARES, **settings: Any
) -> Curious:
    strategy = Curious(domain, **settings)
    play(strategy, grid_of(FedFWClient, losses, domain), np.zeros(P), rounds)
    return strategy


def error(found: Array, truth: Array) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def hessian(loss: Any) -> Array:
    zero = loss.gradient(np.zeros(P))
    return np.array([loss.gradient(one) - zero for one in np.eye(P)])


_I, _J = np.triu_indices(P)
_UNKNOWN = _I.size  # entries of a symmetric H


def _quadratic_model(x: Array) -> Array:
    """The matrix that makes H x + b of (H's upper triangle, b)."""
    matrix = np.zeros((P, _UNKNOWN + P))
    entries, off = np.arange(_UNKNOWN), _I != _J
    matrix[_I, entries] += x[_J]
    matrix[_J[off], entries[off]] += x[_I[off]]
    matrix[:, _UNKNOWN:] = np.eye(P)
    return matrix


def unscale(rounds: Sequence[Round]) -> tuple[Array, Array, Array]:
    """The attack on directions: H, b and ∇f_i at the last x.

    With u = −s/r the client's g_i has the direction u and an unknown length, so that
    H x_t + b − c_t u_t = −v_t. The rounds have p equations each and one unknown of
    their own; what they share is a quadratic model of f_i.
    """
    lengths = np.zeros((len(rounds), P, len(rounds)))
    for t, one in enumerate(rounds):
        lengths[t, :, t] = one.atom / np.linalg.norm(one.atom)
    shared = np.concatenate([_quadratic_model(one.x) for one in rounds])
    matrix = np.hstack([shared, lengths.reshape(-1, len(rounds))])
    right = -np.concatenate([one.v for one in rounds])
    scale = np.linalg.norm(matrix, axis=0) + 1e-300
    solved = np.linalg.lstsq(matrix / scale, right, rcond=1e-13)[0] / scale
    model, full = solved[: _UNKNOWN + P], np.zeros((P, P))
    full[_I, _J] = full[_J, _I] = model[:_UNKNOWN]
    return full, model[_UNKNOWN:], _quadratic_model(rounds[-1].x) @ model


@pytest.mark.parametrize(
    ("variant", "radius"), [("plain", TIGHT), ("plain", WIDE), ("augmented", TIGHT)]
)
def test_l2_directions_give_least_squares_away(variant: str, radius: float) -> None:
    """20 rounds give gradient, AᵀA and Aᵀb to rounding."""
    run = spy(L2Ball(radius), 20, variant=variant)
    for name, loss in zip(run.clients, SQUARES, strict=True):
        found, constant, gradient = unscale(run.rounds[name])
        assert error(gradient, loss.gradient(run.rounds[name][-1].x)) < 1e-9
        assert error(found, hessian(loss)) < 1e-6
        assert error(constant, loss.gradient(np.zeros(P))) < 1e-9


def test_l2_directions_give_a_logistic_gradient_to_a_few_percent() -> None:
    """The quadratic model is an approximation here, and is good enough."""
    run = spy(L2Ball(1.5), 50, LOGISTIC, variant="plain")
    for name, loss in zip(run.clients, LOGISTIC, strict=True):
        rounds = run.rounds[name]
        assert error(unscale(rounds)[2], loss.gradient(rounds[-1].x)) < 0.05


def test_an_automatic_penalty_sends_the_length_too() -> None:
    """With penalty="auto" the first answer has ‖∇f_i(x¹)‖: on an ℓ2 ball all of it."""
    run = spy(L2Ball(TIGHT), 1, variant="plain")
    for name, loss in zip(run.clients, SQUARES, strict=True):
        answer = run.answers[0][name]
        found = -N * answer[1] * answer[0][0].dense() / TIGHT
        assert error(found, loss.gradient(np.zeros(P))) < 1e-12


def rank(rounds: Sequence[Round]) -> Array:
    """The attack on coordinates: ∇f_i at the last x.

    A round says that entry j of H x_t + b + v_t has this sign and is the largest:
    2 (p − 1) linear inequalities. Of all quadratic models that fit, the one farthest
    from every inequality (Chebyshev's centre of a polyhedron).
    """
    above, right = [], []
    for one in rounds:
        model = _quadratic_model(one.x)
        j = int(np.abs(one.atom).argmax())
        sign = -np.sign(one.atom[j])
        for k in set(range(P)) - {j}:
            for other in (1.0, -1.0):
                above.append(other * model[k] - sign * model[j])
                right.append(sign * one.v[j] - other * one.v[k])
    norms = np.linalg.norm(above, axis=1, keepdims=True)
    solved = linprog(
        np.r_[np.zeros(_UNKNOWN + P), -1.0],
        np.hstack([above, norms]),
        right,
        bounds=[(None, None)] * (_UNKNOWN + P) + [(0.0, None)],
    )
    assert solved.x is not None
    return np.asarray(_quadratic_model(rounds[-1].x) @ solved.x[:-1])


def test_l1_coordinates_give_the_gradient_in_the_interior() -> None:
    """One coordinate and one sign a round: to a few percent after 300 rounds."""
    rounds = spy(L1Ball(WIDE), 300, variant="augmented").rounds["0"]
    assert error(rank(rounds), SQUARES[0].gradient(rounds[-1].x)) < 0.05


def test_l1_coordinates_say_little_where_the_ball_is_tight() -> None:
    """Few vertices come up, and this attack fails; what it knows for sure is small."""
    rounds = spy(L1Ball(TIGHT), 300, variant="plain").rounds["0"]
    last, gradient = rounds[-1], SQUARES[0].gradient(rounds[-1].x)
    assert len({tuple(one.atom) for one in rounds[100:]}) <= 6  # of 16
    assert error(rank(rounds), gradient) > 0.3
    # one entry is the largest, and its sign is known
    g = gradient + last.v
    assert -last.atom @ g == pytest.approx(TIGHT * np.abs(g).max())


def duals(run: Curious) -> list[tuple[Array, Array]]:
    """The attack: −n y_i is ∇f_i(x_i), up to the normal cone; and x_i."""
    states = [(run.client_state(name)["y"], name) for name in run.clients]
    return [(-N * y, run.half._client_iterate(name)) for y, name in states]


def test_corrective_duals_are_the_gradients_in_the_interior() -> None:
    """x_i and y_i are replayed by the server as it must; nothing has to be solved."""
    for (found, x), loss in zip(
        duals(spy(L2Ball(20.0), 30, LOGISTIC)), LOGISTIC, strict=True
    ):
        assert error(found, loss.gradient(x)) < 1e-4


def test_corrective_duals_lack_the_length_along_x_on_an_l2_ball() -> None:
    """−n y_i − ∇f_i(x_i) = θ x_i: all but one number, which is not 0, is known."""
    lacking = []
    for (found, x), loss in zip(duals(spy(L2Ball(TIGHT), 20)), SQUARES, strict=True):
        rest = found - loss.gradient(x)
        lacking.append(float(rest @ x) / float(x @ x))
        off = float(np.linalg.norm(rest - lacking[-1] * x))
        assert off < 1e-6 * np.linalg.norm(loss.gradient(x))
    assert max(lacking) > 1.0


def test_corrective_duals_on_an_l1_ball() -> None:
    """On the support ∇f_i(x_i) up to θ sign(x_i), one θ; off it within ±θ."""
    run = spy(L1Ball(TIGHT), 40)
    for (found, x), loss in zip(duals(run), SQUARES, strict=True):
        gradient = loss.gradient(x)
        near = 1e-6 * float(np.linalg.norm(gradient))
        rest, support = found - gradient, x != 0.0
        assert 0 < support.sum() < P
        thetas = (rest * np.sign(x))[support]
        theta = float(thetas.mean())
        assert theta > 1.0
        assert thetas == pytest.approx(theta, abs=near)
        assert np.abs(rest[~support]).max() <= theta + near


def test_what_the_first_corrective_round_sends() -> None:
    """Without a penalty yet x_i goes to where f_i alone is smallest."""
    run = spy(L2Ball(WIDE), 1)
    for name, loss in zip(run.clients, SQUARES, strict=True):
        own = np.asarray(np.linalg.solve(hessian(loss), -loss.gradient(np.zeros(P))))
        assert np.linalg.norm(own) < WIDE
        assert error(run.half._client_iterate(name), own) < 0.01


def test_a_certificate_sends_every_client_s_loss() -> None:
    """φ_i = f_i(x_i) / n as it is."""
    run = spy(L1Ball(TIGHT), 3, certificate=True)
    for name, loss in zip(run.clients, SQUARES, strict=True):
        _, (loss_sent, _), *_ = run.answers[-1][name]
        value = loss.value(run.half._client_iterate(name))
        assert N * loss_sent == pytest.approx(value, rel=1e-12)
