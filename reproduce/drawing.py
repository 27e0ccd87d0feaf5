"""What tables and pictures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "MOST_LINES",
    "PALETTE",
    "band",
    "legend_below",
    "measured",
    "new_figure",
    "panel",
    "percent",
    "save",
    "spread",
    "style_of",
    "table",
]

#: Okabe and Ito (2008): told apart with any colour vision, and by their greys.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
#: More lines than these in a panel cannot be followed.
MOST_LINES = 6


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
    """Write a picture; return the Markdown that shows it.

    Raises
    ------
    ValueError
        A panel has more than six lines.
    """
    for axes in figure.axes:
        # two points are a mark
        if sum(len(line.get_xdata()) > 2 for line in axes.lines) > MOST_LINES:
            raise ValueError(f"{name}: a panel has more than {MOST_LINES} lines")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=110)
    return f"![{name}]({name}.png)"


def style_of(index: int) -> dict[str, Any]:
    """Colour and dashes of a line among at most six."""
    return {"color": PALETTE[index], "linestyle": _DASHES[index]}


def band(axes: Any, x: ArrayLike, runs: ArrayLike, label: str, **style: Any) -> None:
    """Draw the median of several runs, and their extremes."""
    values = np.atleast_2d(np.asarray(runs, dtype=float))
    axes.plot(x, np.median(values, axis=0), label=label, **style)
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def panel(
    axes: Any,
    curves: Mapping[str, tuple[Any, Any]],
    across: str,
    up: str = "",
    *,
    title: str = "",
    log: str = "xy",
    legend: str | None = "",
    lowest: float = -np.inf,
    reference: tuple[float, str] | None = None,
) -> None:
    """Draw a panel: a line for each curve, of several runs their median and extremes.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    curves : mapping
        By label the places and the values there, of one run or a list for each run.
    across, up : str
        Labels of the axes.
    title : str
    log : str
        Which axes are logarithmic.
    legend : str, optional
        The legend's title; None: no legend.
    lowest : float
        Smaller values are drawn here, where rounding leaves anything.
    reference : tuple of float and str, optional
        A power and its label: a dotted line that falls like it, from the first curve.
    """
    for k, (label, (places, runs)) in enumerate(curves.items()):
        values = np.maximum(np.atleast_2d(np.asarray(runs, dtype=float)), lowest)
        band(axes, places, values, label, **style_of(k))
    if reference is not None:
        places, runs = next(iter(curves.values()))
        times = np.asarray(places, dtype=float)
        middle = np.median(np.atleast_2d(np.asarray(runs, dtype=float)), axis=0)
        middle, times = middle[times > 0], times[times > 0]
        level = middle[0] * (times / times[0]) ** reference[0]
        axes.plot(times, level, ":", color="gray", label=reference[1])
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, fontsize="medium")
    if legend is not None:
        axes.legend(title=legend or None, fontsize="small")


def legend_below(figure: Any, axes: Any) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    """Markdown of a table whose header is cells between bars."""
    lines = [f"| {head} |", "| --- " * (head.count(" | ") + 1) + "|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], form: str = "{:.2g}") -> str:
    """A mean, and the extremes if there are several values."""
    text = form.format(np.mean(values))
    if len(values) > 1:
        text += f" ({form.format(min(values))} to {form.format(max(values))})"
    return text


def percent(values: Sequence[float]) -> str:
    """Write a mean of shares, and their extremes if there are several."""
    return spread([100 * value for value in values], "{:.1f} %")


def measured(results: dict[str, Any]) -> str:
    """How long an item took, and on what."""
    facts = results["machine"]
    count = results["jobs"]
    busy = results.get("processor-minutes")
    of_processors = f" ({busy:.1f} of processor time)" if busy is not None else ""
    return (
        f"Measured in {results['minutes']:.1f} minutes{of_processors}, {count} "
        f"process{'es' * (count != 1)} on "
        f"{facts['cores']} cores, Python {facts['python']}, NumPy {facts['numpy']}, "
        f"flwr {facts['flwr']}."
    )
