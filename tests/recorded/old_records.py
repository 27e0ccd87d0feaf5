"""What only ``record`` needs: how the version recorded was run, and interrupted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.recorded.run_case import HERE, RESUMED, prepared, quiet

__all__ = ["interrupt", "old_start"]

_FILES = (
    "config.toml",
    "resume.toml",
    "history.jsonl",
    "summary.json",
    "checkpoint.npz",
    "checkpoint.npz.history.jsonl",
)
_INTERRUPTED = 6


def old_start(
    config: Mapping[str, Any],
    nodes: int,
    node_configs: Sequence[Mapping[str, Any]] | None = None,
    **faults: Any,
) -> Path:
    """Run a flat run config as ``sim.py`` did when it was one file."""
    import sim
    from fedtrellis import LocalGrid

    old: Any = sim
    grid = LocalGrid(
        old.client_app,
        nodes,
        seed=config["seed"],
        run_config=config,
        node_configs=node_configs,
        **faults,
    )
    return Path(old.run(grid, config))


def interrupt(case: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Make the record that a case goes on from; interrupted in round 6.

    What names this machine is left out: the record is said to have lain in ``/runs``.
    """
    from fedtrellis import LocalGrid

    push = LocalGrid.push_messages

    def push_or_stop(grid: LocalGrid, messages: Any) -> Any:
        messages = list(messages)
        if any(m.metadata.group_id == str(_INTERRUPTED) for m in messages):
            raise KeyboardInterrupt
        return push(grid, messages)

    before = {key: value for key, value in case.items() if key != "resume"}
    with (
        quiet(case["name"].removesuffix(RESUMED)),
        tempfile.TemporaryDirectory() as scratch,
        mock.patch.object(LocalGrid, "push_messages", push_or_stop),
    ):
        config, node_configs = prepared(before, defaults, Path(scratch))
        try:
            old_start(config, case["nodes"], node_configs)
        except KeyboardInterrupt:
            (record,) = Path(scratch, "runs").iterdir()
        target = HERE / case["resume"]
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name in _FILES:
            if name.endswith(".npz"):
                with np.load(record / name) as arrays:
                    np.savez_compressed(target / name, **arrays)
                continue
            text = (record / name).read_text(encoding="utf-8")
            text = text.replace(str(record.resolve()), "/runs/old")
            text = text.replace(f"{Path(scratch).resolve()}/files", "/keys")
            text = text.replace(str(Path(scratch).resolve()), "")
            (target / name).write_text(text, encoding="utf-8")
