"""Corrective steps: a client's iterate in a small form, corrected many times a round.

Frank-Wolfe's iterate is a mean of what its oracle returned. A corrective step does not
only add to that mean: it moves weight away from what turned out to be wrong. The form
that the iterate has for it, and that travels, is the set's own
(:attr:`fedtrellis.domains.Domain.form`).
"""

from fedtrellis.corrective.iterate import Form, Iterate
from fedtrellis.corrective.problem import LocalProblem
from fedtrellis.corrective.projected import Entries

__all__ = ["Entries", "Form", "Iterate", "LocalProblem"]
