"""What a request repeats of the strategy's settings."""

from __future__ import annotations

from typing import Any


def entries_of(strategy: object, *names: str) -> dict[str, Any]:
    """Settings by their run-config keys: ``local_steps`` is ``local-steps``."""
    return {name.replace("_", "-"): getattr(strategy, name) for name in names}
