"""What the pictures have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["color", "measured", "new_figure", "percent", "save"]


def new_figure(columns: int, rows: int = 1) -> tuple[Any, Any]:
    """Make a picture with a grid of axes, rows × columns."""
    # the object interface: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * columns, 3.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.grid(True, alpha=0.3)
    return figure, axes


def save(figure: Any, out: Path, name: str) -> str:
    """Write a picture; return the Markdown that shows it."""
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=110)
    return f"![{name}]({name}.png)"


def color(index: int, count: int) -> Any:
    """Return a line's colour, from dark to bright."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * index / max(count - 1, 1))


def percent(values: Sequence[float]) -> str:
    """Write a mean of shares, and their extremes if there are several."""
    text = f"{100 * np.mean(values):.1f} %"
    if len(values) > 1:
        text += f" ({100 * min(values):.1f} to {100 * max(values):.1f})"
    return text


def measured(results: dict[str, Any], *, jobs: bool = True) -> str:
    """How long an item took, and on what."""
    facts = results["machine"]
    processes = f", {results['jobs']} processes" if jobs else ""
    busy = results.get("processor-minutes")
    of_processors = f" ({busy:.1f} of processor time)" if busy is not None else ""
    return (
        f"Measured in {results['minutes']:.1f} minutes{of_processors}{processes} on "
        f"{facts['cores']} cores, Python {facts['python']}, NumPy {facts['numpy']}, "
        f"flwr {facts['flwr']}."
    )
