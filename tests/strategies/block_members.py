"""What a server that sees a block's sums alone can tell of the block's members.

Three clients have quadratic losses f_i(x) = xᵀH_i x/2 − c_iᵀx that the server does not
know. It has the sums of their answers over many rounds, at models that vary: are they
enough to find H_i and c_i? The derivative of all sums by all unknowns says so, by its
rank, and where it is full a solver finds them. The clients are the real ones, and the
sums those that the server takes out of their messages. Run as

    python -m tests.strategies.block_members > docs/measured/block-members.csv
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import clients
import strategies
from fedtrellis import LocalGrid, SecureSum
from fedtrellis.domains import L1Ball
from fedtrellis.manifolds import Sphere
from tests.harness import Array, app_of, play

P, MEMBERS = 2, 3
_UPPER = np.triu_indices(P)
#: Numbers that are unknown of each client: H_i is symmetric.
UNKNOWN = P * (P + 1) // 2 + P

CASES: dict[str, dict[str, Any]] = {
    "FedAvgGD one step": {"local_steps": 1},
    "FedAvgGD constant steps": {"local_steps": 5, "step_schedule": "constant"},
    "FedAvgGD falling steps": {"local_steps": 5},
    "LocalSGD": {},
    "FedProx": {"proximal_weight": 0.5},
    "FedOpt": {"optimizer": "adam"},
    "Scaffold one step": {"local_steps": 1},
    "Scaffold": {"local_steps": 5},
    "FedDR": {"proximal_step": 1.0},
    "ProjectedFedAvg": {},
    "FedGiA": {},
    "FedGiA fixed σ": {"sigma": 1.0},
    "FirstOrderRFL": {},
    "CompressedSGD": {"kept_fraction": 0.3},
    "FedLMO": {"batch_size": 0},
    "FedLMO averaged": {"variant": "averaged"},
    "FedLMO server": {"variant": "server"},
    "FedLMO ef21": {"variant": "ef21"},
    "ZerothOrderSGD": {"step_size": 0.02, "samples": 6, "batch_size": 0},
}


#: Steps that are set: those of its own a run finds from the losses' constants.
STEPS: dict[str, dict[str, Any]] = {
    **{m: {"step_size": 0.01} for m in ("FedAvgGD", "FedProx", "FedOpt", "Scaffold")},
    **{m: {"step_size": 0.005} for m in ("LocalSGD", "CompressedSGD")},
    **{m: {"local_step_size": 0.1} for m in ("ProjectedFedAvg", "FedDR")},
}


class Quadratic:
    """f(x) = xᵀHx/2 − cᵀx."""

    num_examples = 10

    def __init__(self, unknown: Array) -> None:
        self.h = np.zeros((P, P))
        self.h[_UPPER] = unknown[:-P]
        self.h = np.triu(self.h) + np.triu(self.h, 1).T
        self.c = unknown[-P:]

    def value(self, x: Array) -> float:
        return float(x @ self.h @ x / 2 - self.c @ x)

    def values(self, points: Any, rng: Any = None) -> Array:
        return np.array([self.value(x) for x in points])

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.h @ x - self.c)

    def stochastic_gradient(self, x: Array, rng: Any, size: int) -> Array:
        return self.gradient(x)

    def hessian_bound(self) -> Array:
        return self.h

    def lipschitz(self) -> float:
        return float(np.linalg.eigvalsh(self.h)[-1])


def secret(seed: int = 0) -> Array:
    rng, parts = np.random.default_rng(seed), []
    for _ in range(MEMBERS):
        a = rng.standard_normal((P, P))
        h = a @ a.T / P + 0.5 * np.eye(P)
        parts += [h[_UPPER], rng.standard_normal(P)]
    return np.concatenate(parts)


@dataclass
class Server:
    """What it saw, and went on with: what it saw first, so that models stay those."""

    case: str
    rounds: int
    apart: bool = False  # it reads each term, of clients without masks
    went_on_with: list[Array] = field(default_factory=list)

    def sums(self, unknown: Array) -> Array:
        apart = self.apart
        name, seen = self.case.partition(" ")[0], []
        first, rng = not self.went_on_with, np.random.default_rng(5)
        went_on_with = self.went_on_with

        class Sums(SecureSum):
            def total(self, answers: Any) -> Array:
                found = super().total(answers)
                read = [{n: a} for n, a in answers.items()] if apart else [answers]
                seen.append(np.concatenate([super(Sums, self).total(a) for a in read]))
                if first:
                    # models that go back and forth tell more than those that settle
                    moved = 0.3 * rng.standard_normal(found.size)
                    went_on_with.append(found + (moved if found.size == P else 0.0))
                return went_on_with[len(seen) - 1].copy()

        more: list[Any] = [Sphere((P,))] if name == "FirstOrderRFL" else []
        domain = [L1Ball(1.0)] if name in ("ProjectedFedAvg", "FedDR") else more
        losses = [Quadratic(part) for part in unknown.reshape(MEMBERS, -1)]
        app = app_of(getattr(clients, f"{name}Client"), losses, *more)
        settings = {**STEPS.get(name, {}), **CASES[self.case]}
        settings |= {"seed": 3, "aggregation": Sums()}
        strategy = getattr(strategies, name)(*domain, **settings)
        try:
            play(strategy, LocalGrid(app, MEMBERS), np.full(P, 0.1), self.rounds)
        except RuntimeError as error:  # the models were moved, after all
            if "diverged" not in str(error):
                raise
        return np.concatenate(seen)


def derivative(sums: Callable[[Array], Array], at: Array, step: float = 1e-4) -> Array:
    sums(at)
    columns = [
        (sums(at + step * e) - sums(at - step * e)) / (2 * step)
        for e in np.eye(at.size)
    ]
    return np.array(columns).T


def rank(matrix: NDArray[Any]) -> int:
    """Singular values well above what rounding to the fixed point makes."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return int(np.sum(values > 1e-6 * max(values[0], 1e-3)))


def determined(matrix: Array) -> tuple[int, int]:
    """Its rank, and how many numbers of a single member it determines, at most.

    What is determined is a combination of rows; of member i alone it is one that is
    zero at the others' unknowns.
    """
    whole, alone = rank(matrix), []
    for member in range(MEMBERS):
        own = slice(member * UNKNOWN, (member + 1) * UNKNOWN)
        alone.append(whole - rank(np.delete(matrix, own, axis=1)))
    return whole, max(alone)


def solver_error(server: Server, steps: int = 6) -> float:
    """How far Gauss and Newton's method ends from the unknowns; it starts near them.

    Of what the sums do not determine it keeps its start.
    """
    truth = secret()
    server.sums(truth)
    target = server.sums(truth)
    x = truth + 0.03 * np.random.default_rng(1).standard_normal(truth.size)
    for _ in range(steps):
        jacobian, residual = derivative(server.sums, x), server.sums(x) - target
        x = x - np.linalg.lstsq(jacobian, residual, rcond=1e-7)[0]
    return float(np.abs(x - truth).max())


def main() -> None:
    print("case,unknowns,rank,determined of one member,solver's error")
    for case in CASES:
        matrix = derivative(Server(case, 60).sums, secret())
        whole, alone = determined(matrix)
        error = solver_error(Server(case, 60))
        print(f"{case},{MEMBERS * UNKNOWN},{whole},{alone},{error:.1e}", flush=True)
        print(case, whole, alone, file=sys.stderr)


if __name__ == "__main__":
    main()
