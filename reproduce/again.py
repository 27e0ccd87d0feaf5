"""Items with other seeds beside the stored: ``--first-seed N``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .claims import Claim, Effect, Paper
from .common import load_results, save_results
from .drawing import table

__all__ = ["STORED", "note", "page"]

STORED = Path(__file__).parent / "again.json"


def predicted(effect: Effect, count: int, level: float) -> tuple[float, float]:
    """Interval that holds the mean of ``count`` new values with probability ``level``.

    Of normal values, where ``effect`` has those that are stored.
    """
    from scipy.stats import t

    n = len(effect.values)
    # mean ± t_{(1 + level)/2, n−1} s √(1/n + 1/count)
    quantile = t.ppf(0.5 + level / 2.0, n - 1)
    width = np.std(effect.values, ddof=1) * math.sqrt(1.0 / n + 1.0 / count)
    return effect.mean - float(quantile * width), effect.mean + float(quantile * width)


def compare(
    claim: Claim, stored: Mapping[str, Any], fresh: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Each case of a claim: its new mean, and what the stored values predict.

    With m cases each interval is of 1 − 0.05/m, so that together they hold all new
    means with a probability of at least 95 %.
    """
    (item,) = claim.items
    before, after = (claim.effects({item: dict(one)}) for one in (stored, fresh))
    rows = []
    for old, new in zip(before, after, strict=True):
        low, high = predicted(old, len(new.values), 1.0 - 0.05 / len(before))
        row: dict[str, Any] = {"case": old.case, "stored": list(old.values)}
        row |= {"again": list(new.values), "low": low, "high": high}
        rows.append(row | {"inside": low <= new.mean <= high})
    return rows


def note(
    paper: str, item: str, papers: Sequence[Paper], folder: Path, fresh: dict[str, Any]
) -> int:
    """Compare what an item alone decides, and keep it; 1 where a case is outside."""
    items = load_results(STORED)["items"]
    stored = load_results(folder / "results" / f"{item}.json")
    claims = [c for one in papers for c in one.claims if c.items == (item,)]
    outside = 0
    for claim in claims:
        rows = compare(claim, stored, fresh)
        outside += sum(not row["inside"] for row in rows)
        facts = ("minutes", "processor-minutes", "jobs", "machine", "provenance")
        one = {"paper": paper, "item": item, "claim": claim.name, "rows": rows}
        items = [i for i in items if (i["paper"], i["claim"]) != (paper, claim.name)]
        items.append(one | {key: fresh[key] for key in facts})
        print(f"{claim.name}: {len(rows) - outside} of {len(rows)} cases inside")
    save_results(STORED, {"items": items})
    return int(outside > 0)


def page() -> str:
    """What was found, as Markdown: an item a row."""
    lines = [
        (
            f"`{one['paper']} {one['item']}`: {one['claim']}",
            one["provenance"]["seeds"][0],
            f"{sum(row['inside'] for row in one['rows'])} of {len(one['rows'])}",
            f"{one['processor-minutes']:.1f}",
        )
        for one in load_results(STORED)["items"]
    ]
    return table("item: claim | first seed | cases inside | minutes", lines)
