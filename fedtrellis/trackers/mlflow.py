"""Runs of MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fedtrellis.trackers.base import Tracker

__all__ = ["MLflow"]


class MLflow(Tracker):
    """A run of MLflow, with the settings as its parameters.

    Parameters
    ----------
    run_name, experiment : str, optional
        As MLflow calls them.
    tracking_uri : str, optional
        A server or a database; by default what ``MLFLOW_TRACKING_URI`` says.

    Examples
    --------
    >>> from fedtrellis.trackers import MLflow
    >>> address = "sqlite:///runs.db"
    >>> callback = MLflow("first try", tracking_uri=address)    # doctest: +SKIP
    """

    name, library, extra = "mlflow", "mlflow", "mlflow"

    def __init__(
        self,
        run_name: str | None = None,
        experiment: str = "fedtrellis",
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__()
        self.run_name, self.experiment = run_name, experiment
        self.tracking_uri = tracking_uri

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the run; a client of its own leaves MLflow's global run alone."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self.tracking_uri)
        known = self._client.get_experiment_by_name(self.experiment)
        home = (
            self._client.create_experiment(self.experiment)
            if known is None
            else known.experiment_id
        )
        run = self._client.create_run(home, run_name=self.run_name)
        self.run_id: str = run.info.run_id
        # a value of MLflow's has an end
        params = [Param(name, str(value)[:500]) for name, value in settings.items()]
        self._client.log_batch(self.run_id, params=params)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One request a round."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self, status: str) -> None:
        """Say how it ended."""
        ended = {"completed": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self.run_id, ended[status])
