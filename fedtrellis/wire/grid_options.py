"""What a LocalGrid takes, as keyword arguments for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtrellis.wire.faults import Faults

__all__ = ["GridOptions"]


class GridOptions(Faults, total=False):
    """What :class:`~fedtrellis.LocalGrid` takes besides app and number of nodes."""

    seed: int
    run_config: Mapping[str, Any] | None
    node_configs: Sequence[Mapping[str, Any]] | None
    encode: bool
    batched: bool
    workers: int
