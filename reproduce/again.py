"""Two items with other seeds beside the stored: ``python -m reproduce --again``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .claims import Claim, Effect

__all__ = ["AGAIN", "FIRST", "SEEDS", "STORED", "compare", "predicted", "table"]

STORED = Path(__file__).parent / "again.json"
#: Items and the claims that they alone decide; both are cheap.
AGAIN = {("fedgia", "rate"): "stationary", ("hyfdca", "central"): "optimum"}
#: The first of the other seeds.
FIRST = 100
#: How many of them.
SEEDS = 3


def predicted(effect: Effect, count: int, level: float = 0.95) -> tuple[float, float]:
    """Interval that holds the mean of ``count`` new values with probability ``level``.

    Of normal values, where ``effect`` has those that are stored.
    """
    from scipy.stats import t

    n = len(effect.values)
    # mean ± t_{(1 + level)/2, n−1} s √(1/n + 1/count)
    half = float(
        t.ppf(0.5 + level / 2.0, n - 1)
        * np.std(effect.values, ddof=1)
        * math.sqrt(1.0 / n + 1.0 / count)
    )
    return effect.mean - half, effect.mean + half


def compare(
    claim: Claim, stored: Mapping[str, Any], fresh: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Each case of a claim: its new mean, and what the stored values predict.

    With m cases each interval is of 1 − 0.05/m, so that together they hold all new
    means with a probability of at least 95 %.

    Raises
    ------
    ValueError
        The two have other cases.
    """
    assert claim.effects is not None
    (item,) = claim.items
    before, after = (claim.effects({item: dict(one)}) for one in (stored, fresh))
    if [effect.case for effect in before] != [effect.case for effect in after]:
        raise ValueError(f"{item} has other cases than what is stored")
    rows = []
    for old, new in zip(before, after, strict=True):
        low, high = predicted(old, len(new.values), 1.0 - 0.05 / len(before))
        rows.append(
            {
                "case": old.case,
                "stored": list(old.values),
                "again": list(new.values),
                "low": low,
                "high": high,
                "inside": low <= new.mean <= high,
            }
        )
    return rows


def table(results: dict[str, Any], effects: Mapping[str, Effect]) -> str:
    """What was found, as Markdown: an item a row, and its case nearest to a limit.

    ``effects`` by case say how its numbers are written.
    """
    lines = [
        "| item | cases inside | nearest to a limit | stored mean | predicted "
        "| mean again | minutes |",
        "| --- " * 7 + "|",
    ]
    for item in results["items"]:
        rows = item["rows"]
        inside = sum(row["inside"] for row in rows)
        row = max(rows, key=_off_centre)
        effect = effects[row["case"]]
        ends = sorted(effect.shown(row[end]) for end in ("low", "high"))
        before, after = (
            effect.form.format(effect.shown(float(np.mean(row[which]))))
            for which in ("stored", "again")
        )
        lines.append(
            f"| `{item['paper']} {item['item']}` | {inside} of {len(rows)} "
            f"| {row['case']} | {before} | [{ends[0]:.3g}, {ends[1]:.3g}] | {after} "
            f"| {item['processor-minutes']:.1f} |"
        )
    return "\n".join(lines)


def _off_centre(row: Mapping[str, Any]) -> float:
    """How far the new mean is from the middle of the interval; 1: at its end."""
    middle, half = (row["low"] + row["high"]) / 2.0, (row["high"] - row["low"]) / 2.0
    return float(abs(np.mean(row["again"]) - middle) / half)
