"""Who took part? Membership attacks on runs with and without differential privacy.

Digits are dealt to many clients, half of which take part in a run; an attacker sees all
models of the run and asks of every client whether it did. Its advantage is the share of
those who did among its "yes", less that of those who did not: 0 for a coin, 1 for
certainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from scipy.stats import norm, t

from clients import FedAvgGDClient
from fedtrellis.objectives import MultinomialLogistic
from fedtrellis.random import generator
from fedtrellis.server.aggregation import Private
from fedtrellis.server.callbacks import Call
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.local_grid import LocalGrid
from strategies import FedAvgGD

from .report import Aim, Comparison, Row
from .traffic import app_of

__all__ = ["ATTACKS", "FULL", "QUICK", "Case", "advantages", "compare", "trials"]

#: By what each attacker ranks clients, from least to most that it knows.
ATTACKS = ("loss", "all but one")
_STEP, _LOCAL_STEPS, _CLIP, _DELTA = 0.5, 5, 0.5, 1e-5
_TEST = 357


@dataclass(frozen=True)
class Case:
    """Clients, half of which take part, rounds, and an even number of runs a row."""

    candidates: int
    rounds: int
    trials: int


QUICK = Case(24, 10, 6)
FULL = Case(96, 20, 60)


@dataclass(frozen=True)
class Trial:
    """Who took part, each attack's scores, both of shape (candidates,), accuracy, ε.

    The accuracy is the last model's on images that nobody has; ε is infinite where the
    run says none.
    """

    member: Any
    scores: Mapping[str, FloatArray]
    accuracy: float
    epsilon: float


@lru_cache(maxsize=1)
def _digits() -> tuple[FloatArray, Any]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels / 16.0, labels


def _change(loss: MultinomialLogistic, x: FloatArray) -> FloatArray:
    """What a client's local steps change, clipped: what the server adds up."""
    own = x
    for _ in range(_LOCAL_STEPS):
        own = own - _STEP * loss.gradient(own)
    change = own - x
    return change * min(1.0, _CLIP / max(float(np.linalg.norm(change)), 1e-300))


def _trial(case: Case, epsilon: float | None, seed: int) -> Trial:
    pixels, labels = _digits()
    rng = generator(seed, "membership")
    order = rng.permutation(len(labels))
    test, rest = order[:_TEST], order[_TEST:]
    losses = [
        MultinomialLogistic(pixels[part], labels[part], classes=10)
        for part in np.array_split(rest, case.candidates)
    ]
    member = np.zeros(case.candidates, dtype=bool)
    member[rng.permutation(case.candidates)[: case.candidates // 2]] = True
    own = [loss for loss, takes_part in zip(losses, member, strict=True) if takes_part]
    models: list[FloatArray] = []
    noise: dict[str, Any] = {"noise_multiplier": 0.0}
    if epsilon is not None:
        noise = {"epsilon": epsilon, "delta": _DELTA}
    strategy = FedAvgGD(
        local_steps=_LOCAL_STEPS,
        step_size=_STEP,
        step_schedule="constant",
        aggregation=Private(clip=_CLIP, **noise),
        callbacks=[Call(lambda _: models.append(strategy.broadcast.model.copy()))],
    )
    app = app_of(FedAvgGDClient, own)
    start = np.zeros(losses[0].shape)
    strategy.start(LocalGrid(app, len(own)), ArrayRecord([start]), case.rounds)
    # the attacker has the models and every client's data, and no member's noise
    seen = [start, *(model.reshape(start.shape) for model in models)]
    known, size = np.zeros((2, case.candidates))
    for x, following in pairwise(seen):
        changes = np.array([_change(loss, x) for loss in losses])
        moved = len(own) * (following - x)
        # what is left of the sum without all others that took part
        left = moved - changes[member].sum(axis=0)
        known += np.sum(left * changes, axis=(1, 2))
        squares = np.sum(changes**2, axis=(1, 2))
        known, size = known + member * squares, size + squares
    scores = (pixels[test] @ seen[-1][:-1] + seen[-1][-1]).argmax(axis=1)
    return Trial(
        member,
        {
            "loss": np.array([-loss.value(seen[-1]) for loss in losses]),
            "all but one": known / size,
        },
        float(np.mean(scores == labels[test])),
        strategy.history[-1].train.get("epsilon", np.inf),
    )


def trials(case: Case, epsilon: float | None) -> list[Trial]:
    """Runs with an ε, or None: clipped as well, without noise."""
    return [_trial(case, epsilon, k) for k in range(case.trials)]


def advantages(found: list[Trial], attack: str) -> tuple[float, float, float]:
    """An attack's advantage, and its 95 % interval over the runs.

    The threshold is the best of one half of the runs and is used on the other half, and
    the other way round, so that it fits no noise.
    """
    values = []
    halves = found[::2], found[1::2]
    for fitted, used in (halves, halves[::-1]):
        scores = np.concatenate([one.scores[attack] for one in fitted])
        members = np.concatenate([one.member for one in fitted])
        # the threshold with the largest true-positive less false-positive rate
        order = np.argsort(-scores)
        gains = np.cumsum(
            np.where(members[order], 1.0 / members.sum(), -1.0 / (~members).sum())
        )
        best = int(gains.argmax())
        threshold = float(scores[order][best : best + 2].mean())
        for one in used:
            yes = one.scores[attack] >= threshold
            values.append(float(yes[one.member].mean() - yes[~one.member].mean()))
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(t.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5
    return mean, mean - half, mean + half


def largest_advantage(epsilon: float, delta: float = _DELTA) -> float:
    """What no attack can beat where (ε, δ) is all of one Gaussian's: 2Φ(μ/2) − 1."""
    import dp_accounting

    mu = 1.0 / dp_accounting.get_sigma_gaussian(epsilon, delta)
    return float(2.0 * norm.cdf(mu / 2.0) - 1.0)


def compare(case: Case) -> Iterator[Comparison]:
    """The attacks' advantages at ε = 1, 8 and ∞."""
    result = Comparison(
        "membership",
        "Advantage of membership attacks on a client's whole data",
        f"{case.candidates} clients of about {1440 // case.candidates} digits, half of "
        f"which take part; {case.rounds} rounds of FedAvg with everybody, clip {_CLIP},"
        f" δ = {_DELTA:g}; {case.trials} runs a row, 95 % intervals over the runs.",
    )
    strongest = {}
    for epsilon in (1.0, 8.0, None):
        found = trials(case, epsilon)
        row: Row = {
            "ε": "∞" if epsilon is None else f"{found[0].epsilon:.2f}",
            "accuracy %": f"{100 * np.mean([one.accuracy for one in found]):.1f}",
        }
        for attack in ATTACKS:
            strongest[epsilon] = mean, low, high = advantages(found, attack)
            row[attack] = f"{mean:.2f} ({low:.2f} – {high:.2f})"
        bound = 1.0 if epsilon is None else largest_advantage(epsilon)
        row["no attack beyond"] = f"{bound:.2f}"
        result.rows.append(row)
    (private, low, _), (certain, *_) = strongest[1.0], strongest[None]
    most = largest_advantage(1.0)
    result.aims.append(
        Aim(
            "the strongest attack: near chance at ε = 1, certain without noise",
            f"{private:.2f}, of {most:.2f} at most, and {certain:.2f}",
            low <= most and certain > 0.9,
        )
    )
    yield result
