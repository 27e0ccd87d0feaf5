"""FedGiA: time to its stop rule, its client's step against NumPy, sparse data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import fedgia_sparse, fedgia_step, fedgia_stop
from .report import Comparison

__all__ = ["FULL", "QUICK", "Cases", "compare"]


@dataclass(frozen=True)
class Cases:
    """What each of the three comparisons measures."""

    stop: tuple[fedgia_stop.Case, ...]
    step: tuple[fedgia_step.Case, ...]
    sparse: fedgia_sparse.Case


QUICK = Cases(fedgia_stop.QUICK, fedgia_step.QUICK, fedgia_sparse.QUICK)
FULL = Cases(fedgia_stop.FULL, fedgia_step.FULL, fedgia_sparse.FULL)


def compare(cases: Cases) -> Iterator[Comparison]:
    """The three comparisons, each when it has been made."""
    yield fedgia_stop.compare(cases.stop)
    yield fedgia_step.compare(cases.step)
    yield fedgia_sparse.compare(cases.sparse)
