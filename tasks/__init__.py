"""Tasks: what a run learns, from which data, and how it is dealt to the clients."""

from collections.abc import Mapping
from typing import Any

from fedtrellis.settings import check_choice

from .attack import Attack
from .base import DataFileError
from .classification import Characters, Classification, Digits, LowRankNetwork
from .data.readers import node_path
from .data.table import NODES, DataSettings
from .data.task import Task
from .hybrid import ClientData, HybridLinear, HybridLogistic, HybridSVM, HybridTask
from .linear import Lasso, LinearRegression, LogisticRegression
from .matrices import KernelPCA, MatrixCompletionTask, QuadraticAssignmentTask

__all__ = ["NODES", "TASKS", "Attack", "Characters", "Classification", "ClientData"]
__all__ += ["DataFileError", "DataSettings", "Digits", "HybridLinear"]
__all__ += ["HybridLogistic", "HybridSVM", "HybridTask", "KernelPCA", "Lasso"]
__all__ += ["LinearRegression", "LogisticRegression", "LowRankNetwork"]
__all__ += ["MatrixCompletionTask", "QuadraticAssignmentTask", "Task", "make_task"]
__all__ += ["node_path"]

#: Every task by its name in run configurations; the first is the default.
TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        *(Digits, Lasso, QuadraticAssignmentTask, MatrixCompletionTask),
        *(Classification, Characters, LinearRegression, LogisticRegression),
        *(KernelPCA, LowRankNetwork, Attack, HybridSVM, HybridLogistic, HybridLinear),
    )
}


def make_task(
    name: str, config: Mapping[str, Any], num_clients: int, seed: int
) -> Task:
    """Make a task from its name, a key of :data:`TASKS`, and the run config.

    ``num_clients`` and ``seed`` are the run's. A SettingsError: an unknown name, or a
    setting that is not allowed.
    """
    kind = TASKS[check_choice("task", name, TASKS)]
    return kind.from_config(config, num_clients, seed)
