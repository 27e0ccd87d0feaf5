"""The record of a run: one directory with its settings, history, model and picture."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Result

from fedtrellis.extras import need
from fedtrellis.server.callbacks import (
    QUALITIES,
    Callback,
    RoundRecord,
    format_bytes,
    shortened,
)
from fedtrellis.server.files import append_lines, naming, replacing
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.flower_internals import log

__all__ = [
    "RunRecord",
    "default_results_dir",
    "how_it_ended",
    "plot_convergence",
    "summarise",
    "summary_rows",
    "to_toml",
]

# Of the reasons why answers were dropped, so many end a run; the history has all.
_REASONS = 5
_LARGEST = 1e100
# how far from optimal, with and without a constraint; what the axis says
_CRITERIA = {
    "gap": "Frank-Wolfe gap",
    "squared-gradient-norm": "‖∇F(x)‖²",
    "gradient-map-norm": "‖G(x)‖, gradient map on the manifold",
    "duality-gap": "duality gap P(w) − D(α)",
}


def default_results_dir() -> Path:
    """Where records go by default.

    Under the user's home: a relative path would mean a bundle's directory, or that of
    a long-lived SuperLink.
    """
    return Path.home() / ".fedtrellis" / "runs"


def to_toml(config: Mapping[str, Any], in_order: bool = False) -> str:
    """Write a flat run config as TOML that ``--run-config`` takes, sorted or not."""

    def written(value: Any) -> str:
        if isinstance(value, float):
            return repr(value)  # JSON's infinities have other names
        # JSON leaves U+007F as it is, TOML does not
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    keys = config if in_order else sorted(config)
    return "\n".join(f"{key} = {written(config[key])}" for key in keys) + "\n"


class RunRecord(Callback):
    """Writes a run down while it goes on.

    ============================ =====================================================
    ``config.toml``              all settings; ``--run-config`` takes the file
    ``resume.toml``              the same, and ``resume``: goes on from the checkpoint
    ``history.jsonl``            a line a round, see ``RoundRecord``
    ``summary.json``             status (running, completed, interrupted, failed),
                                 rounds, last metrics, totals, error if any
    ``model.npz``                the model's arrays, by the names they had
    ``checkpoint.npz``           what ``resume`` needs
    ``convergence.png``          loss, gap and quality over rounds and bytes, unless
                                 ``picture`` is False
    ============================ =====================================================

    Parameters
    ----------
    directory : path
        The run's own directory; made if it is not there.
    config : mapping
        The run config, flat.
    reference : float, optional
        F*, for the picture and the summary.
    title : str
        Of the picture.

    Attributes
    ----------
    picture : bool
        Whether a picture is drawn in the end.
    status : str
        ``"running"``, ``"completed"``, ``"interrupted"`` or ``"failed"``.
    """

    def __init__(
        self,
        directory: str | Path,
        config: Mapping[str, Any],
        reference: float | None = None,
        title: str = "",
    ) -> None:
        self.directory = Path(directory).expanduser().resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.reference, self.title, self.picture = reference, title, True
        #: What a reader of the summary must not overlook.
        self.warnings: list[str] = []
        self._rounds: list[RoundRecord] = []  # those that history.jsonl has
        self.status = ""
        self._began = time.time()
        again = {**config, "resume": str(self.directory)}
        for name, values in (("config.toml", config), ("resume.toml", again)):
            with naming(path := self.directory / name):
                path.write_text(to_toml(values), encoding="utf-8")
        self._write_summary("running", None)

    @classmethod
    def create(cls, parent: Path, name: str, config: Mapping[str, Any]) -> RunRecord:
        """Make a record in a new directory ``TIME-NAME`` under ``parent``."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        for number in range(1, 1000):
            suffix = "" if number == 1 else f"-{number}"
            directory = parent.expanduser() / f"{stamp}-{name}{suffix}"
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(directory, config)
        raise FileExistsError(f"{parent} has a thousand records of this second")

    @property
    def checkpoint(self) -> Path:
        """Where the run's checkpoint belongs."""
        return self.directory / "checkpoint.npz"

    def on_start(self, strategy: Any, first_round: int, num_rounds: int) -> None:
        """Open the history; a resumed run's begins with the rounds it goes on from."""
        self._rounds, self.status = [], "running"
        (self.directory / "history.jsonl").unlink(missing_ok=True)
        self._append(strategy.history)

    def _append(self, records: Sequence[RoundRecord]) -> None:
        lines = [json.dumps(record.to_dict()) for record in records]
        append_lines(self.directory / "history.jsonl", lines)
        self._rounds += records

    def on_round(self, strategy: Any, record: RoundRecord) -> None:
        """Append a line."""
        self._append([record])

    def on_end(self, strategy: Any, result: Result) -> None:
        """Write model, summary and, where it is wanted, the picture."""
        arrays: dict[str, Any] = {
            name: decode(array) for name, array in result.arrays.items()
        }
        with replacing(self.directory / "model.npz") as file:
            np.savez(file, **arrays)
        if self.picture:
            runs = {self.title or type(strategy).__name__: strategy.history}
            with naming(picture := self.directory / "convergence.png"):
                plot_convergence(runs, picture, reference=self.reference)
        self._write_summary("completed", None)

    def on_failure(self, strategy: Any, error: BaseException) -> None:
        """Say how the run ended."""
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Say that the run ended early, and why; a record that has its end keeps it."""
        if self.status != "running":
            return
        try:
            self._write_summary(how_it_ended(error), f"{type(error).__name__}: {error}")
        except OSError as again:  # such as the full disk that ended the run
            log(WARNING, "the summary has the run as still going on: %s", again)

    def _write_summary(self, status: str, error: str | None) -> None:
        self.status = status
        summary: dict[str, Any] = {"status": status, **summarise(self._rounds)}
        if self.reference is not None:
            summary["reference_optimum"] = self.reference
            if "loss" in summary["metrics"]:
                summary["residual"] = summary["metrics"]["loss"] - self.reference
        if self.warnings:
            summary["warnings"] = self.warnings
        if error is not None:
            summary["error"] = error
        summary["wall_seconds"] = round(time.time() - self._began, 3)
        data = (json.dumps(summary, indent=2) + "\n").encode()
        path = self.directory / "summary.json"
        try:
            with replacing(path) as file:
                file.write(data)
        except OSError:
            if status in ("running", "completed"):
                raise
            # on a full disk the room that it has may be enough
            path.write_bytes(data)


def how_it_ended(error: BaseException) -> str:
    """The status of a run that ended with an error."""
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def summarise(history: list[RoundRecord]) -> dict[str, Any]:
    """Totals and last metrics of a history."""
    metrics: dict[str, float] = {}
    for record in history:
        metrics.update(record.metrics)
    reasons = Counter(reason for record in history for _, reason in record.rejected)
    added = ("bytes_up", "bytes_down", "seconds", "sampled", "used")
    return {
        "rounds": history[-1].round if history else 0,
        "metrics": metrics,
        **{name: sum(getattr(record, name) for record in history) for name in added},
        "rejected": reasons.total(),
        "rejected_by_reason": dict(reasons.most_common()),
    }


def summary_rows(history: list[RoundRecord]) -> list[tuple[str, str]]:
    """The short table that ends a run: names and values as people read them."""
    summary = summarise(history)
    rows = [
        ("rounds", str(summary["rounds"])),
        *((name, f"{value:.6g}") for name, value in summary["metrics"].items()),
        ("bytes up", format_bytes(summary["bytes_up"])),
        ("bytes down", format_bytes(summary["bytes_down"])),
        ("seconds", f"{summary['seconds']:.2f}"),
        ("answers used", f"{summary['used']} of {summary['sampled']}"),
    ]
    if summary["rejected"]:
        rows.append(("answers dropped", str(summary["rejected"])))
        reasons = list(summary["rejected_by_reason"].items())
        rows += [(f"  {shortened(why)}", str(n)) for why, n in reasons[:_REASONS]]
        if rest := sum(count for _, count in reasons[_REASONS:]):
            rows.append(("  for other reasons", str(rest)))
    return rows


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
    # the object interface: no global state, no display; slow to load
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = {name for history in runs.values() for r in history for name in r.metrics}
    panels = [("loss", "round")]
    for known in (_CRITERIA, QUALITIES):
        panels += [(name, "round") for name in known if name in names][:1]
    panels.append(("loss", "MB up and down, all nodes"))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (metric, against) in zip(
        figure.subplots(1, len(panels)), panels, strict=True
    ):
        label, optimum = _CRITERIA.get(metric, metric), 0.0
        logarithmic = metric in _CRITERIA
        if metric == "loss":
            label, optimum = "F(x̄)", reference or 0.0
            if reference is not None:
                label, logarithmic = "F(x̄) − F*", True
        if logarithmic:
            axes.set_yscale("log")
        for name, history in runs.items():
            moved = np.cumsum([r.bytes_up + r.bytes_down for r in history]) / 1e6
            places = [r.round for r in history] if against == "round" else moved
            values = [r.metrics.get(metric, np.nan) - optimum for r in history]
            # the axis of a run that diverged would be longer than a float; a logarithm
            # has no place for what rounding made negative
            least = 0.0 if logarithmic else -_LARGEST
            there = [i for i, value in enumerate(values) if least < value < _LARGEST]
            shown = [places[i] for i in there], [values[i] for i in there]
            axes.plot(*shown, label=name)
        axes.set(xlabel=against, ylabel=label)
        axes.grid(True, alpha=0.3)
    if len(runs) > 1:
        figure.axes[0].legend()
    else:
        figure.suptitle(next(iter(runs)))
    figure.savefig(path, dpi=120)
