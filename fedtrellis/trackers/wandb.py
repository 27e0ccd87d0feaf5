"""Runs of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedtrellis.trackers.base import Tracker

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, with the settings as its config.

    Parameters
    ----------
    project, run_name : str, optional
        As Weights & Biases calls them.
    directory : path, optional
        Where its folder ``wandb`` goes; by default where ``WANDB_DIR`` says, or here.
    mode : str, optional
        ``"offline"`` keeps everything there, and ``wandb sync`` uploads it later; by
        default what ``WANDB_MODE`` says.

    Examples
    --------
    >>> from fedtrellis.trackers import WeightsAndBiases
    >>> callback = WeightsAndBiases("lasso", mode="offline")      # doctest: +SKIP
    """

    name, library, extra = "wandb", "wandb", "wandb"

    def __init__(
        self,
        project: str = "fedtrellis",
        run_name: str | None = None,
        directory: str | Path | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        super().__init__()
        self.project, self.run_name = project, run_name
        self.directory, self.mode = directory, mode

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the run."""
        import wandb

        self._run = wandb.init(
            project=self.project,
            name=self.run_name,
            dir=None if self.directory is None else str(self.directory),
            mode=self.mode,
            config={name: _plain(value) for name, value in settings.items()},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row a round."""
        self._run.log(dict(values), step=step)

    def close(self, status: str) -> None:
        """Say how it ended."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "completed" else 1)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
