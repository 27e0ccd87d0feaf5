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
        rounds = against == "round"
        label_y, logarithmic = _CRITERIA.get(metric, metric), metric in _CRITERIA
        subtracted = 0.0
        if metric == "loss":
            label_y = "F(x̄)"
            if reference is not None:
                subtracted, label_y, logarithmic = reference, "F(x̄) − F*", True
        if logarithmic:
            axes.set_yscale("log")
        for label, history in runs.items():
            moved = np.cumsum([r.bytes_up + r.bytes_down for r in history]) / 1e6
            there = [i for i, r in enumerate(history) if metric in r.metrics]
            values = np.array([history[i].metrics[metric] for i in there]) - subtracted
            # the axis of a run that diverged would be longer than a float; a logarithm
            # has no place for what rounding made negative
            values[~(np.abs(values) < _LARGEST)] = np.nan
            if logarithmic:
                values[~(values > 0)] = np.nan
            at = [history[i].round for i in there] if rounds else moved[there]
            axes.plot(at, values, label=label)
        axes.set_xlabel("round" if rounds else "MB up and down, all nodes")
        axes.set_ylabel(label_y)
        axes.grid(True, alpha=0.3)
    if len(runs) > 1:
        figure.axes[0].legend()
    else:
        figure.suptitle(next(iter(runs)))
    figure.savefig(path, dpi=120)
