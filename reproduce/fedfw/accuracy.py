"""Tables 1, 2 and 3: test accuracy of the last round's model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.claims import points
from reproduce.common import Item, Options, read_config, repeat
from reproduce.drawing import table
from reproduce.rates import batched
from reproduce.tuning import WIDER, search

from .tables import BALLS, TABLES, published

__all__ = ["ITEMS", "compute"]

HERE = Path(__file__).parent

#: The share of the training examples that hyper-parameters are judged by.
VALIDATION = 0.2
#: Local steps of a round, the same for all methods: the paper's.
STEPS = 1

Case = tuple[str, str, str]  # partition, ball, method


def compute(options: Options, name: str) -> dict[str, Any]:
    """Choose hyper-parameters on validation data, then run all seeds with them."""
    data = TABLES[name]
    base = read_config(HERE / "table-1.toml") | data.dataset
    if data.rounds:
        base["rounds"] = data.rounds
    if data.folder:
        base["classification.path"] = str(options.file(data.folder))
    choice, examples, seeds = data.choice, data.examples, options.numbers(data.seeds)
    balls, partitions, choosing = data.balls, data.partitions(), data.choosing
    budget, wider = data.budget, WIDER
    if options.quick:
        base |= {"rounds": 3, "classification.test-limit": 200}
        model = base["classification.model"]
        choice = examples = 120 if model.endswith("cnn") else 1500
        seeds, choosing, budget, wider = seeds[:1], choosing[:1], 2, 0
        # the network's sets differ by the oracle, which the other tables try
        balls = balls[:1] if model != "mclr" else balls
        # few examples cannot be dealt by label to a hundred nodes
        partitions = partitions[:1] if data.nodes > 10 else partitions[-1:]
    rounds = base["rounds"]
    cases: list[Case] = [
        (part, ball, method)
        for part in partitions
        for ball in balls
        for method in data.methods
    ]

    def config(case: Case, chosen: Mapping[str, float], limit: int) -> dict[str, Any]:
        dealt = {k: v for k, v in base.items() if "labels-per-client" not in k}
        return {
            **(base if case[0] == "labels" else dealt),
            **data.methods[case[2]][0],
            **chosen,
            "local-steps": STEPS,
            "fedfw.local-steps": STEPS,
            "classification.partition": case[0],
            "domain": case[1],
            "classification.train-limit": limit,
        }

    how: dict[str, Any] = {"every": rounds, "grid": batched}

    def scores(asked: list[tuple[Case, dict[str, float]]]) -> list[list[float]]:
        held_out = {"classification.validation-fraction": VALIDATION}
        wanted = {
            k: config(case, chosen, choice) | held_out
            for k, (case, chosen) in enumerate(asked)
        }
        tried = repeat(options, wanted, choosing, data.nodes, **how)
        return [
            [run.get("accuracy", float("nan")) for run in runs]
            for runs in tried.values()
        ]

    spaces = {case: data.methods[case[2]][1] for case in cases}
    # what stands beside each other in a table is searched with the same budget
    found = search(spaces, budget, scores, wider, lambda case: case[:2])
    finals = {case: config(case, found[case].chosen, examples) for case in cases}
    rows = []
    for case, of in repeat(options, finals, seeds, data.nodes, **how).items():
        trials = len(found[case].tried) * len(choosing)
        rows.append(
            {
                **dict(zip(("partition", "ball", "method"), case, strict=True)),
                "accuracy": [run.get("accuracy", float("nan")) for run in of],
                "loss": [run.get("loss", float("nan")) for run in of],
                **found[case].record(),
                # local gradients of a client, by all runs that led to the choice
                "tuning-gradients": trials * rounds * STEPS,
                "gradients": rounds * STEPS,
                "bytes": of[0].get("bytes", 0) / rounds / data.nodes,
                "seconds": float(np.mean([run.get("seconds", 0.0) for run in of])),
            }
        )
    return {
        "rows": rows,
        "seeds": len(seeds),
        "choice-seeds": list(choosing),
        "rounds": rounds,
        "nodes": data.nodes,
    }


_SYMBOLS = {"penalty": "λ_0", "proximal-step": "η", "local-step-size": "γ"}


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Ours with the paper's beside them."""
    data, theirs, rows = TABLES[name], published(name), results["rows"]
    feddr = {(r["partition"], r["ball"]): r for r in rows if r["method"] == "FedDR"}
    lines = []
    for row in sorted(rows, key=lambda row: list(BALLS).index(row["ball"])):
        cell = row["partition"], row["ball"]
        accuracy = 100 * np.array(row["accuracy"])
        ahead = "–"
        if row["method"] != "FedDR":
            other = feddr[cell]["accuracy"]
            ahead = points("", row["accuracy"], other, form="{:+.1f}").written()
        chosen = [f"{_SYMBOLS[k]} = {value:.2g}" for k, value in row["chosen"].items()]
        paper = theirs.get(cell, {}).get(row["method"])
        lines.append(
            (
                *(BALLS[row["ball"]], data.describe(row["partition"]), row["method"]),
                "–" if paper is None else f"{paper:.2f}",
                f"{accuracy.mean():.2f} ± {accuracy.std():.2f}",
                ahead,
                ", ".join(chosen) + ("" if row.get("inside", True) else " (edge)"),
            )
        )
    head = "ball | partition | method | the paper's | accuracy, % | minus FedDR's, 95 %"
    tried = sorted({len(row["tried"]) for row in rows})
    most = f" to {tried[-1]}" if tried[1:] else ""
    count = results["seeds"]
    return (
        f"{table(f'{head} | chosen', lines)}\n\n"
        f"{'One seed' if count == 1 else f'{count} seeds'}, {results['nodes']} nodes, "
        f"{results['rounds']} rounds; {tried[0]}{most} candidates on "
        f"{len(results['choice-seeds'])} validation seeds."
    )


ITEMS = {
    name: Item(data.title, partial(compute, name=name), partial(render, name=name))
    for name, data in TABLES.items()
}
