"""Whether a run that has come to its end has come to anything."""

from __future__ import annotations

import dataclasses
from logging import WARNING
from math import isfinite

import numpy as np

from fedtrellis.server.callbacks import RoundRecord
from fedtrellis.server.method import Method
from fedtrellis.wire.flower_internals import log

__all__ = ["check_ended", "unanswered"]

# No method's loss rises by this factor and is on its way: not one of them is so random.
_BEYOND = 1e6


def unanswered(rounds: str, record: RoundRecord) -> RuntimeError:
    """The error of rounds in which nobody had a usable answer, the last of them."""
    who, why = (record.rejected or [("?", "nobody was asked")])[-1]
    return RuntimeError(f"no usable answer in {rounds}; the last: client {who}: {why}")


def check_ended(strategy: Method) -> None:
    """Raise RuntimeError for a run that is not to be called completed.

    No client was used in any round; or the run diverged.

    The loss that ``evaluate_fn`` measured decides, where it did before round 1 and in
    the end: it must be finite, for no method a million times what it was, and where
    the method descends, as with noise for privacy, not above its start, but for
    rounding. Any other that ends above its start is warned of. Where nobody measured a
    loss the method's own measure decides.
    """
    if not any(record.used for record in strategy.history):
        # however few the rounds were: the model is the one they began with
        record = strategy.history[-1]
        raise unanswered(f"all of the {record.round} rounds", record)
    if why := _diverged(strategy):
        for part in strategy._parts:
            if cause := part.why_failed():
                raise RuntimeError(f"the run came to nothing: {why}; {cause}")
        raise RuntimeError(f"the run diverged: {why}{_steps(strategy)}")


def _steps(strategy: Method) -> str:
    """The setting of the length of the method's steps; empty if it has none."""
    sizes = {
        field.name: getattr(strategy, field.name)
        for field in dataclasses.fields(strategy)
        if field.name in ("step_size", "local_step_size")
    }
    given = [f"{name} = {size:g}" for name, size in sizes.items() if size]
    return f"; {given[0]} may be too long" if given else ""


def _diverged(strategy: Method) -> str:
    """Why it did; empty if it did not."""
    history = strategy.history
    measured = [r.metrics["loss"] for r in history if "loss" in r.metrics]
    if measured and not isfinite(measured[-1]):
        return f"its loss ended at {measured[-1]}"
    start = history[0].evaluation.get("loss") if history else None
    if start is None or history[0].round != 0 or not isfinite(start):
        return strategy._diverged()
    end, dtype = measured[-1], strategy.broadcast.layout.dtype
    # bfloat16 has 8 bits
    bits = 2.0**-8 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
    rounding = np.sqrt(bits) * abs(start)
    if not end <= start + _BEYOND * max(1.0, abs(start)):
        return f"its loss ended at {end:.3g} and was {start:.3g} before round 1"
    if not end <= start + rounding:
        above = f"its loss ended at {end:.3g}, above the {start:.3g} before round 1"
        if strategy._descends:
            return above
        log(WARNING, "%s%s", above, _steps(strategy))
    return ""
