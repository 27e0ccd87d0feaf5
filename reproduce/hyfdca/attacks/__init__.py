"""Attacks on what a server of HyFDCA sees, as functions of plain numbers.

A server sees vectors: sums V_t = (1/λN) Σ_i a_{t,i} x_i over all clients, or a single
client's v_k where nothing hides it, and the weights w_t that it sent. It looks for rows
x_i, or for the part of one at some client's features. Nothing here knows a strategy or
a client, and none of the functions is told the rows: only :func:`found_in` is, which
compares what an attack claims with the truth.
"""

from .bends import rows_at_bends, rows_at_jumps
from .differences import lonely_entries, rows_in_differences
from .independence import rows_by_independence
from .kinks import rows_at_kinks
from .lattices import reduced, rows_in_lattice
from .scores import rows_from_scores
from .spans import rows_in_spans
from .thresholds import Isolated, Query, ask, rows_at_thresholds
from .truth import found_in

__all__ = [
    "Isolated",
    "Query",
    "ask",
    "found_in",
    "lonely_entries",
    "reduced",
    "rows_at_bends",
    "rows_at_jumps",
    "rows_at_kinks",
    "rows_at_thresholds",
    "rows_by_independence",
    "rows_from_scores",
    "rows_in_differences",
    "rows_in_lattice",
    "rows_in_spans",
]
