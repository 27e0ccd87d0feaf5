"""The app: what methods, tasks and domains declare, and a run made of it."""

from fedtrellis.app.application import App
from fedtrellis.app.experiment import Experiment
from fedtrellis.app.registry import Plugin, pairs

__all__ = ["App", "Experiment", "Plugin", "pairs"]
