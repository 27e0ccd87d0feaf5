"""The convergence picture of one or several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtrellis.extras import need
from fedtrellis.server.callbacks import QUALITIES, RoundRecord

__all__ = ["plot_convergence"]

_LARGEST = 1e100
# how far from optimal, with and without a constraint; what the axis says
_CRITERIA = {
    "gap": "Frank-Wolfe gap",
    "squared-gradient-norm": "‖∇F(x)‖²",
    "gradient-map-norm": "‖G(x)‖, gradient map on the manifold",
    "duality-gap": "duality gap P(w) − D(α)",
}


def _series(
    history: Sequence[RoundRecord], metric: str
) -> tuple[list[int], list[float], list[float]]:
    """Rounds, megabytes moved until then, and values of a metric."""
    rounds, megabytes, values, moved = [], [], [], 0
    for record in history:
        moved += record.bytes_up + record.bytes_down
        if metric in record.metrics:
            rounds.append(record.round)
            megabytes.append(moved / 1e6)
            value = record.metrics[metric]
            # a run that diverged: its axis would be longer than a float
            values.append(value if abs(value) < _LARGEST else np.nan)
    return rounds, megabytes, values


def plot_convergence(
    runs: Mapping[str, Sequence[RoundRecord]],
    path: str | Path,
    reference: float | None = None,
) -> None:
    """Draw loss (or its distance to F*), gap and quality of runs to a PNG file.

    Parameters
    ----------
    runs : mapping of str to sequence of RoundRecord
        Histories by the names that the legend shows.
    path : path
        Where to write.
    reference : float, optional
        F*; the loss is then shown as F(x̄) − F* on a logarithmic axis.
    """
    need("matplotlib", f"the picture {path}", "plots")
    # the object interface: no global state, no display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = {name for history in runs.values() for r in history for name in r.metrics}
    panels = [("loss", "round")]
    panels += [(name, "round") for name in _CRITERIA if name in names][:1]
    panels += [(name, "round") for name in QUALITIES if name in names][:1]
    panels.append(("loss", "megabytes"))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (metric, against) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True
    ):
        for label, history in runs.items():
            rounds, megabytes, values = _series(history, metric)
            label_y, logarithmic = _CRITERIA.get(metric, metric), metric in _CRITERIA
            if metric == "loss":
                label_y = "F(x̄)"
                if reference is not None:
                    values = [value - reference for value in values]
                    label_y, logarithmic = "F(x̄) − F*", True
            if logarithmic:  # a logarithm has no place for what rounding made negative
                values = [value if value > 0 else np.nan for value in values]
                axes.set_yscale("log")
            axes.plot(rounds if against == "round" else megabytes, values, label=label)
        axes.set_xlabel("round" if against == "round" else "MB up and down, all nodes")
        axes.set_ylabel(label_y)
        axes.grid(True, alpha=0.3)
    if len(runs) > 1:
        figure.axes[0].legend()
    else:
        figure.suptitle(next(iter(runs)))
    figure.savefig(path, dpi=120)
