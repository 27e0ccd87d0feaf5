"""Theorems 4.5, 4.8 and 4.11: the paper's algorithm 3 against a central solver.

The step is written here once more, in one place and without messages, from the paper's
formulas, as a reference that shares nothing with the package but the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sim
from fedtrellis.objectives.losses import Hinge
from fedtrellis.random import generator
from fedtrellis.wire.arrays import FloatArray
from reproduce.common import LEDGER, Item, Options, app_config, read_config, workers
from reproduce.drawing import new_figure, panel, save, table
from reproduce.rates import late_slope
from tasks import HybridTask

__all__ = ["ITEMS"]

HERE = Path(__file__).parent
SEEDS = 5
ITERATIONS = 2000
SAMPLES = 400
#: H/N_k: less than all, or there is nothing random in the hybrid setting.
PART = 0.5
HINGE = Hinge()

#: Which clients are there in iteration t.
Available = Callable[[int], list[int]]


def everybody(nodes: int, seed: int) -> Available:
    """All clients."""
    return lambda t: list(range(nodes))


def half(nodes: int, seed: int) -> Available:
    """Each client is there with probability 1/2, anew in every iteration."""
    return lambda t: np.flatnonzero(
        generator(seed, "participation", t).random(nodes) < 0.5
    ).tolist()


def cyclic(nodes: int, seed: int) -> Available:
    """The clients in two sets of one size, one set after the other."""
    size = nodes // 2
    return lambda t: [(t - 1) % 2 * size + k for k in range(size)]


class Setting(NamedTuple):
    """What a theorem assumes: groups, c_k (None: N_k/N), γ_t, and who is there.

    Its bound on D* − D(α) is a function of the iteration, λ and D* − D(0).

    Client s·features + q holds sample group s of feature group q.
    """

    theorem: str
    samples: int
    features: int
    weight: float | None
    gamma: Callable[[int], float]
    available: Callable[[int, int], Available]
    bound: Callable[[float, float, float], float]


def falling(moved: float) -> Callable[[float, float, float], float]:
    """(3) and (4), 2G/(1 + h t/2) for G = 2L²/λ ≥ ε⁰, L = 1; h = H/N, or PH/N."""
    return lambda t, λ, first: 4.0 / λ / (1.0 + moved * t / 2.0)


def alternating(t: float, λ: float, first: float) -> float:
    """Theorem 4.11's (J_1 + J_2 (ln(t − C + 1) + 1)) / t^h, for C = 2, h = H/N, L = 1.

    J_1 = C^h ε¹, with ε⁰ for ε¹; J_2 = 2h(C + 1)/λ · ((C − 1)⁴ + 2(C − 1)² + 1).
    """
    j1, j2 = 2.0**PART * first, 2.0 * PART * 3.0 / λ * 4.0
    return float((j1 + j2 * (np.log(max(t - 1.0, 1.0)) + 1.0)) / t**PART)


SETTINGS = {
    "hybrid, 4 × 4, all there": Setting(
        "4.5", 4, 4, None, lambda t: 1.0, everybody, falling(PART / 4)
    ),
    "horizontal, 8 clients, half there": Setting(
        "4.8", 8, 1, 1.0, lambda t: 1.0, half, falling(4 * PART / 8)
    ),
    "vertical, 4 clients, half in turn": Setting(
        "4.11", 1, 4, 1.0, lambda t: 1.0 / t, cyclic, alternating
    ),
}


def _config(setting: Setting, seed: int, samples: int) -> dict[str, Any]:
    """A run config; its own rounds and steps do not count, as it runs in one place."""
    return read_config(HERE / "hyfdca.toml") | {
        # the theorems take ‖x_i‖ ≤ 1
        "hybrid-svm.row-scaling": "unit",
        "hybrid-svm.test-fraction": 0.0,
        "hybrid-svm.train-limit": samples,
        "hybrid-svm.sample-groups": setting.samples,
        "hybrid-svm.feature-groups": setting.features,
        "seed": seed,
    }


def theoretical(
    X: FloatArray,
    y: FloatArray,
    λ: float,
    clients: list[tuple[Any, Any]],
    setting: Setting,
    seed: int,
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Algorithm 3: w and α by iteration, with stale values of clients that are away.

    H samples of each client move. Clients that are away count with the inner products
    and the ŵ_k that they last sent.
    """
    rng, N, Q = np.random.default_rng(seed), len(y), setting.features
    H = max(1, int(PART * N / setting.samples))
    available = setting.available(len(clients), seed)
    parts = [X[np.ix_(rows, block)] for rows, block in clients]
    products = [np.zeros(len(rows)) for rows, _ in clients]
    sums = [np.zeros(len(block)) for _, block in clients]
    alpha, current = np.zeros(N), set(range(len(clients)))

    def aggregated(asked: Any) -> FloatArray:
        """PrimalAggregation: w from the ŵ_k, new ones of those who are asked."""
        for k in asked:
            sums[k] = parts[k].T @ alpha[clients[k][0]] / (λ * N)
        w = np.zeros(X.shape[1])
        for (_, block), own in zip(clients, sums, strict=True):
            w[block] += own
        return w

    w, t = aggregated([]), 1
    while True:
        yield w, alpha
        here, gamma = available(t), setting.gamma(t)
        if newcomers := [k for k in here if k not in current]:
            w = aggregated(newcomers)
        for k in here:
            products[k] = parts[k] @ w[clients[k][1]]
        move = np.zeros(N)
        for k in here:
            rows, first = clients[k][0], k - k % Q
            z = np.sum(products[first : first + Q], axis=0)
            c = len(rows) / N if setting.weight is None else setting.weight
            step = HINGE.theoretical_step(alpha[rows], z, y[rows], c, gamma, λ)
            drawn = rng.choice(len(rows), size=min(H, len(rows)), replace=False)
            move[rows[drawn]] += gamma * step[drawn] / Q
        alpha = alpha + move
        w, current, t = aggregated(here), set(here), t + 1


def _row(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """One seed of one setting."""
    name, seed, iterations, samples = job
    setting = SETTINGS[name]
    nodes, config = setting.samples * setting.features, _config(setting, seed, samples)
    task = sim.app.experiment(app_config(config), nodes).task
    assert isinstance(task, HybridTask)
    objective: Any = task.objective()
    X, y = np.asarray(objective.features), np.asarray(objective.labels)
    λ, optimum = task.regularization, task.optimum()
    best = np.asarray(optimum.w)
    data = [task.client_data(client) for client in range(nodes)]
    order = sorted({int(name) for one in data for name in one.sample_ids})
    position = {name: i for i, name in enumerate(order)}
    column = {name: i for i, name in enumerate(task.feature_names())}
    clients = [
        (
            np.array([position[int(name)] for name in one.sample_ids]),
            np.array([column[name] for name in one.feature_names]),
        )
        for one in data
    ]
    wanted = sorted({*np.geomspace(1, iterations, 60).astype(int).tolist(), iterations})
    loss, distance, headroom = [], [], inf
    steps = theoretical(X, y, λ, clients, setting, seed)
    for t, (w, alpha) in enumerate(islice(steps, iterations + 1)):
        if t in wanted:
            # D(α) = (1/N) Σ y_i α_i − λ/2 ‖(1/λN) Σ α_i x_i‖²
            v = X.T @ alpha / (λ * len(y))
            dual = float(y @ alpha) / len(y) - 0.5 * λ * float(v @ v)
            bound = setting.bound(t, λ, optimum.value)  # D(0) = 0
            headroom = min(headroom, bound / max(optimum.value - dual, 1e-300))
            primal = 0.5 * λ * float(w @ w) + float(HINGE.value(X @ w, y).mean())
            loss.append(primal / optimum.value - 1.0)
            distance.append(float(np.linalg.norm(w - best) / np.linalg.norm(best)))
    exponent = late_slope(wanted, loss)
    found = {"iteration": wanted, "loss": loss, "distance": distance}
    return found | {"exponent": exponent, "headroom": headroom}


def compute(options: Options) -> dict[str, Any]:
    """All settings on digits, five seeds."""
    iterations, samples, seeds = ITERATIONS, SAMPLES, options.numbers(SEEDS)
    if options.quick:
        iterations, samples = 60, 80
    jobs = [(n, seed, iterations, samples) for n in SETTINGS for seed in seeds]
    LEDGER.note(_config(SETTINGS[n], seed, samples) for n, seed, _, samples in jobs)
    with workers(options.jobs) as pool:
        found = list(pool.map(_row, jobs))
    rows = []
    for k, (name, setting) in enumerate(SETTINGS.items()):
        mine = found[k * len(seeds) : (k + 1) * len(seeds)]
        rows.append(
            {
                "setting": name,
                "theorem": setting.theorem,
                "iteration": mine[0]["iteration"],
                "loss": [run["loss"] for run in mine],
                "distance": [run["distance"] for run in mine],
                "exponents": [run["exponent"] for run in mine],
                "headroom": [run["headroom"] for run in mine],
            }
        )
    facts = {"iterations": iterations, "samples": samples, "seeds": len(seeds)}
    return {"rows": rows, **facts}


def render(results: dict[str, Any], out: Path) -> str:
    """Relative loss and distance over iterations, medians and bands."""
    figure, (axes,) = new_figure(2)
    for one, what, label in zip(
        axes,
        ("loss", "distance"),
        ("relative loss $(P - P^*)/P^*$", r"$\|w - w^*\| / \|w^*\|$"),
        strict=True,
    ):
        rows = results["rows"]
        curves = {row["setting"]: (row["iteration"], row[what]) for row in rows}
        panel(one, curves, "iteration $t$", label)
    lines = []
    for row in results["rows"]:
        ends = (np.median([own[-1] for own in row[k]]) for k in ("loss", "distance"))
        powers = ", ".join(f"{value:.2f}" for value in row["exponents"])
        cells = (row["theorem"], row["setting"], *(f"{end:.2g}" for end in ends))
        lines.append((*cells, powers, f"×{min(row['headroom']):.3g}"))
    head = "theorem | setting | (P − P*)/P* at the end | ‖w − w*‖/‖w*‖ at the end"
    more = "exponent of the loss, by seed | bound over D* − D(α), least"
    return (
        f"{save(figure, out, 'central')}\n\n"
        f"{table(f'{head} | {more}', lines)}\n\n"
        f"{results['samples']} digits, {results['iterations']:,} iterations; "
        f"medians of {results['seeds']} seeds, extremes in the picture. The exponent "
        "is that of the last decade."
    )


ITEMS = {
    "central": Item(
        "theorems 4.5, 4.8 and 4.11: the paper's step against a central solver",
        compute,
        render,
    )
}
