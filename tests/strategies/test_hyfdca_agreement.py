"""What a client agrees to before a label leaves it: every check, every rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedtrellis.settings import SettingsError
from tests.strategies.hyfdca_runs import Run, Split, grid_parts, small

# ------------------------------------------------------------------ a node's own rules


def _rare() -> Split:
    """One client has a feature in two of its samples only."""
    split = small(n=36)
    split.X[split.parts[2][0][2:], 1] = 0.0
    return Split(split.X, split.y, split.parts, "hinge", 1e-2, least=1)


EXPOSED: dict[str, tuple[Callable[[], Split], dict[str, Any], str]] = {
    "features of one holder": (
        lambda: small(parts="vertical", n=24),
        {},
        "feature 'feature-0000' has 1 holder; .*'feature-0003' has 1 holder",
    ),
    "features of two holders": (
        lambda: small(parts=grid_parts(24, 12, 2, 2), n=24),
        {},
        "feature 'feature-0000' has 2 holders",
    ),
    "a group of two": (
        lambda: small(parts=grid_parts(8, 12, 3, 2), n=8),
        {},
        "1 group of samples with the same holders of size 2",
    ),
    "rare entries": (
        _rare,
        {},
        "client 2: .* 'feature-0001' is not zero in 2 of its samples only.*leave-out",
    ),
    "own sums in the clear": (small, {"secure_sum": False}, "secure-sum is off"),
    "three holders where four are wanted": (small, {"least": 4}, "has 3 holders"),
}


@pytest.mark.parametrize("name", EXPOSED)
def test_what_sums_would_give_away_is_refused(name: str) -> None:
    make, options, reason = EXPOSED[name]
    with pytest.raises(SettingsError, match=reason) as error:
        Run(make(), 1, **{"exposed": "refuse", **options})
    text = str(error.value)
    assert "\n" not in text
    assert "exposed = 'accept'" in text
    Run(make(), 1, **{**options, "exposed": "accept"})


def test_rare_entries_are_left_out_where_that_is_the_rule() -> None:
    """The run is that of data without them; the split's own P* has them left out."""
    whole = _rare()
    without = Split(whole.X, whole.y, whole.parts, "hinge", 1e-2)
    assert (whole.X != without.X).sum() == 2
    one = Run(whole, 8, exposed="leave-out")
    other = Run(without, 8)
    assert np.abs(one.model - other.model).max() < 1e-9
    other.check()
