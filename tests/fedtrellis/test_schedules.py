"""Step sizes, penalties and averaging weights against numbers worked out by hand."""

import math

import pytest

from fedtrellis.schedules import SCHEDULES, FrankWolfeSchedule


@pytest.mark.parametrize(
    ("p", "t", "step", "penalty"),
    [
        # η_t = 2 / (p (t − 1) + 2),  λ_t = λ_0 √(p (t − 1) + 2),  λ_0 = 3
        (1.0, 1, 1.0, 3 * math.sqrt(2.0)),  # 2 / 2, 3 √2
        (1.0, 3, 0.5, 6.0),  # 2 / 4, 3 √4
        (1.0, 8, 2 / 9, 9.0),  # 2 / 9, 3 √9
        (0.5, 1, 1.0, 3 * math.sqrt(2.0)),
        (0.5, 5, 0.5, 6.0),  # p (t − 1) = 2
        (0.1, 21, 0.5, 6.0),  # p (t − 1) = 2
    ],
)
def test_convex_row(p: float, t: int, step: float, penalty: float) -> None:
    schedule = FrankWolfeSchedule("convex", 3.0, participation=p)
    assert schedule.step(t) == pytest.approx(step, rel=1e-14)
    assert schedule.penalty_weight(t) == pytest.approx(penalty, rel=1e-14)


def test_convex_row_at_full_participation_is_two_over_t_plus_one() -> None:
    schedule = FrankWolfeSchedule("convex", 0.25)
    for t in range(1, 50):
        assert schedule.step(t) == 2.0 / (t + 1)
        assert schedule.penalty_weight(t) == 0.25 * math.sqrt(t + 1)


@pytest.mark.parametrize(
    ("p", "rounds", "step", "penalty"),
    [
        # η = (p T + 1)^(−2/3),  λ = λ_0 (p T + 1)^(1/3),  λ_0 = 3
        (1.0, 7, 0.25, 6.0),  # 8^(−2/3) = 1/4, 3 · 8^(1/3) = 6
        (1.0, 26, 1 / 9, 9.0),  # 27^(−2/3) = 1/9, 3 · 3
        (0.5, 14, 0.25, 6.0),  # p T + 1 = 8
        (0.25, 4, 2.0 ** (-2 / 3), 3 * 2.0 ** (1 / 3)),  # p T + 1 = 2
    ],
)
def test_nonconvex_row_is_constant(
    p: float, rounds: int, step: float, penalty: float
) -> None:
    schedule = FrankWolfeSchedule("nonconvex", 3.0, p, rounds)
    for t in (1, 2, rounds):
        assert schedule.step(t) == pytest.approx(step, rel=1e-14)
        assert schedule.penalty_weight(t) == pytest.approx(penalty, rel=1e-14)


@pytest.mark.parametrize(
    ("t", "step", "penalty", "averaging"),
    [
        # η_t = 9 / (t + 8),  λ_t = λ_0 √(t + 8),  ρ_t = 4 / (t + 7)^(2/3), λ_0 = 2
        (1, 1.0, 6.0, 1.0),  # 9 / 9, 2 √9, 4 / 8^(2/3) = 4 / 4
        (8, 9 / 16, 8.0, 4 / 15 ** (2 / 3)),  # 2 √16
        (20, 9 / 28, 2 * math.sqrt(28), 4 / 9),  # 27^(2/3) = 9
        (57, 9 / 65, 2 * math.sqrt(65), 0.25),  # 64^(2/3) = 16
    ],
)
def test_stochastic_row(t: int, step: float, penalty: float, averaging: float) -> None:
    schedule = FrankWolfeSchedule("stochastic", 2.0)
    assert schedule.step(t) == pytest.approx(step, rel=1e-14)
    assert schedule.penalty_weight(t) == pytest.approx(penalty, rel=1e-14)
    assert schedule.averaging_weight(t) == pytest.approx(averaging, rel=1e-14)


def test_constant_row_is_what_the_user_says() -> None:
    schedule = FrankWolfeSchedule("constant", 0.3, step_size=0.2, averaging=0.7)
    for t in (1, 2, 1000):
        assert schedule.step(t) == 0.2
        assert schedule.penalty_weight(t) == 0.3
    assert schedule.averaging_weight(2) == 0.7


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_first_averaging_weight_is_exactly_one(name: str) -> None:
    schedule = FrankWolfeSchedule(name, 1.0, 0.5, 10)
    assert schedule.averaging_weight(1) == 1.0
    weights = [schedule.averaging_weight(t) for t in range(1, 100)]
    assert all(0.0 < weight <= 1.0 for weight in weights)


@pytest.mark.parametrize("name", ["convex", "stochastic"])
def test_the_first_step_is_exactly_one(name: str) -> None:
    for p in (0.01, 0.3, 1.0):
        assert FrankWolfeSchedule(name, 1.0, p).step(1) == 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_steps_are_never_above_one_and_never_grow(name: str) -> None:
    schedule = FrankWolfeSchedule(name, 1.0, 0.37, 200)
    steps = [schedule.step(t) for t in range(1, 201)]
    assert all(0.0 < step <= 1.0 for step in steps)
    assert steps == sorted(steps, reverse=True)
