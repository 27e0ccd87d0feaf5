"""What a search leaves behind: a table, the best settings, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial

from fedtrellis.server.records import to_toml
from fedtrellis.settings import SettingsError
from fedtrellis.tune.grey_relational import ranked
from fedtrellis.tune.metrics import LATENCIES, METRICS

__all__ = ["ranked_trials", "report"]

_SHOWN = f"seconds-{LATENCIES[1]:g}"  # of the three latencies that of the table
_ROWS = 25  # of the table; trials.csv has all


def ranked_trials(trials: Sequence[FrozenTrial]) -> tuple[pd.DataFrame, list[str]]:
    """A search's trials as a table, best first, and the metrics that all of them have.

    A row has ``trial`` (its number), its settings, ``grade``, the metrics, ``status``,
    ``reason`` and ``record``. Completed trials come first, the Pareto front by falling
    grade, then the others by rising loss. SettingsError if none was completed.
    """
    table = pd.DataFrame(
        {"trial": t.number, **t.params, "grade": float("nan"), **t.user_attrs}
        for t in trials
        if "status" in t.user_attrs
    )
    counts = table["status"] == "completed"
    if not counts.any():
        number, status, reason = table.iloc[0][["trial", "status", "reason"]]
        raise SettingsError(
            f"none of {len(table)} trials is left; trial {number} {status}: {reason}"
        )
    kept = table[counts].sort_values("loss", kind="stable")
    metrics = [name for name in METRICS if name in kept.dropna(axis=1)]
    kept = ranked(kept, {name: METRICS[name] for name in metrics})
    return pd.concat([kept, table[~counts]]), metrics


def report(
    trials: Sequence[FrozenTrial], out: Path, name: str, fixed: Mapping[str, Any]
) -> None:
    """Print the ranking, and write ``trials.csv``, ``best.toml`` and ``pareto.png``.

    ``fixed`` has the settings that all trials share, for ``best.toml``.
    """
    table, metrics = ranked_trials(trials)
    table.to_csv(out / "trials.csv", index=False)
    kept = table[table["status"] == "completed"]
    best = trials[kept["trial"].iloc[0]]
    head = (
        f"# Trial {best.number} of fedtrellis tune, recommended by grey relational "
        f"analysis over\n# {', '.join(metrics)}.\n"
    )
    text = head + to_toml({**fixed, **best.params})
    (out / "best.toml").write_text(text, encoding="utf-8")
    _picture(kept, f"{name}: {len(kept)} of {len(table)} trials", out / "pareto.png")

    print(f"Recommended first; grades of the Pareto front over {len(metrics)} metrics")
    shown = [m for m in metrics if m == _SHOWN or "seconds" not in m]
    rows = kept[["trial", *best.params, "grade", *shown]].head(_ROWS)
    print(rows.to_string(index=False, na_rep="-", float_format="{:.4g}".format))
    if len(kept) > _ROWS:
        print(f"... and {len(kept) - _ROWS} more in trials.csv")
    for row in table[len(kept) :].to_dict("records"):
        print(f"left out: trial {row['trial']} {row['status']}: {row['reason']}")
    print(f"Best: {out / 'best.toml'}\nPicture: {out / 'pareto.png'}", flush=True)


def _picture(kept: pd.DataFrame, title: str, path: Path) -> None:
    """Seconds a round against the final loss, by grade; small and grey: dominated."""
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.scatter(kept[_SHOWN], kept["loss"], s=15, c="0.6")
    # a grade that is NaN is not drawn
    points = axes.scatter(kept[_SHOWN], kept["loss"], s=70, c=kept["grade"])
    best = kept.iloc[0]
    axes.annotate(f"  trial {best['trial']}", (best[_SHOWN], best["loss"]))
    axes.set_xlabel(f"seconds a round, with {LATENCIES[1]:g} s latency a round trip")
    axes.set_ylabel("mean of the last 5 losses")
    if kept["loss"].min() > 0.0:
        axes.set_yscale("log")
    axes.set_title(title)
    figure.colorbar(points, label="grey relational grade")
    figure.savefig(path, dpi=120)
