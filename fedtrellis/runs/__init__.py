"""Finished and running runs: read one, list them, compare them."""

from __future__ import annotations

from fedtrellis.runs.load import Run, find_runs, load_run

__all__ = ["Run", "find_runs", "load_run"]
