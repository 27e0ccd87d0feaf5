"""How far from F* tables end that nobody tuned on.

Ten tables of statsmodels and scikit-learn, raw, on the defaults of each method: IID on
five clients, and classes by label and in uneven parts on twenty. What is written is
(F − F*)/(F(0) − F*), F* by the central solver, and how each run ended.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import sim
from fedtrellis import LocalGrid, load_run
from fedtrellis.settings import SettingsError

from .report import Comparison, Row

__all__ = ["AIMS", "FULL", "QUICK", "compare", "rows"]

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
_FREE = ("fedgia", "scaffold", "fedavg-gd", "fedopt")
_IN_A_SET = ("fedfw", "feddr", "projected-fedavg")
#: What a method may leave of F(0) − F*: of those that stop by themselves at their stop.
AIMS = {"fedgia": 1e-6, "fedfw": 1e-6, "scaffold": 1e-2, "feddr": 1e-2}


def table(name: str) -> Any:
    """A table as its package has it, with texts and missing cells where it has them."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(as_frame=True, scaled=False).frame
    return importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data


def ended(config: dict[str, Any], nodes: int, folder: Path) -> tuple[Any, list[float]]:
    """The run of a config, and its losses by round."""
    config = sim.app.default_config() | config | {"results-dir": str(folder)}
    with redirect_stdout(StringIO()):
        record = sim.app.run(
            LocalGrid(sim.client_app, nodes, run_config=config), config
        )
    run = load_run(record)
    lines = (record / "history.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["evaluation"] for line in lines]
    return run, [each["loss"] for each in rounds if "loss" in each]


def rows(tables: Mapping[str, str], folder: Path) -> Iterator[Row]:
    """A line for every table, deal and method."""
    for name, target in tables.items():
        frame, file = table(name), folder / f"{name}.csv"
        frame.to_csv(file, index=False)
        classes = frame[target].nunique() == 2
        task = "logistic-regression" if classes else "linear-regression"
        common: dict[str, Any] = {
            "task": task,
            f"{task}.dataset": "file",
            f"{task}.path": str(file),
            "data.label-column": target,
            "data.bad-rows": "drop",
            "reference": True,
            "picture": False,
        }
        radius = 1.0
        for deal in ("iid", "labels", "uneven") if classes else ("iid",):
            nodes = 20 if deal == "uneven" else 5
            if classes:
                common["logistic-regression.partition"] = deal
            for method in (*_FREE, *_IN_A_SET):
                config = common | {"method": method}
                if method in _IN_A_SET:
                    # half as long as the minimiser without a set
                    config |= {"domain": "l1-ball", "radius": radius}
                row: Row = {"table": name, "deal": deal, "method": method}
                try:
                    run, losses = ended(config, nodes, folder)
                except (SettingsError, RuntimeError) as error:
                    yield row | {"ended": str(error)}
                    continue
                best = run.summary["reference_optimum"]
                if method == "fedgia":
                    with np.load(run.directory / "model.npz") as arrays:
                        radius = 0.5 * float(np.abs(arrays["0"]).sum())
                left = (losses[-1] - best) / (losses[0] - best)
                row |= {"ended": run.status, "rounds": run.summary["rounds"]}
                yield row | {
                    "left": f"{left:.1e}",
                    "met": left <= AIMS.get(method, 1.0),
                }


def compare(tables: Mapping[str, str]) -> Iterator[Comparison]:
    """All tables, deals and methods."""
    with TemporaryDirectory() as folder:
        found = list(rows(tables, Path(folder)))
    about = (
        "left: (F − F*)/(F(0) − F*) after a run on the defaults; met: at most what the "
        "method may leave, " + ", ".join(f"{m} {most:g}" for m, most in AIMS.items())
    )
    yield Comparison("held-out", "Tables that nobody tuned on", about, found)
