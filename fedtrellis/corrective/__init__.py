"""Corrective steps: a client's iterate in a small form, corrected many times a round.

Frank-Wolfe's iterate is a mean of what its oracle returned. A corrective step does not
only add to that mean: it moves weight away from what turned out to be wrong. The form
that the iterate has for it, and that travels, is the set's own
(:attr:`fedtrellis.domains.Domain.form`).
"""

from fedtrellis.corrective.entries import Entries
from fedtrellis.corrective.iterate import (
    CORRECTIONS,
    Correction,
    Form,
    Iterate,
    start_at,
    unpack,
)
from fedtrellis.corrective.low_rank import LowRank
from fedtrellis.corrective.parts import Parts
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.corrective.vertices import Vertices

__all__ = [
    "CORRECTIONS",
    "Correction",
    "Entries",
    "Form",
    "Iterate",
    "LocalProblem",
    "LowRank",
    "Parts",
    "Vertices",
    "start_at",
    "unpack",
]
