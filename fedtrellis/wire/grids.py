"""What some grids offer beyond Flower's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["own_method"]


def own_method(grid: Any, name: str) -> Callable[..., Any] | None:
    """A grid's method, if it is not that of a grid within it, which sees no messages.

    Parameters
    ----------
    grid : Grid
        Any.
    name : str
    """
    found = getattr(grid, name, None)
    return found if getattr(found, "__self__", None) is grid else None
