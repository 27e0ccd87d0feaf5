"""A set in a line of text, by which a client and the server find out that they differ.

Two machines may compute a radius with other last digits, so numbers are compared as
numbers.
"""

from __future__ import annotations

import math
import re

from fedtrellis.domains.base import Domain

__all__ = ["alike", "describe"]

# what a box of many bounds prints beyond that is not compared
_LONGEST = 500
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_RELATIVE = 1e-9


def describe(domain: Domain) -> str:
    """Return a set's ``repr`` in a line; empty where its class has none of its own."""
    if type(domain).__repr__ is object.__repr__:
        return ""
    return " ".join(repr(domain).split())[:_LONGEST]


def alike(one: str, other: str) -> bool:
    """Say whether two descriptions are of one set, numbers equal to 10⁻⁹ of them."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=_RELATIVE, abs_tol=0.0)
        for a, b in pairs
    )
