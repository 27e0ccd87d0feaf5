"""Tables 1, 2 and 3: test accuracy of the last round's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.app import Experiment
from fedtrellis.wire.local_grid import LocalGrid
from reproduce.claims import paired
from reproduce.common import Item, Options, Run, execute, read_config
from reproduce.drawing import PALETTE, measured, new_figure, save

from .tables import BALLS, TABLES, Table, published
from .tuning import WIDER, search

__all__ = ["items"]

HERE = Path(__file__).parent

#: The share of the training examples that hyper-parameters are judged by.
VALIDATION = 0.2

Case = tuple[str, str, str]  # partition, ball, method


def compute(options: Options, name: str) -> dict[str, Any]:
    """Choose hyper-parameters on validation data, then run all seeds with them."""
    table = TABLES[name]
    base = read_config(HERE / f"{table.config}.toml") | table.dataset
    if table.rounds:
        base["rounds"] = table.rounds
    if table.folder:
        base["classification.path"] = str(options.file(table.folder))
    choice, examples, seeds = table.choice, table.examples, options.seeds
    methods, balls, jobs = table.methods, table.balls, options.jobs
    partitions, choosing = table.partitions(), table.choosing
    budget, wider = table.budget, WIDER
    if options.quick:
        base |= {
            "rounds": 3,
            "classification.test-limit": 200,
        }
        choice = examples = (
            120 if base["classification.model"].endswith("cnn") else 1500
        )
        seeds, choosing = min(seeds, 1), choosing[:1]
        budget, wider = 2, 0
        # the network's sets differ by the oracle, which the other tables try
        balls = balls[:1] if base["classification.model"] != "mclr" else balls
        # few examples cannot be dealt by label to a hundred nodes
        partitions = partitions[:1] if table.nodes > 10 else partitions[-1:]
    seeds = min(seeds, table.seeds)
    rounds = base["rounds"]
    cases: list[Case] = [
        (partition, ball, method)
        for partition in partitions
        for ball in balls
        for method in methods
    ]

    def config(case: Case, chosen: Mapping[str, float], seed: int) -> dict[str, Any]:
        partition, ball, method = case
        return {
            **base,
            **methods[method][0],
            **chosen,
            "local-steps": table.steps,
            "fedfw.local-steps": table.steps,
            "classification.partition": partition,
            "domain": ball,
            "seed": seed,
        }

    def scores(asked: list[tuple[Case, dict[str, float]]]) -> list[list[float]]:
        held_out = {
            "classification.train-limit": choice,
            "classification.validation-fraction": VALIDATION,
        }
        # the runs with the same data follow each other, so that these are read once
        runs = [
            _run((k, seed), config(case, chosen, seed) | held_out, table.nodes)
            for seed in choosing
            for k, (case, chosen) in enumerate(asked)
        ]
        tried = execute(runs, jobs)
        return [
            [tried[k, seed].get("accuracy", float("nan")) for seed in choosing]
            for k in range(len(asked))
        ]

    spaces = {case: methods[case[2]][1] for case in cases}
    # what stands beside each other in a table is searched with the same budget
    found = search(spaces, budget, scores, wider, lambda case: case[:2])
    runs = [
        _run(
            (*case, seed),
            config(case, found[case].space.settings(found[case].best), seed)
            | {"classification.train-limit": examples},
            table.nodes,
        )
        for seed in range(seeds)
        for case in cases
    ]
    results = execute(runs, jobs)
    rows = []
    for case in cases:
        partition, ball, method = case
        of = [results[*case, seed] for seed in range(seeds)]
        trials = len(found[case].tried)
        rows.append(
            {
                "steps": table.steps,
                "partition": partition,
                "ball": ball,
                "method": method,
                "accuracy": [run.get("accuracy", float("nan")) for run in of],
                "loss": [run.get("loss", float("nan")) for run in of],
                **found[case].record(),
                # local gradients of a client, by all runs that led to the choice
                "tuning-gradients": trials * len(choosing) * rounds * table.steps,
                "gradients": rounds * table.steps,
                "bytes": of[0].get("bytes", 0) / rounds / table.nodes,
                "seconds": float(np.mean([run.get("seconds", 0.0) for run in of])),
            }
        )
    return {
        "rows": rows,
        "seeds": seeds,
        "choice-seeds": list(choosing),
        "rounds": rounds,
        "nodes": table.nodes,
    }


def _batched(experiment: Experiment) -> LocalGrid:
    """All clients as one stack, to the same numbers."""
    return experiment.grid(batched=True)


def _run(key: tuple[Any, ...], config: dict[str, Any], nodes: int) -> Run:
    return Run(key, config, nodes, every=config["rounds"], grid=_batched)


def spread(values: list[float]) -> str:
    """Write mean ± standard deviation of shares in per cent."""
    text = f"{100 * np.mean(values):.2f}"
    return f"{text} ± {100 * np.std(values):.2f}" if len(values) > 1 else text


#: Where there are not ten labels.
CLASSES = {"table-3-emnist62": 62}


def _settings(chosen: Mapping[str, float]) -> str:
    names = {"penalty": "λ_0", "proximal-step": "η", "local-step-size": "γ"}
    return ", ".join(f"{names[key]} = {value:.2g}" for key, value in chosen.items())


def _pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(r for r in rows if all(r.get(key) == v for key, v in wanted.items()))


def render(results: dict[str, Any], out: Path, name: str) -> str:
    """Draw bars, ours and the paper's, and the table."""
    table, theirs, rows = TABLES[name], published(name), results["rows"]
    parts = list(dict.fromkeys(row["partition"] for row in rows))
    balls = [ball for ball in BALLS if any(row["ball"] == ball for row in rows)]
    heads = ["ball", "partition", "method", *(["the paper's"] if theirs else [])]
    heads += ["accuracy, %", "minus FedDR's, 95 %", "chosen"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for ball in balls:
        for part in parts:
            for method in table.methods:
                case = {"partition": part, "ball": ball}
                row = _pick(rows, method=method, **case)
                first = _pick(rows, method="FedDR", **case)
                edge = "" if row.get("inside", True) else " (edge)"
                cells = [BALLS[ball], table.describe(part), method]
                if theirs:
                    value = theirs.get((part, ball), {}).get(method)
                    cells.append("–" if value is None else f"{value:.2f}")
                cells.append(spread(row["accuracy"]))
                cells.append("–" if row is first else _ahead(row, first))
                cells.append(f"{_settings(row['chosen'])}{edge}")
                lines.append(f"| {' | '.join(cells)} |")
    count = results["seeds"]
    seeds = "One seed" if count == 1 else f"{count} seeds"
    lines += [
        "",
        f"{seeds}, {results['nodes']} nodes, {results['rounds']} rounds, "
        f"{_protocol(rows, results)} {measured(results)}",
    ]
    picture = _draw(rows, out, name, table, theirs, parts, balls)
    return f"{picture}\n\n" + "\n".join(lines)


def _draw(
    rows: list[dict[str, Any]],
    out: Path,
    name: str,
    table: Table,
    theirs: dict[tuple[str, str], dict[str, float]],
    parts: list[str],
    balls: list[str],
) -> str:
    """Bars by ball, partition and method; diamonds are the paper's."""
    figure, axes = new_figure(len(balls))
    figure.set_size_inches(5.4 * len(balls), 3.7)
    methods = list(table.methods)
    for one, ball in zip(axes[0], balls, strict=True):
        width = 0.8 / len(methods)
        for k, method in enumerate(methods):
            for j, part in enumerate(parts):
                row = _pick(rows, partition=part, ball=ball, method=method)
                place = j + (k - (len(methods) - 1) / 2) * width
                label = method if j == 0 else None
                values = 100 * np.array(row["accuracy"])
                one.bar(
                    place,
                    values.mean(),
                    0.9 * width,
                    yerr=values.std(),
                    color=PALETTE[k],
                    alpha=0.75,
                    capsize=3,
                    label=label,
                )
                paper = theirs.get((part, ball), {}).get(method)
                if paper is not None:
                    first = j == 0 and k == len(methods) - 1
                    one.plot(
                        place,
                        paper,
                        "kD",
                        markersize=5,
                        label="the paper's" if first else None,
                    )
        chance = 100.0 / CLASSES.get(name, 10)
        one.axhline(chance, color="gray", linestyle=":", label="chance")
        one.set_xticks(range(len(parts)), [table.describe(part) for part in parts])
        one.set_ylabel("test accuracy, last round (%)")
        one.set_ylim(0, 128)
        one.set_yticks(range(0, 101, 20))
        one.set_title(f"{BALLS[ball]} ball, radius 10")
        one.legend(fontsize="small", loc="upper center", ncols=3)
    return save(figure, out, name)


def _ahead(row: dict[str, Any], other: dict[str, Any]) -> str:
    """Points that a row's accuracy is ahead of another's, by seed."""
    own, its = (100 * np.array(one["accuracy"]) for one in (row, other))
    return paired("", own, its, form="{:+.1f}").written()


def _protocol(rows: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """What each method was given."""
    count, seeds = rows[0]["steps"], len(results["choice-seeds"])
    tried = sorted({len(row["tried"]) for row in rows})
    most = f" to {tried[-1]}" if tried[1:] else ""
    return (
        f"{count} local step{'s' if count > 1 else ''}; {tried[0]}{most} candidates "
        f"on {seeds} validation seeds."
    )


def _bound(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments, name)


def items() -> dict[str, Item]:
    """Return an item for every data set of every table."""
    return {
        name: Item(
            f"{table.title}: accuracy of FedDR and FedFW",
            _bound(compute, name),
            _bound(render, name),
        )
        for name, table in TABLES.items()
    }
