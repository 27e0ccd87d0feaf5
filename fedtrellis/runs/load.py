"""The record of a run, read back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.app.directory import flatten
from fedtrellis.extras import need
from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.server.records import default_results_dir
from fedtrellis.settings import SettingsError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "find_runs", "load_run"]

_FIELDS = {field.name for field in dataclasses.fields(RoundRecord)}
# what a round is, beside its metrics; seconds and bytes are those of this round alone
_OF_A_ROUND = ("round", "sampled", "used", "bytes_up", "bytes_down", "seconds")


@dataclass(frozen=True)
class Run:
    """One run, as its record has it.

    Attributes
    ----------
    directory : Path
        The record.
    settings : dict
        The run config, flat: ``{"method": "fedfw", "fedfw.penalty": ..., ...}``.
    summary : dict
        What ``summary.json`` has: ``status`` (``"running"``, ``"completed"``,
        ``"interrupted"``, ``"failed"``), ``rounds``, ``metrics``, totals.
    history : list of RoundRecord
        A record a round, the start (round 0) first.

    Examples
    --------
    >>> import fedtrellis
    >>> run = fedtrellis.load_run("RECORD")  # doctest: +SKIP
    >>> run.settings["method"], run.status  # doctest: +SKIP
    ('fedfw', 'completed')
    >>> run.columns()["loss"][-1]  # doctest: +SKIP
    1.2701...
    """

    directory: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    history: list[RoundRecord]

    def __repr__(self) -> str:
        """A line: what it is of, how it ended, where it lies."""
        rounds = self.history[-1].round if self.history else 0
        return (
            f"<Run {self.title}: {self.status}, {rounds} rounds, "
            f"{str(self.directory)!r}>"
        )

    @property
    def status(self) -> str:
        """``"running"``, ``"completed"``, ``"interrupted"`` or ``"failed"``."""
        return str(self.summary.get("status", "running"))

    @property
    def title(self) -> str:
        """Method and task, such as ``"fedfw on digits"``."""
        return f"{self.settings.get('method', '?')} on {self.settings.get('task', '?')}"

    @property
    def reference(self) -> float | None:
        """F*, if the run knew it (``reference=true``)."""
        value = self.summary.get("reference_optimum")
        return None if value is None else float(value)

    @cached_property
    def model(self) -> dict[str, NDArray[Any]] | None:
        """The model's arrays by their names; None until the run has ended."""
        path = self.directory / "model.npz"
        if not path.is_file():
            return None
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The history as columns of float64, of one length.

        Returns
        -------
        dict of str to ndarray of shape (rounds + 1,)
            ``round``, ``sampled``, ``used``, ``bytes_up``, ``bytes_down`` (bytes of the
            round), ``seconds`` (wall time of the round), and every metric; NaN where a
            round has no such metric.
        """
        metrics = dict.fromkeys(name for r in self.history for name in r.metrics)
        rows = [
            # a metric by the name of a field of the round stands back
            {**r.metrics, **{name: getattr(r, name) for name in _OF_A_ROUND}}
            for r in self.history
        ]
        return {
            name: np.array([float(row.get(name, np.nan)) for row in rows])
            for name in dict.fromkeys((*_OF_A_ROUND, *metrics))
        }

    def frame(self) -> pd.DataFrame:
        """:meth:`columns` as a pandas frame, indexed by round.

        Raises
        ------
        SettingsError
            pandas is not installed; :meth:`columns` needs none.
        """
        need("pandas", "Run.frame()", "report")
        import pandas as pd

        frame = pd.DataFrame(self.columns())
        return frame.astype({"round": int}).set_index("round")


def load_run(directory: str | Path) -> Run:
    """Read the record of a run, also of one that goes on or failed.

    Parameters
    ----------
    directory : path
        The run's own, such as ``~/.fedtrellis/runs/20261122-110950-fedfw-digits``.

    Raises
    ------
    SettingsError
        If it is no record, or one of its files cannot be read.

    Examples
    --------
    >>> from fedtrellis import load_run
    >>> run = load_run("~/runs/20261122-110950-fedfw-digits")    # doctest: +SKIP
    >>> load_run("/nowhere")
    Traceback (most recent call last):
    fedtrellis.settings.SettingsError: '/nowhere' is not the record of a run
    """
    path = Path(directory).expanduser().resolve()
    # a strategy of somebody else may leave no config.toml
    if not (path / "summary.json").is_file():
        raise SettingsError(f"{str(directory)!r} is not the record of a run")
    name = "config.toml"
    try:
        settings = flatten(tomllib.loads(_text(path / name)))
        name = "summary.json"
        summary = json.loads(_text(path / name) or "{}")
        name = "history.jsonl"
        history = _history(_text(path / name))
    except (OSError, TypeError, ValueError) as error:
        raise SettingsError(f"{path / name} cannot be read: {error}") from None
    return Run(path, settings, summary, history)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _history(text: str) -> list[RoundRecord]:
    """The rounds of ``history.jsonl``, but for a last line that is being written."""
    lines = text.splitlines(keepends=True)
    found = []
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            if line is lines[-1] and not line.endswith("\n"):
                break
            raise
        # a record of a later version may know more than this one
        known = {k: v for k, v in content.items() if k in _FIELDS}
        found.append(RoundRecord.from_dict(known))
    return found


def find_runs(parent: str | Path | None = None) -> list[Run]:
    """All records directly under a directory, the oldest first.

    Parameters
    ----------
    parent : path, optional
        By default ``~/.fedtrellis/runs``.

    Raises
    ------
    SettingsError
        If there is no such directory.

    Examples
    --------
    >>> import tempfile
    >>> from fedtrellis.runs import find_runs
    >>> find_runs(tempfile.mkdtemp())
    []
    """
    path = Path(parent).expanduser() if parent else default_results_dir()
    if not path.is_dir():
        if parent is None:
            return []
        raise SettingsError(f"{str(parent)!r} is not a directory")
    records = sorted(path.glob("*/summary.json"))
    return [load_run(record.parent) for record in records]
