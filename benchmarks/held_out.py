"""How tables end that nobody tuned on: ``python -m benchmarks.held_out``.

Ten tables of statsmodels and scikit-learn, raw, on the defaults of each method and of
estimators: IID and by label (numbers: in the target's order) on five clients, and in
uneven parts on twenty. Of a run there are (F − F*)/(F(0) − F*), F* by the central
solver; how it ended; and of exact methods that stop how far predictions are from
scikit-learn's for the same penalised problem, and F from its value for columns scaled
by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import sim
from fedtrellis import LocalGrid, estimators, load_run
from reproduce.pages import update_page
from tasks.linear import cut_at_random

from .matrix.tables import markdown
from .report import Comparison, Row

__all__ = ["AIMS", "FULL", "PAGE", "QUICK", "STORED", "by_method", "compare", "rows"]

#: Tables and their targets, of statsmodels unless they are scikit-learn's; a target of
#: two values is a class.
FULL = {
    "anes96": "vote",
    "heart": "censors",
    "spector": "GRADE",
    "modechoice": "choice",
    "fair": "affairs",
    "randhie": "mdvis",
    "star98": "NABOVE",
    "statecrime": "murder",
    "ccard": "AVGEXP",
    "diabetes": "target",
}
QUICK = {name: FULL[name] for name in ("spector", "ccard")}
_FREE = ("fedgia", "hyfdca", "scaffold", "fedavg-gd", "fedopt")
_IN_A_SET = ("fedfw", "feddr", "projected-fedavg")
_TWINS = ("fedgia", "hyfdca", "fedfw", "logistic", "ridge", "lasso")
#: Clients by how rows are dealt to them.
DEALS = {"iid": 5, "labels": 5, "uneven": 20}
#: What a method may leave of F(0) − F*; those that stop, at their stop, and at the
#: round limit as much as the others. What is not here is to end below F(0).
AIMS = {**dict.fromkeys(_TWINS, 1e-6), "scaffold": 1e-2, "feddr": 1e-2}
PAGE = Path(__file__).parents[1] / "docs/matrix.md"
STORED = PAGE.parent / "measured/held-out.csv"


def table(name: str) -> Any:
    """A table as its package has it, with texts and missing cells where it has them."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(as_frame=True, scaled=False).frame
    return importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data


def ended(config: dict[str, Any], nodes: int, folder: Path) -> tuple[Any, Any]:
    """The run of a config, and its losses by round."""
    config = sim.app.default_config() | config | {"results-dir": str(folder)}
    grid = LocalGrid(sim.client_app, nodes, run_config=config)
    with redirect_stdout(StringIO()):
        run = load_run(sim.app.run(grid, config))
    return run, run.columns()["loss"]


def beside(y: Any, found: Any, X: Any, l1: float, l2: float, **more: Any) -> Row:
    """Scores of predictions, and how far off scikit-learn's are of λ‖w‖₁ + (μ/2)‖w‖².

    The loss is a mean; classes have probabilities.
    """
    from sklearn import linear_model, metrics

    classes = len(np.unique(y)) == 2
    more |= {"tol": 1e-12, "max_iter": 1_000_000}
    if classes:
        more |= {"C": 1.0 / (len(y) * (l1 + l2)), "l1_ratio": l1 / (l1 + l2)}
        more["solver"] = "saga" if l1 else "lbfgs"
        model = linear_model.LogisticRegression(**more)
    elif l1:
        model = linear_model.Lasso(l1, **more)
    else:
        model = linear_model.Ridge(l2 * len(y), solver="svd")
    model.fit(X, y)
    other = model.predict_proba(X)[:, 1] if classes else model.predict(X)
    kinds = {"R2": metrics.r2_score}
    if classes:
        kinds = {"log-loss": metrics.log_loss, "AUC": metrics.roc_auc_score}
    off = max(abs(of(y, found) - of(y, other)) for of in kinds.values())
    row: Row = {name: f"{of(y, found):.4f}" for name, of in kinds.items()}
    if classes:
        row["accuracy"] = f"{np.mean((found > 0.5) == y):.4f}"
        row["majority"] = f"{max(y.mean(), 1.0 - y.mean()):.4f}"
    return row | {"from twin": f"{off:.1e}"}


def twin_of(run: Any, method: str, frame: Any, y: Any, classes: bool) -> Row:
    """A run's predictions beside scikit-learn's, on the columns that it made."""
    model, X = run.model, run.model.preparation.transform(frame)
    found = model.predict_proba(frame)[:, 1] if classes else model.predict(frame)
    hybrid = method == "hyfdca"
    l1, l2 = 0.0, 1e-3 if classes or hybrid else 0.0
    if method == "fedfw":
        # the λ that has the ball's solution: F's slope along the entries
        w = model["0"][: X.shape[1]]
        l1 = float(np.abs(X.T @ (found - y) / len(y) + l2 * w).max())
    if classes and hybrid:  # λ is on its constant column, too
        X = np.column_stack([X, np.ones(len(y))])
    return beside(y, found, X, l1, l2, fit_intercept=not hybrid)


def judged(row: Row, left: float) -> Row:
    """A row with what is left, and whether all is as it should be."""
    aim, stopped = AIMS.get(str(row["method"]), 1.0), row["ended"] == "converged"
    met = left <= (aim if stopped else max(aim, 1e-2))
    met &= aim < 1.0 or not stopped  # a biased point is no end
    met &= float(str(row.get("from twin", 0))) <= 1e-4
    met &= float(str(row.get("from raw", 0))) <= 1e-6
    return row | {"left": f"{left:.1e}", "met": met}


def config_of(method: str, deal: str, target: str, classes: bool) -> dict[str, Any]:
    """What a user would set, but for the file."""
    own: dict[str, Any] = {"dataset": "file"}
    if method == "hyfdca":
        task = "hybrid-logistic" if classes else "hybrid-linear"
        own |= {"partition": "horizontal", "samples": deal, "test-fraction": 0.0}
        own |= {} if classes else {"loss": "squared"}
    elif classes:
        task, own = "logistic-regression", own | {"partition": deal}
        own["test-fraction"] = 0.0
    else:
        task, own = "linear-regression", own | {"weighting": "examples"}
        own |= {"sorted-by": target * (deal == "labels"), "uneven": deal == "uneven"}
    config: dict[str, Any] = {f"{task}.{key}": value for key, value in own.items()}
    if method == "hyfdca" and deal == "uneven":
        # some clients have one row or two, which sums over their rows give away
        config |= {"hyfdca.exposed": "accept", f"{task}.least-entries": 0}
    return config | {"task": task, "method": method, "data.label-column": target}


def rows(tables: Mapping[str, str], folder: Path) -> Iterator[Row]:
    """A line for every table, deal and method, or estimator."""
    for name, target in tables.items():
        frame, file = table(name), folder / f"{name}.csv"
        features, by_hand = frame.drop(columns=target), folder / f"{name}-scaled.csv"
        frame.to_csv(file, index=False)
        scaled = (features - features.mean()) / features.std()
        scaled.assign(**{target: frame[target]}).to_csv(by_hand, index=False)
        classes, radius = frame[target].nunique() == 2, 1.0
        y = frame[target].to_numpy(float)
        y = (y == y.max()).astype(float) if classes else y
        for deal, nodes in DEALS.items():
            for method in (*_FREE, *_IN_A_SET):
                config = config_of(method, deal, target, classes)
                if method in _IN_A_SET:
                    config |= {"domain": "l1-ball", "radius": radius}
                path = f"{config['task']}.path"
                config |= {"reference": True, "picture": False, path: str(file)}
                run, losses = ended(config, nodes, folder)
                if method == "fedgia":  # the set is half as large as this
                    radius = 0.5 * float(np.abs(run.model["0"]).sum())
                best = run.reference
                row: Row = {"table": name, "deal": deal, "method": method}
                row |= {"ended": run.status, "rounds": run.summary["rounds"]}
                if method in _TWINS and run.status == "converged":
                    row |= twin_of(run, method, features, y, classes)
                    other = ended(config | {path: str(by_hand)}, nodes, folder)[1][-1]
                    away = abs(other - losses[-1]) / (losses[0] - best)
                    row["from raw"] = f"{away:.1e}"
                yield judged(row, (losses[-1] - best) / (losses[0] - best))
        yield from estimated({"table": name}, features.to_numpy(float), y, classes)


def estimated(of_table: Row, X: Any, y: Any, classes: bool) -> Iterator[Row]:
    """A line for every estimator and deal, on raw columns; left is its certificate."""
    N, raw = len(y), X - X.mean(axis=0)
    scaled, square = raw / X.std(axis=0), float(np.square(y - y.mean()).sum())
    # its columns, λ and μ, and its function at 0
    logistic = estimators.FederatedLogisticRegression
    kinds: dict[str, Any] = {"logistic": (logistic, scaled, 0.0, 1 / N, N * np.log(2))}
    if not classes:
        # a tenth of what leaves no column
        alpha = 0.1 * float(np.abs(raw.T @ (y - y.mean())).max()) / N
        kinds = {"ridge": (estimators.FederatedRidge, scaled, 0.0, 1 / N, square)}
        kinds["lasso"] = estimators.FederatedLasso, raw, alpha, 0.0, square / (2 * N)
    shuffled = np.random.default_rng(0).permutation(N)
    for method, (kind, Z, l1, l2, start) in kinds.items():
        model = kind(l1) if l1 else kind(standardize=True)
        for deal, count in DEALS.items():
            order = np.argsort(y, kind="stable") if deal == "labels" else shuffled
            parts = np.array_split(order, count)
            if deal == "uneven":
                parts = cut_at_random(order, count, np.random.default_rng(0))
            model.fit([(X[part], y[part]) for part in parts])
            found = model.predict_proba(X)[:, 1] if classes else model.predict(X)
            rounds = int(np.max(model.n_iter_))
            ends = "converged" if rounds < model.max_iter else "round limit"
            row = of_table | {"deal": deal, "method": method, "ended": ends}
            row |= {"rounds": rounds} | beside(y, found, Z, l1, l2)
            yield judged(row, model.gap_ / (start - model.objective_))


def by_method(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line a method, the estimators and the others: the worst of its cells."""
    worst = ("left", "from twin", "from raw")
    made = [["method", "as asked", "converged", *worst, "over majority"]]
    kinds = {name: f"`{name}`" for name in AIMS}
    kinds |= dict.fromkeys(("logistic", "ridge", "lasso"), "estimators")
    for kind in dict.fromkeys((*kinds.values(), "others")):
        of = [row for row in found if kinds.get(row["method"], "others") == kind]
        met = sum(str(one["met"]) == "True" for one in of)
        ended = sum(one["ended"] == "converged" for one in of)
        line = [kind, f"{met}/{len(of)}", str(ended)]
        for name in worst:
            known = [str(one[name]) for one in of if one.get(name)]
            line.append(max(known, key=float, default=""))
        classes = [one for one in of if one.get("accuracy")]
        above = [float(one["accuracy"]) - float(one["majority"]) for one in classes]
        made.append([*line, f"{min(above):+.3f}" if above else ""])
    return made


def compare(tables: Mapping[str, str]) -> Iterator[Comparison]:
    """All tables, deals and methods."""
    with TemporaryDirectory() as folder:
        found = list(rows(tables, Path(folder)))
    about = (
        "left: (F − F*)/(F(0) − F*) after a run on the defaults; from twin: log-loss "
        "and AUC, or R², from scikit-learn's; from raw: F, from where columns were "
        "scaled by hand, over the same; met: whether all is as it should be"
    )
    yield Comparison("held-out", "Tables that nobody tuned on", about, found)


def main() -> None:
    """Measure all, store it, and write the page's table."""
    (result,) = compare(FULL)
    STORED.write_text(result.csv(), encoding="utf-8")
    update_page(PAGE, "held-out", markdown(by_method(result.rows)))


if __name__ == "__main__":
    main()
