"""What the pictures have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "MOST_LINES",
    "PALETTE",
    "band",
    "color",
    "crowded",
    "measured",
    "new_figure",
    "percent",
    "save",
    "style_of",
]

#: Okabe and Ito (2008): told apart with any colour vision, and by their greys.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
#: More lines than these in a panel cannot be followed.
MOST_LINES = 6
#: Fewer runs than these have no band.
LEAST_RUNS = 5


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


def crowded(figure: Any) -> list[int]:
    """Numbers of lines of those panels that have too many; two points are a mark."""
    counts = [
        sum(len(line.get_xdata()) > 2 for line in axes.lines) for axes in figure.axes
    ]
    return [count for count in counts if count > MOST_LINES]


def save(figure: Any, out: Path, name: str) -> str:
    """Write a picture; return the Markdown that shows it.

    Raises
    ------
    ValueError
        A panel has more than six lines.
    """
    if crowded(figure):
        raise ValueError(f"{name}: {crowded(figure)} lines in a panel, at most 6")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=110)
    return f"![{name}]({name}.png)"


def style_of(index: int) -> dict[str, Any]:
    """Colour and dashes of a line among at most six."""
    return {"color": PALETTE[index], "linestyle": _DASHES[index]}


def band(
    axes: Any,
    x: ArrayLike,
    runs: ArrayLike,
    label: str,
    least: int = LEAST_RUNS,
    **style: Any,
) -> None:
    """Draw the median of several runs, and with at least so many their extremes."""
    values = np.asarray(runs, dtype=float)
    axes.plot(x, np.median(values, axis=0), label=label, **style)
    if len(values) >= least:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def color(index: int, count: int) -> Any:
    """Return a line's colour: of the palette, or from dark to bright."""
    if count <= len(PALETTE):
        return PALETTE[index]
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
    count = results["jobs"]
    processes = f", {count} process{'es' * (count != 1)}" if jobs else ""
    busy = results.get("processor-minutes")
    of_processors = f" ({busy:.1f} of processor time)" if busy is not None else ""
    return (
        f"Measured in {results['minutes']:.1f} minutes{of_processors}{processes} on "
        f"{facts['cores']} cores, Python {facts['python']}, NumPy {facts['numpy']}, "
        f"flwr {facts['flwr']}."
    )
