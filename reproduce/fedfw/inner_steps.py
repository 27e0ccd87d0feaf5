"""Ours: kinds of corrective steps, in a loop without messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.corrective import Entries, Form, Iterate, LocalProblem, Vertices
from fedtrellis.corrective.penalty import Balance
from fedtrellis.domains.atoms import Atom
from fedtrellis.domains.base import Domain
from fedtrellis.wire.arrays import Layout
from reproduce.common import Item, Options, workers
from reproduce.drawing import measured, new_figure, save, style_of

from .problems import LEVELS, Array, Federated, made, reached

__all__ = ["FORMS", "ITEMS", "Blended", "FullyCorrective", "converge", "minimiser"]


class _Working:
    """Atoms and weights in the middle of a round."""

    def __init__(self, iterate: Vertices) -> None:
        self.atoms: list[Atom] = list(iterate.atoms)
        self.rows = [atom.dense().ravel() for atom in self.atoms]
        self.weights = list(iterate.weights)
        self.places = {row.tobytes(): i for i, row in enumerate(self.rows)}

    def place(self, atom: Atom) -> int:
        """Where an atom is, at the end if it is new."""
        row = atom.dense().ravel()
        place = self.places.setdefault(row.tobytes(), len(self.rows))
        if place == len(self.rows):
            self.atoms.append(atom)
            self.rows.append(row)
            self.weights.append(0.0)
        return place


class Blended(Vertices, form="blended"):
    """Weight moves between active atoms as long as that promises more than a new one.

    Source: Tsuji, Tanaka and Pokutta, "Pairwise conditional gradients without swap
    steps", ICML 2022.
    """

    def corrections(
        self, problem: LocalProblem, domain: Domain, steps: int
    ) -> list[NDArray[Any]]:
        """Blended pairwise steps."""
        now, x = _Working(self), self.dense()
        for _ in range(steps):
            g = problem.gradient(x)
            scores = np.array([row @ g.ravel() for row in now.rows])
            active = np.flatnonzero(now.weights)
            u = int(active[scores[active].argmax()])
            v = int(active[scores[active].argmin()])
            atom = domain.lmo(g)
            gap = float(np.vdot(g, x)) - atom.dot(g)
            if scores[u] - scores[v] >= gap:
                d = (now.rows[v] - now.rows[u]).reshape(x.shape)
                slope, longest = float(scores[v] - scores[u]), now.weights[u]
            else:
                v, slope, longest = now.place(atom), -gap, 1.0
                d = now.rows[v].reshape(x.shape) - x
            if not slope < 0.0:
                break
            gamma, _ = problem.line(x, d, slope, longest)
            if gamma == 0.0:
                break
            if longest == 1.0 and slope == -gap:
                now.weights = [(1.0 - gamma) * w for w in now.weights]
            else:
                now.weights[u] -= gamma
            now.weights[v] += gamma
            x = x + gamma * d
        return self._difference(now.atoms, np.array(now.weights))


class FullyCorrective(Vertices, form="fully-corrective"):
    """After every new atom the best weights of all; least squares only.

    The atoms' Gram matrix with respect to ∇²L_i takes a product with the Hessian for
    every atom that is active, which is not counted among the gradients.
    """

    balance = 1.0

    def corrections(
        self, problem: LocalProblem, domain: Domain, steps: int
    ) -> list[NDArray[Any]]:
        """Atoms of so many gradients, and their weights."""
        now, x = _Working(self), self.dense()
        rows = np.array(now.rows)
        bends = np.array([_bend(problem, row, self.shape) for row in rows])
        for _ in range(steps):
            g = problem.gradient(x)
            place = now.place(domain.lmo(g))
            if place == len(rows):
                rows = np.vstack([rows, now.rows[place]])
                bend = _bend(problem, now.rows[place], self.shape)
                bends = np.vstack([bends, bend])
            weights = np.array(now.weights)
            gram = rows @ bends.T
            # L_i(Σ w_a a) = ½ wᵀHw + ⟨c, w⟩ + const. with H = Aᵀ∇²L_i A
            linear = rows @ g.ravel() - gram @ weights
            now.weights = list(minimiser(0.5 * (gram + gram.T), linear, weights))
            x = (np.array(now.weights) @ rows).reshape(x.shape)
        return self._difference(now.atoms, np.array(now.weights))


def _bend(problem: LocalProblem, row: Array, shape: tuple[int, ...]) -> Array:
    """∇²L_i times an atom: of a quadratic, a difference of gradients."""
    atom = row.reshape(shape)
    change = problem.loss_gradient(atom) - problem.loss_gradient(np.zeros(shape))
    return np.asarray((change + problem.penalty * atom).ravel())


def minimiser(gram: Array, linear: Array, weights: Array) -> Array:
    """Argmin of ½ wᵀHw + ⟨c, w⟩ over the unit simplex, by an active set.

    Parameters
    ----------
    gram, linear, weights : ndarray
        H, positive semidefinite; c; a point of the simplex to start from.
    """
    w, active = weights.copy(), weights > 0.0
    # what rounding alone lets in, and out again at once, would come back for ever
    refused = np.zeros(len(w), dtype=bool)
    for _ in range(20 * len(w)):
        index = np.flatnonzero(active)
        size = len(index)
        # stationary on the active weights, whose sum is 1
        system = np.ones((size + 1, size + 1))
        system[:size, :size], system[size, size] = gram[np.ix_(index, index)], 0.0
        right = np.append(-linear[index], 1.0)
        target = np.linalg.lstsq(system, right, rcond=1e-14)[0][:size]
        if target.min() > -1e-15:
            w = np.zeros_like(w)
            w[index] = np.maximum(target, 0.0)
            w /= w.sum()
            slopes = gram @ w + linear
            outside = np.where(active | refused, np.inf, slopes)
            j = int(outside.argmin())
            rounding = 1e-13 * float(np.abs(slopes).max())
            if outside[j] >= slopes[index].min() - rounding:
                return w
            active[j] = True
        else:
            # as far as the first weight that vanishes, which leaves the set
            falling = np.flatnonzero(target < w[index])
            steps = w[index][falling] / (w[index][falling] - target[falling])
            first = int(falling[steps.argmin()])
            step = min(1.0, float(steps.min()))
            w[index] += step * (target - w[index])
            w[index[first]] = 0.0
            if step == 0.0:
                refused[index[first]] = True
            else:
                refused[:] = False
            active = w > 0.0
    return w


#: Kinds of steps by name; the first two are the package's.
FORMS: dict[str, type[Iterate]] = {
    "projected": Entries,
    "pairwise": Vertices,
    "blended pairwise": Blended,
    "fully corrective": FullyCorrective,
}
NAMES = ("least squares, ℓ1", "least squares, simplex", "least squares, Birkhoff")
COUNTS = (20, 5)


def converge(
    problem: Federated, form: type[Iterate], steps: int, rounds: int, lowest: float
) -> tuple[list[float], float]:
    """Run the variant with everybody there; errors, and bytes of an answer's arrays."""
    domain, start, n = problem.domain, problem.start, len(problem.objectives)
    layout = Layout.of([start])
    iterates = [form.at(start, Form(domain)) for _ in range(n)]
    duals = [np.zeros(start.shape) for _ in range(n)]
    balance, z = Balance(None, target=form.balance), start
    errors, sent = [problem.error(start)], 0
    for _ in range(rounds):
        rho = balance.penalty
        points, curvatures = [], []
        for i, objective in enumerate(problem.objectives):
            local = LocalProblem(objective, layout, n, duals[i], z, rho or 0.0)
            arrays = iterates[i].corrections(local, domain, steps)
            before = iterates[i].dense()
            iterates[i] = iterates[i].changed(arrays, domain, steps)
            x = iterates[i].dense()
            duals[i] = duals[i] + (rho or 0.0) * (x - z)
            points.append(x)
            if rho is None:
                curvatures.append(local.bend_between(x, before))
            sent += sum(array.nbytes for array in arrays)
        x_bar = np.mean(points, axis=0)
        z = x_bar if rho is None else x_bar + np.mean(duals, axis=0) / rho
        if rho is None:
            balance.begin(curvatures, duals, z)
        else:
            balance.observe(n, duals, z)
        errors.append(problem.error(x_bar))
        if errors[-1] <= lowest:
            break
    return errors, sent / n / (len(errors) - 1)


def _study(arguments: tuple[str, int]) -> list[dict[str, Any]]:
    name, rounds = arguments
    problem = made(name)
    rows = []
    for steps in COUNTS:
        for kind, form in FORMS.items():
            errors, sent = converge(problem, form, steps, rounds, LEVELS[-1])
            rows.append(
                {
                    "problem": name,
                    "steps": steps,
                    "kind": kind,
                    "error": errors,
                    "up": sent,
                }
            )
    return rows


def compute(options: Options) -> dict[str, Any]:
    """All kinds of steps on all problems."""
    rounds, names = 150, list(NAMES)
    if options.quick:
        rounds, names = 8, list(NAMES[:2])
    with workers(options.jobs) as pool:
        found = list(pool.map(_study, [(name, rounds) for name in names]))
    return {"rows": [row for rows in found for row in rows], "rounds": rounds}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw errors over rounds, a panel for each problem; and a table."""
    rows = results["rows"]
    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = new_figure(len(names), len(COUNTS))
    lines = [
        "| problem | steps a round | " + " | ".join(FORMS) + " |",
        "| --- | --- |" + " --- |" * len(FORMS),
    ]
    for column, name in enumerate(names):
        for line, steps in enumerate(COUNTS):
            one, cells = axes[line][column], []
            for k, kind in enumerate(FORMS):
                row = next(
                    r
                    for r in rows
                    if (r["problem"], r["steps"], r["kind"]) == (name, steps, kind)
                )
                one.plot(row["error"], label=kind, **style_of(k))
                at = " / ".join(
                    "–" if t is None else str(t) for t in reached(row["error"])
                )
                cells.append(f"{at}; {row['up']:,.0f} B")
            lines.append(f"| {name} | {steps} | {' | '.join(cells)} |")
            one.set_title(f"{name}, $k = {steps}$", fontsize="medium")
            one.set_xlabel("communication round")
            one.set_ylabel(r"$(F(\bar x) - F^*) / F^*$")
            one.set_yscale("log")
            one.set_ylim(1e-10, 1e2)
    axes[0][0].legend(fontsize="small")
    lines += [
        "",
        f"Rounds to a relative error of 10⁻³ / 10⁻⁶ / 10⁻⁹, of {results['rounds']} at "
        "most, and bytes of an answer's arrays, without what a message adds. A loop "
        "without messages, everybody there, ρ by the rule in all. "
        f"{measured(results)}",
    ]
    return f"{save(figure, out, 'inner-steps')}\n\n" + "\n".join(lines)


ITEMS = {
    "inner-steps": Item("ours: kinds of corrective steps", compute, render),
}
