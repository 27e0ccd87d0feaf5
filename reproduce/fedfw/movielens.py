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
import scipy.sparse
from numpy.typing import NDArray
from scipy.linalg import blas
from scipy.sparse.linalg import svds

import sim
from fedtrellis.domains import NuclearNormBall
from fedtrellis.domains.singular import Products, leading_pairs
from fedtrellis.schedules import FrankWolfeSchedule
from reproduce.common import (
    Item,
    Options,
    app_config,
    evaluated_rounds,
    read_config,
    workers,
)
from reproduce.drawing import measured, new_figure, save
from strategies import FedFW
from tasks import make_task

from .traffic import bytes_a_round

__all__ = ["ITEMS", "run"]

SEED = 0
HERE = Path(__file__).parent
NODES = 40
#: λ_0 to choose from, for both methods, and the rounds of a run that helps to choose.
CANDIDATES: tuple[float, ...] = (1e-7, 3e-7, 1e-6, 3e-6)
TRIAL_ROUNDS = 400
#: Radii to choose from, by Frank-Wolfe on all the training ratings in one place.
RADII: tuple[float, ...] = (500.0, 1000.0, 2000.0, 4000.0)
METHODS: dict[str, dict[str, Any]] = {
    "FedFW": {},
    "FedFW+": {"variant": "augmented"},
}
#: The paper's: ratings as they are, its radius, and its λ_0 = 1e-5 of the sum of
#: squares over the 80 000 training ratings; F here is their mean. λ_t is then so small
#: that every node goes its own way, which a quarter of the rounds is enough to show.
PAPER = {
    "matrix-completion.centred": False,
    "radius": 7000.0,
    "penalty": 1e-5 / 80_000,
}
PAPER_NAME = "FedFW, the paper's settings"
# Singular vectors that the oracle follows from round to round.
BLOCK = 4
# Atoms of a node that wait to be added to its dense iterate in one product.
KEPT = 64

Array = NDArray[Any]


class _Iterates:
    """The x_i of all nodes and, for FedFW+, their y_i, with steps that touch little.

    x_i = scale · base_i + left_i right_i, where the last few atoms are columns of
    left_i and rows of right_i. As y_i is the sum of λ_0 (x_i − x̄) over the rounds, it
    is dual_i + dual_scale · base_i + dual_left_i right_i − shift in the same atoms.
    """

    def __init__(self, nodes: int, shape: tuple[int, ...], dtype: Any, dual: bool):
        rows, columns = shape
        self.dtype = dtype
        self.base = np.zeros((nodes, rows, columns), dtype)
        self.left = np.zeros((nodes, rows, KEPT), dtype)
        self.right = np.zeros((nodes, KEPT, columns), dtype)
        self.kept, self.scale = 0, 1.0
        self.dual = np.zeros_like(self.base) if dual else None
        self.dual_left, self.dual_scale = np.zeros_like(self.left), 0.0
        self.shift = np.zeros(shape)

    def dual_step(self, penalty: float, x_bar: Array) -> None:
        """y_i ← y_i + λ_0 (x_i − x̄), all i."""
        self.dual_scale += penalty * self.scale
        self.dual_left += self.dtype(penalty) * self.left
        self.shift += penalty * x_bar

    def step(self, eta: float, left: Array, right: Array) -> None:
        """x_i ← (1 − η) x_i + η left_i right_iᵀ, all i."""
        self.scale *= 1.0 - eta
        self.left *= self.dtype(1.0 - eta)
        self.left[:, :, self.kept] = eta * left
        self.right[:, self.kept] = right
        self.kept += 1
        if self.kept == KEPT:
            self._fold()

    def _fold(self) -> None:
        gemm = blas.dgemm if self.dtype is np.float64 else blas.sgemm

        def add(matrix: Array, factor: float, left: Array, right: Array) -> None:
            # matrix ← factor · matrix + left right, in place; BLAS sees transposes
            gemm(1.0, right.T, left.T, factor, matrix.T, overwrite_c=1)

        for i, base in enumerate(self.base):
            if self.dual is not None:
                self.dual[i] += self.dtype(self.dual_scale) * base
                add(self.dual[i], 1.0, self.dual_left[i], self.right[i])
            add(base, self.scale, self.left[i], self.right[i])
        self.left[:], self.dual_left[:] = 0.0, 0.0
        self.kept, self.scale, self.dual_scale = 0, 1.0, 0.0

    def dense(self, i: int) -> Array:
        """x_i."""
        whole = self.dtype(self.scale) * self.base[i]
        return np.asarray(whole + self.left[i] @ self.right[i])

    def gradient(self, i: int, weight: float, x_bar: Array, gradient: Any) -> Array:
        """G_i, dense; see :meth:`products`."""
        result = weight * (self.dense(i) - x_bar) + gradient.toarray() - self.shift
        result += self.dual_scale * self.base[i] + self.dual_left[i] @ self.right[i]
        return np.asarray(result if self.dual is None else result + self.dual[i])

    def products(self, weight: float, x_bar: Array, gradients: list[Any]) -> Products:
        """V, I ↦ G_i V_i, G_iᵀ G_i V_i with G_i = ∇f_i(x_i)/n + λ_t (x_i − x̄) + y_i."""
        k = self.kept
        own = self.dtype(weight * self.scale + self.dual_scale)
        left = self.dtype(weight) * self.left[:, :, :k] + self.dual_left[:, :, :k]
        right = self.right[:, :k]
        common = (weight * x_bar + self.shift).astype(self.dtype)

        def forward(v: Array, nodes: Array) -> Array:
            n, q, b = v.shape
            # the part that all nodes share is one product for all of them
            shared = common @ v.transpose(1, 0, 2).reshape(q, n * b)
            result = -shared.reshape(-1, n, b).transpose(1, 0, 2)
            for out, one, i in zip(result, v, nodes, strict=True):
                out += own * (self.base[i] @ one) + gradients[i] @ one
                out += left[i] @ (right[i] @ one)
                if self.dual is not None:
                    out += self.dual[i] @ one
            return np.asarray(result)

        def backward(u: Array, nodes: Array) -> Array:
            n, p, b = u.shape
            rows = np.ascontiguousarray(u.transpose(0, 2, 1))
            result = -(rows.reshape(n * b, p) @ common).reshape(n, b, -1)
            for out, one, i in zip(result, rows, nodes, strict=True):
                out += own * (one @ self.base[i]) + (gradients[i].T @ one.T).T
                out += (one @ left[i]) @ right[i]
                if self.dual is not None:
                    out += one @ self.dual[i]
            return np.asarray(result.transpose(0, 2, 1))

        def both(v: Array, nodes: Array) -> tuple[Array, Array]:
            w = forward(v, nodes)
            return w, backward(w, nodes)

        return both


def run(
    config: dict[str, Any],
    nodes: int,
    tolerance: float = 0.07,
    most: int = 20,
    dtype: type[np.floating[Any]] = np.float64,
) -> dict[str, Any]:
    """Run FedFW or FedFW+ on a matrix completion task; metrics by round.

    Parameters
    ----------
    config : dict
        Settings, see :func:`reproduce.common.app_config`.
    nodes : int
    tolerance, most
        Of the oracle, see :func:`~fedtrellis.domains.singular.leading_pairs`.
    dtype : type
        Of the clients' iterates, float64 or float32.
    """
    setup = sim.app.experiment(app_config(config), nodes)
    task, domain = setup.task, setup.domain
    assert isinstance(domain, NuclearNormBall)
    rounds, augmented = setup.config["rounds"], setup.settings["variant"] == "augmented"
    method = setup.strategy()
    assert isinstance(method, FedFW)
    penalty = method.penalty
    schedule = FrankWolfeSchedule("convex", penalty)
    (shape,) = task.shapes()
    x_bar = np.zeros(shape)
    iterates = _Iterates(nodes, shape, dtype, augmented)
    # f_i is quadratic, entry by entry: ∇f_i(x) = ∇f_i(0) + (∇f_i(1) − ∇f_i(0)) x
    gradients, places, at_zero, curvature = [], [], [], []
    for i in range(nodes):
        objective: Any = task.client_objective(i)
        zero = _sparse_gradient(objective, x_bar)
        ones = _sparse_gradient(objective, np.ones(shape))
        at_zero.append(zero.data / nodes)
        curvature.append((ones.data - zero.data) / nodes)
        gradients.append(scipy.sparse.csr_matrix(zero.astype(dtype)))
        pattern = zero.tocoo()
        places.append((pattern.row, pattern.col))
    # x_i at the node's own ratings, which is all that ∇f_i takes
    held = [np.zeros(len(row)) for row, _ in places]
    rng = np.random.default_rng(setup.options["seed"])
    noise = rng.standard_normal((nodes, shape[1], min(BLOCK, *shape)))
    block = noise.astype(dtype)
    wanted = evaluated_rounds(rounds)
    curve: dict[str, list[float]] = {"round": [], "seconds": [], "loss": []}
    seconds = oracle = 0.0
    iterations, found = 0.0, 1.0

    def note(t: int) -> None:
        known = {"round": t, "seconds": seconds, "loss": task.value(x_bar)}
        for name, value in (known | task.metrics(x_bar)).items():
            curve.setdefault(name, []).append(value)

    note(0)
    for t in range(1, rounds + 1):
        # processor time: other programs on the machine do not count
        began = time.process_time()
        eta, weight = schedule.step(t), schedule.penalty_weight(t)
        if augmented:
            iterates.dual_step(penalty, x_bar)
        for i, gradient in enumerate(gradients):
            gradient.data[:] = at_zero[i] + curvature[i] * held[i]
        before = time.process_time()
        products = iterates.products(weight, x_bar, gradients)
        pairs = leading_pairs(products, block, 1, tolerance, most)
        oracle += time.process_time() - before
        block = pairs.start
        iterations += float(pairs.passes.mean())
        left, right = -domain.radius * pairs.left[:, :, 0], pairs.right[:, :, 0]
        seconds += time.process_time() - began
        if t in wanted and min(shape) > 100:
            # a node's oracle against one that has converged; not counted
            i = t % nodes
            whole = iterates.gradient(i, weight, x_bar, gradients[i])
            best = svds(whole, k=1, tol=1e-4, return_singular_vectors=False)
            found = min(found, float(pairs.values[i, 0] / best[0]))
        began = time.process_time()
        for i, (row, column) in enumerate(places):
            held[i] = (1.0 - eta) * held[i] + eta * left[i, row] * right[i, column]
        iterates.step(eta, left, right)
        # x̄ ← (1 − η_t) x̄ + (η_t / n) Σ s_i
        x_bar *= 1.0 - eta
        x_bar += (eta / nodes) * (left.T @ right)
        seconds += time.process_time() - began
        if t in wanted:
            note(t)
    spectrum = np.linalg.svd(x_bar, compute_uv=False)
    apart = [float(np.linalg.norm(iterates.dense(i) - x_bar)) for i in range(nodes)]
    return {
        "curve": curve,
        "seconds": seconds,
        "oracle-seconds": oracle,
        "oracle-ms": 1e3 * oracle / (rounds * nodes),
        "iterations": iterations / rounds,
        "oracle-found": found,
        "spectrum": spectrum[:200].tolist(),
        "nuclear-norm": float(spectrum.sum()),
        "rank-90": int(np.searchsorted(spectrum.cumsum(), 0.9 * spectrum.sum()) + 1),
        "apart": float(np.mean(apart) / np.linalg.norm(x_bar)),
        "x-bar": x_bar,
    }


def _perform(config: dict[str, Any]) -> dict[str, Any]:
    result = run(config, NODES, dtype=np.float32)
    result["penalty"], result["radius"] = config["penalty"], config["radius"]
    x_bar = result.pop("x-bar")
    # the package's oracle, converged to 1e-10, on a gradient of the same kind
    gradient = make_task("matrix-completion", app_config(config), NODES, SEED).gradient(
        x_bar
    )
    domain = NuclearNormBall(config["radius"])
    times = []
    for _ in range(5):
        began = time.process_time()
        domain.lmo(gradient)
        times.append(time.process_time() - began)
    result["exact-oracle-ms"] = 1e3 * float(np.median(times))
    return result


def _sparse_gradient(objective: Any, x: Array) -> scipy.sparse.csr_matrix:
    """Return ∇f(x) with one stored value per observed entry."""
    entries = objective._entries
    places = np.divmod(entries, x.shape[1])
    values = objective.gradient(x).reshape(-1)[entries]
    return scipy.sparse.csr_matrix((values, places), shape=x.shape)


def centralised(config: dict[str, Any], rounds: int) -> dict[str, float]:
    """Frank-Wolfe with line search on all training ratings in one place.

    Returns
    -------
    dict
        ``loss``, F at the end; ``bound``, the largest F − gap on the way, below which
        no point of the ball goes; ``rmse`` on the test or validation ratings.
    """
    task = make_task("matrix-completion", app_config(config), 1, SEED)
    objective: Any = task.client_objective(0)
    (shape,) = task.shapes()
    x = np.zeros(shape)
    start = np.random.default_rng(0).standard_normal(min(shape))
    bound = 0.0
    for _ in range(rounds):
        gradient = _sparse_gradient(objective, x)
        left, _, right = svds(gradient, k=1, tol=1e-3, v0=start)
        start = left[:, 0] if shape[0] <= shape[1] else right[0]
        step = -config["radius"] * np.outer(left[:, 0], right[0]) - x
        slope = float(gradient.multiply(step).sum())
        value = task.value(x)
        bound = max(bound, value + slope)
        # F is quadratic: F(x + η step) = F(x) + η slope + η² second
        second = task.value(x + step) - value - slope
        x += min(1.0, -slope / (2.0 * second)) * step
    return {"loss": task.value(x), "bound": bound, "rmse": task.metrics(x)["rmse"]}


def compute(options: Options) -> dict[str, Any]:
    """All runs, the iterates in single precision, a process each."""
    config = read_config(HERE / "movielens.toml")
    config["matrix-completion.path"] = str(options.file("ml-100k/u.data"))
    trial = {"matrix-completion.validation-fraction": 0.2, "rounds": TRIAL_ROUNDS}
    penalties, radii, steps = CANDIDATES, RADII, 100
    if options.quick:
        config["rounds"] = trial["rounds"] = 3
        penalties, radii, steps = penalties[:1], radii[1:2], 3
    with workers(min(options.jobs, 2)) as pool:
        found = pool.map(
            centralised,
            [config | trial | {"radius": radius} for radius in radii],
            [steps] * len(radii),
        )
        by_radius = dict(zip(radii, [one["rmse"] for one in found], strict=True))
        config["radius"] = min(by_radius, key=by_radius.__getitem__)
        tries = [
            config | settings | trial | {"penalty": penalty}
            for settings in METHODS.values()
            for penalty in penalties
        ]
        paper_config = config | PAPER | {"rounds": min(500, config["rounds"])}
        tried = pool.map(_perform, tries)
        paper = pool.submit(_perform, paper_config)
        best = pool.submit(centralised, config, 10 * steps)
        scores = [one["curve"]["rmse"][-1] for one in tried]
        by_penalty, configs = {}, {}
        for k, (name, settings) in enumerate(METHODS.items()):
            # the tries of a method are consecutive
            mine = scores[k * len(penalties) : (k + 1) * len(penalties)]
            by_penalty[name] = dict(zip(penalties, mine, strict=True))
            chosen = penalties[int(np.argmin(mine))]
            configs[name] = config | settings | {"penalty": chosen}
        runs = dict(zip(configs, pool.map(_perform, configs.values()), strict=True))
        runs[PAPER_NAME] = paper.result()
        optimum = best.result()
    # a round of dense iterates through encoded Messages is seconds for every node
    senders, counted = (4, 2) if options.quick else (NODES, 4)
    moved = {
        name: bytes_a_round(each, senders, counted) for name, each in configs.items()
    }
    # the same arrays travel, whatever is in them
    moved[PAPER_NAME] = moved["FedFW"]
    dense = config | {"method": "projected-fedavg", "local-steps": 1}
    return {
        "runs": runs,
        "moved": moved,
        "dense": bytes_a_round(dense, senders, 2),
        "rounds": config["rounds"],
        "paper-rounds": paper_config["rounds"],
        "seed": SEED,
        "by-radius": by_radius,
        "by-penalty": by_penalty,
        "optimum": optimum,
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Draw F − F* and RMSE over rounds, seconds and bytes."""
    figure, axes = new_figure(3, 2)
    lines = [
        "| method | λ_0 | radius | RMSE test | RMSE train | F | ‖x_i − x̄‖ / ‖x̄‖ "
        "| ‖x̄‖_* | singular values for 90 % of it | processor seconds | oracle, ms "
        "| its share of the time | bytes up | bytes down |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- "
        "| --- | --- |",
    ]
    optimum = results["optimum"]
    for k, (name, run_) in enumerate(results["runs"].items()):
        curve, moved = run_["curve"], results["moved"][name]
        total = NODES * (moved["up"] + moved["down"]) / 1e9
        rounds = np.array(curve["round"][1:])
        for column, (places, label) in enumerate(
            (
                (rounds, "communication round"),
                (curve["seconds"][1:], "seconds of processor time"),
                (total * rounds, "gigabytes of messages, both ways"),
            )
        ):
            for metric, part, line in (
                ("rmse", "test", "-"),
                ("rmse-train", "train", "--"),
            ):
                axes[1][column].plot(
                    places,
                    curve[metric][1:],
                    color=f"C{k}",
                    linestyle=line,
                    label=f"{name}, {part}",
                )
            if name != PAPER_NAME:  # that is another problem, with another optimum
                axes[0][column].plot(
                    places,
                    np.array(curve["loss"][1:]) - optimum["bound"],
                    color=f"C{k}",
                    label=name,
                )
            axes[0][column].set_ylabel("F − F* (stars²)")
            axes[1][column].set_ylabel("RMSE (stars)")
            for row in (0, 1):
                axes[row][column].set_xlabel(label)
                axes[row][column].set_xscale("log")
                axes[row][column].set_yscale("log")
        share = run_["oracle-seconds"] / run_["seconds"]
        lines.append(
            f"| {name} | {run_['penalty']:.3g} | {run_['radius']:,.0f} "
            f"| {curve['rmse'][-1]:.4f} | {curve['rmse-train'][-1]:.4f} "
            f"| {curve['loss'][-1]:.4f} | {run_['apart']:.2f} "
            f"| {run_['nuclear-norm']:,.0f} | {run_['rank-90']} "
            f"| {run_['seconds']:,.0f} | {run_['oracle-ms']:.1f} | {share:.0%} "
            f"| {moved['up']:,} | {moved['down']:,} |"
        )
    for one in axes[1]:
        one.axhline(1.0, color="grey", linewidth=0.8)
        one.set_yticks([0.8, 1, 1.5, 2, 3, 4], ["0.8", "1", "1.5", "2", "3", "4"])
        one.set_yticks([], minor=True)
    axes[0][0].legend(fontsize="small")
    # between the curves
    axes[1][0].legend(fontsize="small", loc="center", bbox_to_anchor=(0.5, 0.41))
    some = next(iter(results["runs"].values()))
    dense, known = results["dense"], results["runs"]
    found = min(run_["oracle-found"] for run_ in known.values())
    lines += [
        "",
        f"{results['rounds']} rounds ({results['paper-rounds']} with the paper's "
        "settings), one seed. A constant, the training ratings' "
        f"mean, has test RMSE {some['curve']['rmse'][0]:.4f}; centralised Frank-Wolfe "
        f"on the same ball {optimum['rmse']:.4f} with F = {optimum['loss']:.4f}, and "
        f"no point of the ball has F below F* = {optimum['bound']:.4f}. Dense "
        f"averaging moves {dense['up']:,} bytes up and {dense['down']:,} down. The "
        f"oracle found at least {found:.1%} of the largest singular value. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'workshop-movielens')}\n\n" + "\n".join(lines)


ITEMS = {
    "workshop-movielens": Item(
        "2022, figure 1c: matrix completion on MovieLens-100k", compute, render
    )
}
