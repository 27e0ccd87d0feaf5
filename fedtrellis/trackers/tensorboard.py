"""Event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtrellis.trackers.base import Tracker

__all__ = ["TensorBoard"]


class TensorBoard(Tracker):
    """Event files for ``tensorboard --logdir DIRECTORY``.

    Parameters
    ----------
    directory : path
        Where they go; one of its own for each run.

    Examples
    --------
    >>> from fedtrellis.trackers import TensorBoard
    >>> callback = TensorBoard("logs/run-1")      # doctest: +SKIP
    >>> strategy = FedFW(domain, callbacks=[callback])      # doctest: +SKIP
    """

    name, library, extra = "tensorboard", "tensorboard", "tensorboard"

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.directory = Path(directory)

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the file."""
        from tensorboard.summary import Writer

        self._writer = Writer(str(self.directory))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar a number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()
