"""Workshop paper, figure 1c: matrix completion on MovieLens-100k.

The method's arithmetic without its messages: 40 dense iterates of 943 × 1682 entries
are copied in and out of their nodes' states with every message, and that takes ten
times as long as the step. The tests compare this loop with the strategy; the bytes come
from the strategy's own encoded Messages.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

import sim
from fedtrellis.domains import NuclearNormBall
from fedtrellis.schedules import FrankWolfeSchedule
from reproduce.common import (
    Item,
    Options,
    evaluated_rounds,
    read_config,
    workers,
)
from reproduce.drawing import measured, new_figure, save
from tasks import make_task

from .traffic import bytes_a_round

__all__ = ["ITEMS", "leading_pair", "run"]

HERE = Path(__file__).parent
NODES = 40
#: The first has the paper's λ_0.
RUNS: dict[str, dict[str, Any]] = {
    "FedFW, λ_0 = 1e-5": {"penalty": 1e-5},
    "FedFW, λ_0 = 1e-9": {"penalty": 1e-9},
    "FedFW+, λ_0 = 1e-9": {"penalty": 1e-9, "variant": "augmented"},
}

Array = NDArray[np.float64]


def leading_pair(
    matrix: Array, start: Array, tolerance: float = 1e-2, most: int = 40
) -> tuple[Array, Array, int]:
    """Return the singular vectors u, v of the largest singular value, nearly.

    Golub and Kahan's bidiagonalisation with full reorthogonalisation, from a start of
    the caller's, until ‖A v − σ u‖ and ‖Aᵀ u − σ v‖ are at most ``tolerance`` · σ.

    Returns
    -------
    u, v : ndarray
        Unit vectors.
    products : int
        With the matrix or its transpose.
    """
    rows, columns = matrix.shape
    most = min(most, rows, columns)
    left = np.empty((most, rows), matrix.dtype)
    right = np.empty((most, columns), matrix.dtype)
    diagonal, above = np.zeros(most), np.zeros(most)
    v = (start / np.linalg.norm(start)).astype(matrix.dtype)
    for k in range(most):
        right[k] = v
        # α_k u_k = A v_k − β_{k−1} u_{k−1};  β_k v_{k+1} = Aᵀ u_k − α_k v_k
        u = matrix @ v
        if k:
            u -= left[:k].T @ (left[:k] @ u)
        diagonal[k] = np.linalg.norm(u)
        left[k] = u / max(diagonal[k], 1e-300)
        v = left[k] @ matrix
        v -= right[: k + 1].T @ (right[: k + 1] @ v)
        above[k] = np.linalg.norm(v)
        small = np.diag(diagonal[: k + 1]) + np.diag(above[:k], 1)
        p, values, q = np.linalg.svd(small)
        # the residual of the leading triple is β_k |last entry of p_1|
        if above[k] * abs(p[-1, 0]) <= tolerance * values[0] or k == most - 1:
            break
        v /= above[k]
    u = p[:, 0].astype(matrix.dtype) @ left[: k + 1]
    v = q[0].astype(matrix.dtype) @ right[: k + 1]
    return u / np.linalg.norm(u), v / np.linalg.norm(v), 2 * (k + 1)


def run(
    config: dict[str, Any],
    nodes: int,
    tolerance: float = 1e-2,
    dtype: type[np.floating[Any]] = np.float64,
) -> dict[str, Any]:
    """Run FedFW or FedFW+ on a matrix completion task; metrics by round.

    Parameters
    ----------
    config : dict
        A whole run config.
    nodes : int
    tolerance : float
        Of the oracle's singular vectors.
    dtype : type
        Of the clients' iterates, float64 or float32.
    """
    setup = sim.make_setup(config, nodes)
    task, domain = setup.task, setup.domain
    assert isinstance(domain, NuclearNormBall)
    rounds, augmented = setup.run.rounds, setup.method.variant == "augmented"
    penalty = setup.method.penalty
    schedule = FrankWolfeSchedule("convex", penalty)
    objectives: list[Any] = [task.client_objective(i) for i in range(nodes)]
    (shape,) = task.shapes()
    x_bar = np.zeros(shape)
    x = [np.zeros(shape, dtype) for _ in range(nodes)]
    y = [np.zeros(shape, dtype) for _ in range(nodes if augmented else 0)]
    g, scratch = np.empty(shape, dtype), np.empty(shape, dtype)
    rank_one, add = (
        (blas.dger, blas.daxpy) if dtype is np.float64 else (blas.sger, blas.saxpy)
    )
    # f_i is quadratic, entry by entry: ∇f_i(x) = ∇f_i(0) + (∇f_i(1) − ∇f_i(0)) x
    entries, at_zero, curvature = [], [], []
    for objective in objectives:
        pattern = objective.sparse_gradient(x_bar).tocoo()
        entries.append(pattern.row * shape[1] + pattern.col)
        at_zero.append(pattern.data)
        ones = objective.sparse_gradient(np.ones(shape)).tocoo()
        curvature.append(ones.data - pattern.data)
    rng = np.random.default_rng(setup.run.seed)
    noise = rng.standard_normal(shape[1])
    left, right = np.empty((shape[0], nodes), dtype), np.empty((nodes, shape[1]), dtype)
    wanted = evaluated_rounds(rounds)
    curve: dict[str, list[float]] = {"round": [], "seconds": [], "loss": []}
    seconds = oracle = 0.0
    products = 0

    def note(t: int) -> None:
        known = {"round": t, "seconds": seconds, "loss": task.value(x_bar)}
        for name, value in (known | task.metrics(x_bar)).items():
            curve.setdefault(name, []).append(value)

    note(0)
    for t in range(1, rounds + 1):
        began = time.perf_counter()
        eta, weight = schedule.step(t), schedule.penalty_weight(t)
        centre = x_bar.astype(dtype)
        for i in range(nodes):
            # the oracle does not mind a positive factor: g_i / λ_t
            np.subtract(x[i], centre, out=g)
            if augmented:
                # y_i ← y_i + λ_0 (x_i − x̄)
                add(g.reshape(-1), y[i].reshape(-1), a=penalty)
                np.multiply(y[i], 1.0 / weight, out=scratch)
                g += scratch
            # (1/n) ∇f_i has one entry a rating
            sparse = at_zero[i] + curvature[i] * x[i].reshape(-1)[entries[i]]
            g.reshape(-1)[entries[i]] += (sparse / (nodes * weight)).astype(dtype)
            before = time.perf_counter()
            # not from the last direction: g_i has just been pushed away from that, and
            # it would pass for a singular vector, though no longer for the leading one
            u, v, count = leading_pair(g, noise, tolerance)
            oracle += time.perf_counter() - before
            products += count
            left[:, i], right[i] = -domain.radius * u, v
            # x_i ← (1 − η_t) x_i + η_t s_i, in place
            x[i] *= 1.0 - eta
            rank_one(eta, v, left[:, i], a=x[i].T, overwrite_a=1)
        # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
        x_bar *= 1.0 - eta
        x_bar += (eta / nodes) * (left @ right)
        seconds += time.perf_counter() - began
        if t in wanted:
            note(t)
    spectrum = np.linalg.svd(x_bar, compute_uv=False)
    apart = [float(np.linalg.norm(one - x_bar)) for one in x]
    return {
        "curve": curve,
        "seconds": seconds,
        "oracle-seconds": oracle,
        "oracle-ms": 1e3 * oracle / (rounds * nodes),
        "products": products / (rounds * nodes),
        "spectrum": spectrum[:200].tolist(),
        "nuclear-norm": float(spectrum.sum()),
        "rank-90": int(np.searchsorted(spectrum.cumsum(), 0.9 * spectrum.sum()) + 1),
        "apart": float(np.mean(apart) / np.linalg.norm(x_bar)),
        "x-bar": x_bar,
    }


def _perform(config: dict[str, Any]) -> dict[str, Any]:
    result = run(config, NODES, dtype=np.float32)
    x_bar = result.pop("x-bar")
    # the product's oracle, converged to 1e-10, on a gradient of the same kind
    gradient = make_task("matrix-completion", config, NODES, config["seed"]).gradient(
        x_bar
    )
    domain = NuclearNormBall(7000.0)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        domain.lmo(gradient)
        times.append(time.perf_counter() - began)
    result["exact-oracle-ms"] = 1e3 * float(np.median(times))
    return result


def compute(options: Options) -> dict[str, Any]:
    """All runs, the iterates in single precision, a process each."""
    config = sim.default_config() | read_config(HERE / "movielens.toml")
    config["matrix-completion.path"] = str(options.file("ml-100k/u.data"))
    if options.quick:
        config["rounds"] = 3
    configs = [config | settings for settings in RUNS.values()]
    with workers(min(options.jobs, 2)) as pool:
        runs = dict(zip(RUNS, pool.map(_perform, configs), strict=True))
    moved = {
        name: bytes_a_round(each, NODES, 2 if options.quick else 4)
        for name, each in zip(RUNS, configs, strict=True)
    }
    dense = config | {"method": "projected-fedavg", "local-steps": 1}
    return {
        "runs": runs,
        "moved": moved,
        "dense": bytes_a_round(dense, NODES, 2),
        "rounds": config["rounds"],
        "seed": config["seed"],
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Draw RMSE over rounds, seconds and bytes."""
    figure, axes = new_figure(3)
    lines = [
        "| method | RMSE test | RMSE train | F | ‖x_i − x̄‖ / ‖x̄‖ | ‖x̄‖_* | singular "
        "values for 90 % of it | seconds | oracle, ms | its share of the time "
        "| bytes up | bytes down |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for k, (name, run_) in enumerate(results["runs"].items()):
        curve, moved = run_["curve"], results["moved"][name]
        total = NODES * (moved["up"] + moved["down"]) / 1e9
        rounds = np.array(curve["round"][1:])
        for one, places, label in zip(
            axes[0],
            (rounds, curve["seconds"][1:], total * rounds),
            ("communication round", "seconds", "gigabytes of messages, both ways"),
            strict=True,
        ):
            for metric, part, line in (
                ("rmse", "test", "-"),
                ("rmse-train", "train", "--"),
            ):
                one.plot(
                    places,
                    curve[metric][1:],
                    color=f"C{k}",
                    linestyle=line,
                    label=f"{name}, {part}",
                )
            one.set_xlabel(label)
            one.set_ylabel("RMSE (stars)")
            one.set_xscale("log")
            one.set_yscale("log")
            one.legend(fontsize="small")
        share = run_["oracle-seconds"] / run_["seconds"]
        lines.append(
            f"| {name} | {curve['rmse'][-1]:.4f} | {curve['rmse-train'][-1]:.4f} "
            f"| {curve['loss'][-1]:.4f} | {run_['apart']:.2f} "
            f"| {run_['nuclear-norm']:,.0f} | {run_['rank-90']} "
            f"| {run_['seconds']:,.0f} | {run_['oracle-ms']:.1f} | {share:.0%} "
            f"| {moved['up']:,} | {moved['down']:,} |"
        )
    some = next(iter(results["runs"].values()))
    dense = results["dense"]
    best = min(min(run_["curve"]["rmse"]) for run_ in results["runs"].values())
    lines += [
        "",
        f"{results['rounds']} rounds, one seed. Bytes are a node's in a round, of "
        f"encoded Messages; dense averaging moves {dense['up']:,} up and "
        f"{dense['down']:,} down. Up goes an atom of rank 1, down one from each of the "
        f"{NODES} nodes. The lowest test RMSE of an evaluated round is {best:.4f}. The "
        f"oracle takes {some['products']:.1f} products with the gradient on average "
        f"(residual 1e-2 σ); the package's own, which goes to 1e-10 σ, takes "
        f"{some['exact-oracle-ms']:.0f} ms on ∇F(x̄). {measured(results)}",
    ]
    return f"{save(figure, out, 'workshop-movielens')}\n\n" + "\n".join(lines)


ITEMS = {
    "workshop-movielens": Item(
        "2022, figure 1c: matrix completion on MovieLens-100k", compute, render
    )
}
