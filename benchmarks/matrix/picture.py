"""Performance profiles in one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reproduce.drawing import MOST_LINES, new_figure, save, style_of

from .methods import METHODS
from .problems import PROBLEMS
from .tables import Cost, Results, profile

__all__ = ["draw", "groups"]

_WIDEST = 100.0
_TITLES: dict[Cost, str] = {
    "rounds": "rounds",
    "gradients": "gradients",
    "bytes": "bytes, up and down",
}


def groups(results: Results) -> dict[str, tuple[Results, list[str]]]:
    """Problems over a set and without one, each with the methods for all of them."""
    found: dict[str, tuple[Results, list[str]]] = {}
    for title, none in (("over a set", False), ("without a set", True)):
        part = {
            name: stored
            for name, stored in results.items()
            if (PROBLEMS[name].kind == "none") == none
        }
        shared = [
            name for name in METHODS if all(name in s["methods"] for s in part.values())
        ]
        if part and shared:
            found[title] = part, shared
    return found


def _area(ratios: list[float]) -> float:
    """The area under a profile on its logarithmic axis."""
    left = [np.log(_WIDEST / r) for r in ratios if r <= _WIDEST]
    return float(sum(left))


def draw(results: Results, folder: Path, name: str) -> str:
    """Draw a row of panels for each group: the best six methods that ever arrive."""
    made = groups(results)
    figure, axes = new_figure(3, len(made))
    for row, (title, (part, names)) in enumerate(made.items()):
        ranked = profile(part, names, "gradients")
        best = sorted(names, key=lambda one: -_area(ranked[one]))[:MOST_LINES]
        shown = [one for one in names if one in best and _area(ranked[one]) > 0.0]
        for panel, (what, label) in zip(axes[row], _TITLES.items(), strict=True):
            # against all of them, whoever is drawn
            ratios = profile(part, names, what)
            for index, one in enumerate(shown):
                count = len(ratios[one])
                reached = [r for r in ratios[one] if r <= _WIDEST]
                x = [1.0, *reached, _WIDEST]
                y = [0.0, *(np.arange(len(reached)) + 1.0), float(len(reached))]
                panel.step(
                    x,
                    np.array(y) / max(count, 1),
                    where="post",
                    label=METHODS[one].title,
                    **style_of(index),
                )
            panel.set_xscale("log")
            panel.set_ylim(0.0, 1.02)
            panel.set_title(f"{title}: {label}")
            panel.set_xlabel("times the best method's")
        axes[row][0].set_ylabel("share of problems and seeds")
        axes[row][0].legend(fontsize=8, loc="lower right")
    return save(figure, folder, name)
