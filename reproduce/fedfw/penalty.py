"""Ours: λ_0 that the clients find, beside the best of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sim
from fedtrellis.corrective.penalty import automatic_penalty
from fedtrellis.domains import Domain, GroupL1Ball, Simplex, TotalVariationBall
from fedtrellis.objectives import LeastSquares, Logistic
from fedtrellis.objectives.base import MeanObjective
from fedtrellis.objectives.reference import certified_minimum
from fedtrellis.schedules import FrankWolfeSchedule
from reproduce.common import Item, Options, app_config, workers
from reproduce.drawing import measured, new_figure, save, style_of

__all__ = ["EXCEPTIONS", "ITEMS", "MADE_ON", "OTHERS", "Federated", "converge", "rule"]

Array = NDArray[np.float64]

NODES = 10
ROUNDS = 500
#: λ_0 of the grid are the rule's times 2 to these, and further on where the best of
#: them is the first or the last.
EXPONENTS = tuple(range(-4, 5))
FURTHEST = 12
VARIANTS = {"FedFW": False, "FedFW+": True}


@dataclass
class Federated:
    """A problem dealt to clients.

    Attributes
    ----------
    gradients : sequence of callable
        ∇f_i.
    domain : Domain
    start : ndarray
        x¹.
    error : callable
        F(x) − F*; for a non-convex F the Frank-Wolfe gap.
    schedule : str
    """

    gradients: Sequence[Callable[[Array], Array]]
    domain: Domain
    start: Array
    error: Callable[[Array], float]
    schedule: str = "convex"


def _of_task(seed: int, **settings: Any) -> Federated:
    """A task of the app, with 10 clients."""
    config = app_config({"variant": "plain", "seed": seed, **settings})
    experiment = sim.app.experiment(config, NODES)
    task, layout, domain = experiment.task, experiment.layout, experiment.domain
    start = experiment.start_point()

    def gradient_of(client: int) -> Callable[[Array], Array]:
        objective = task.client_objective(client)
        return lambda x: layout.objective_gradient(
            objective.gradient(layout.objective_point(x))
        )

    def gap(x: Array) -> float:
        gradient = task.gradient(layout.objective_point(x))
        return domain.gap(layout.objective_gradient(gradient), x)

    error = gap
    if task.convex and len(layout.shapes) == 1:
        known = task.reference_optimum(domain)
        if known is None:
            known = certified_minimum(task.objective(), domain, start, 1e-5).value
        best = float(known)

        def error(x: Array) -> float:
            return float(task.value(layout.objective_point(x))) - best

    gradients = [gradient_of(i) for i in range(NODES)]
    schedule = experiment.suggestions().get("schedule", "convex")
    return Federated(gradients, domain, start, error, schedule)


def _of_objectives(
    objectives: Sequence[Any], domain: Domain, start: Array
) -> Federated:
    mean = MeanObjective(list(objectives))
    best = certified_minimum(mean, domain, start, 1e-5).value
    return Federated(
        [objective.gradient for objective in objectives],
        domain,
        start,
        lambda x: float(mean.value(x)) - best,
    )


def _simplex(seed: int) -> Federated:
    """Least squares with more columns than a client has rows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(100)
    objectives = []
    for _ in range(NODES):
        A = rng.standard_normal((20, 100))
        objectives.append(LeastSquares(A, A @ x + 0.1 * rng.standard_normal(20)))
    return _of_objectives(objectives, Simplex(1.0), np.full(100, 0.01))


def _variation(seed: int) -> Federated:
    """A sequence with four jumps, from noisy products with random rows."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.standard_normal(5), 20)
    objectives = []
    for _ in range(NODES):
        A = rng.standard_normal((15, 100))
        objectives.append(LeastSquares(A, A @ x + 0.5 * rng.standard_normal(15)))
    radius = 0.8 * float(abs(x[0]) + np.abs(np.diff(x)).sum())
    return _of_objectives(objectives, TotalVariationBall(radius), np.zeros(100))


def _groups(seed: int) -> Federated:
    """Classes by groups of features; clients of 10 to 100 rows on their own scale."""
    rng = np.random.default_rng(seed)
    x = np.where(np.arange(60) < 15, rng.standard_normal(60), 0.0)
    objectives = []
    for i in range(NODES):
        A = np.exp(0.5 * rng.standard_normal()) * rng.standard_normal(
            (10 * (i + 1), 60)
        )
        labels = rng.random(len(A)) < 1.0 / (1.0 + np.exp(-A @ x))
        objectives.append(Logistic(A, labels.astype(float)))
    return _of_objectives(objectives, GroupL1Ball(5.0, 5), np.zeros(60))


def _task(**settings: Any) -> Callable[[int], Federated]:
    return lambda seed: _of_task(seed, **settings)


Problems = dict[str, Callable[[int], Federated]]
#: The multiples were found on these, among others.
MADE_ON: Problems = {
    "LASSO, ℓ1": _task(task="lasso"),
    "digits, ℓ1": _task(task="digits"),
    "linear regression": _task(task="linear-regression"),
    "matrix completion, nuclear norm": _task(task="matrix-completion"),
    "least squares, simplex": _simplex,
    "chr12a, Birkhoff (gap)": _task(task="quadratic-assignment"),
}
#: These were tried once the rule stood.
OTHERS: Problems = {
    "MCLR, synthetic, Dirichlet, ℓ1": _task(
        **{
            "task": "classification",
            "domain": "l1-ball",
            "classification.partition": "dirichlet",
            "classification.train-limit": 2000,
        }
    ),
    "digits, spectral norm": _task(task="digits", domain="spectral-norm-ball"),
    "least squares, total variation": _variation,
    "logistic loss, groups, unequal clients": _groups,
}
#: Where the rule is known to be off.
EXCEPTIONS: Problems = {
    "logistic regression, breast cancer": _task(task="logistic-regression"),
    "kernel PCA (gap)": _task(task="kernel-pca"),
}


def rule(problem: Federated, augmented: bool) -> float:
    """Return λ_0 as the strategy finds it."""
    n = len(problem.gradients)
    norms = [np.linalg.norm(grad(problem.start)) / n for grad in problem.gradients]
    return automatic_penalty(
        float(np.median(norms)),
        problem.domain.diameter(problem.start.shape),
        problem.schedule,
        augmented,
    )


def converge(problem: Federated, penalty: float, augmented: bool, rounds: int) -> Array:
    """Return x̄ of FedFW or FedFW+ with everybody there, without messages."""
    n, domain = len(problem.gradients), problem.domain
    schedule = FrankWolfeSchedule(problem.schedule, penalty, num_rounds=rounds)
    x_bar = problem.start.copy()
    x = [problem.start.copy() for _ in range(n)]
    y = [np.zeros_like(x_bar) for _ in range(n)]
    for t in range(1, rounds + 1):
        eta, weight = schedule.step(t), schedule.penalty_weight(t)
        for i, gradient in enumerate(problem.gradients):
            apart = x[i] - x_bar
            if augmented:
                y[i] += penalty * apart
            # g_i = (1/n) ∇f_i(x_i) + λ_t (x_i − x̄) [+ y_i]
            atom = domain.lmo(gradient(x[i]) / n + weight * apart + y[i])
            x[i] *= 1.0 - eta
            atom.add_to(x[i], eta)
        x_bar = np.mean(x, axis=0)
    return x_bar


def _search(arguments: tuple[str, int, int]) -> dict[str, Any]:
    """Errors of one problem with the rule's λ_0 and multiples, for both variants."""
    name, seeds, rounds = arguments
    make = (MADE_ON | OTHERS | EXCEPTIONS)[name]
    problems = [make(seed) for seed in range(seeds)]
    found: dict[str, Any] = {}
    for variant, augmented in VARIANTS.items():
        penalties = [rule(problem, augmented) for problem in problems]
        errors: dict[int, list[float]] = {}
        todo, best = list(EXPONENTS), 0
        while todo:
            for exponent in todo:
                errors[exponent] = [
                    problem.error(
                        converge(problem, p * 2.0**exponent, augmented, rounds)
                    )
                    for problem, p in zip(problems, penalties, strict=True)
                ]
            best = min((float(np.mean(e)), k) for k, e in errors.items())[1]
            further = {min(errors): best - 1, max(errors): best + 1}.get(best)
            todo = [] if further is None or abs(best) == FURTHEST else [further]
        exponents = sorted(errors)
        found[variant] = {
            "penalty": penalties,
            "exponents": exponents,
            "errors": [errors[e] for e in exponents],
            "best": best,
            "edge": best in (exponents[0], exponents[-1]),
            "ratio": float(np.mean(errors[0]) / np.mean(errors[best])),
            "ratios": [a / b for a, b in zip(errors[0], errors[best], strict=True)],
        }
    return found


def compute(options: Options) -> dict[str, Any]:
    """All problems; the seeds deal data and clients, the same for all λ_0."""
    seeds, rounds = min(options.seeds, 3), ROUNDS
    names = [*MADE_ON, *OTHERS, *EXCEPTIONS]
    if options.quick:
        seeds, rounds, names = 1, 30, ["LASSO, ℓ1", "least squares, total variation"]
    with workers(options.jobs) as pool:
        found = list(pool.map(_search, [(name, seeds, rounds) for name in names]))
    rows = dict(zip(names, found, strict=True))
    return {"rows": rows, "rounds": rounds, "seeds": seeds}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw the error over λ_0, a panel for each variant; and a table."""
    rows = results["rows"]
    figure, axes = new_figure(len(VARIANTS), 2)
    half = -(-len(rows) // 2)
    kinds = {"made on": MADE_ON, "tried on": OTHERS, "known to be off": EXCEPTIONS}
    lines = [
        "| problem | the rule was | "
        + " | ".join(
            f"{v}: λ_0 | best λ_0 / that | error / that of the best" for v in VARIANTS
        )
        + " |",
        "| --- | --- |" + " --- |" * (3 * len(VARIANTS)),
    ]
    for k, (name, found) in enumerate(rows.items()):
        kind = next(kind for kind, names in kinds.items() if name in names)
        cells = []
        for one, variant in zip(axes[k // half], VARIANTS, strict=True):
            row = found[variant]
            errors = np.mean(row["errors"], axis=1)
            one.plot(
                2.0 ** np.array(row["exponents"]),
                errors / errors.min(),
                label=f"{name} ({kind})",
                **style_of(k % half),
            )
            multiple = f"{2.0 ** row['best']:g}" + (" or less" if row["edge"] else "")
            each = ", ".join(f"{ratio:.2g}" for ratio in row["ratios"])
            cells.append(
                f"{np.mean(row['penalty']):.2g} | {multiple} "
                f"| {row['ratio']:.2f} ({each})"
            )
        lines.append(f"| {name} | {kind} | " + " | ".join(cells) + " |")
    for one, variant in zip(axes.flat, 2 * list(VARIANTS), strict=True):
        one.axhline(3.0, color="black", linewidth=0.8)
        one.axvline(1.0, color="black", linewidth=0.8)
        one.set_title(variant)
        one.set_xlabel(r"$\lambda_0$ / the rule's")
        one.set_ylabel(r"error / that of the best $\lambda_0$")
        one.set_xscale("log", base=2)
        one.set_yscale("log")
        one.set_ylim(0.8, 300)
        one.legend(fontsize="x-small")
    lines += [
        "",
        f"F − F* after {results['rounds']} rounds with everybody, {NODES} clients; for "
        "the non-convex problems the Frank-Wolfe gap. Mean over "
        f"{results['seeds']} seeds, in brackets each seed's; the best λ_0 of a grid "
        f"with steps of 2 is none at its edge. {measured(results)}",
    ]
    return f"{save(figure, out, 'penalty')}\n\n" + "\n".join(lines)


ITEMS = {
    "penalty": Item(
        "λ_0 that the clients find, beside the best of a grid; ours", compute, render
    )
}
