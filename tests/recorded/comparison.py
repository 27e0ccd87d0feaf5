"""What differs between a recorded result and today's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from math import inf, isfinite
from typing import Any, NamedTuple

__all__ = ["ACCEPTED", "TIES", "Accepted", "Comparison", "compare", "reason_to_accept"]

#: By how much bytes may differ where ciphertexts are among them (SEAL compresses them,
#: and their random numbers are not ours to fix), or where another BLAS leaves other
#: last bits: what travels are the entries that changed.
BYTES = 0.01
#: On another BLAS a rounding error decides in these which vertex an oracle returns, or
#: how many entries change.
TIES = (
    "fedfw/digits/in-spectral-norm-ball",
    "fedfw/digits/outer-linf-ball",
    "projected-fedavg/quadratic-assignment/as-it-is",
    "feddr/quadratic-assignment/as-it-is",
)


class Accepted(NamedTuple):
    """Why some runs are no longer as they were.

    Attributes
    ----------
    cases : str
        Pattern of the names, as in a shell.
    parts : tuple of str
        Entries of a result that may differ.
    reason : str
    now : str
        What today's entry has in it, where that is said.
    """

    cases: str
    parts: tuple[str, ...]
    reason: str
    now: str = ""


def _reworded(number: int, now: str, reason: str) -> Accepted:
    return Accepted(f"*/wrong-{number}", ("error",), reason, now)


_SETS = "there are more sets to choose from"
_AUTO = "what a method or its task chooses is 'auto', no longer an empty text or -1"
_SHORTER = "a key does not repeat what its owner's prefix says"
_VARIANTS = "there is one variant more, and it is the default"
_RUN = ("model", "metrics", "down")
_FIXED = "with sampling = fixed the schedule's p is ⌈p·n⌉/n, the part that answers"
_AVERAGED = "the default η_g is √n with n the clients whose answers were averaged"
_EXAMPLES = (
    "num-examples is that of the nodes' rows, not their number: a weight travels"
)
_GROUPS = "the squares of a group's entries are added up in another order"
_PHASE = "an answer in a round of several waves names its phase, 18 to 27 bytes each"
_FRANK_WOLFE = ("fedfw", "naive-frank-wolfe")
_SET = "a client's introduction names its set: 32 to 60 bytes, twice that of a product"
_OUTSIDE = "where clients' sets are larger, a round says whether the model is outside D"
_ALL = (*_RUN, "up", "sampled", "used", "trips", "rejected")
_DECLARED = "a client declares its examples before round 1: 20 or 21 bytes"
_DIVERGES = "local steps that carry an answer 10⁹ times as far as the model are refused"
_ALLOWED = "outer-domain alone allows that set to nodes whose own config has it"
_GAP = "duality-gap is the lowest P less the highest D so far, not that of one round"
_CODE = "a client's refusal is its sentence alone, as the server goes by a code"
_RARE = "columns with fewer than three non-zero entries are left out"
#: What was changed on purpose since the table was recorded. That a setting has its
#: owner's prefix now is not in the list: :func:`compare` leaves it out.
ACCEPTED: list[Accepted] = [
    _reworded(10, "k-support-ball, l1-ball, l2-ball, linf-ball, non-negative", _SETS),
    _reworded(11, "group-l1-ball, non-negative-l1-ball, capped-simplex", _SETS),
    _reworded(12, "group-l1-ball, non-negative-l1-ball, capped-simplex", _SETS),
    _reworded(31, "allowed: augmented, corrective, plain, stochastic, or", _VARIANTS),
    _reworded(32, "allowed: constant, convex, nonconvex, stochastic, or 'auto'", _AUTO),
    _reworded(33, "fedfw.penalty = -0.5 must be at least 0, or 'auto'", _AUTO),
    _reworded(34, "fedfw.penalty = -2.0 must be at least 0, or 'auto'", _AUTO),
    _reworded(35, "fedfw.dual-penalty = -0.5 must be at least 0, or 'auto'", _AUTO),
    _reworded(40, "lmo-noise = inf must be at least 0 and finite", "the range is said"),
    _reworded(60, "first-order-rfl.tolerance = -1.0 must be at least 0", _SHORTER),
    _reworded(69, "fedgia.sigma = -1.0 must be greater than 0, or 'auto'", _AUTO),
    _reworded(71, "fedgia.curvature = -1.0 must be greater than 0, or 'auto'", _AUTO),
    _reworded(76, "= 2.0 must be greater than 0 and below 2", "2 itself is the bound"),
    _reworded(78, "projected-fedavg.batch-size = -1 must be at least 0", _SHORTER),
    _reworded(84, "hyfdca.step = 'bundel' is not known", _SHORTER),
    *(Accepted(f"{method}/lasso/half-fixed", _RUN, _FIXED) for method in _FRANK_WOLFE),
    *(
        Accepted(f"*-order-rfl/kernel-pca/{case}", _RUN, _AVERAGED)
        for case in (
            *("half", "half-fixed", "lossy", "everything-goes-wrong"),
            *("old", "old-resumed"),
        )
    ),
    *(
        Accepted(
            f"hyfdca/*/{step}-chosen", ("error",), _CODE, "client 3: ciphertext was"
        )
        for step in ("practical", "theoretical")
    ),
    Accepted("projected-*/lasso/in-group-l1-ball", ("model", "metrics"), _GROUPS),
    Accepted("*/nodes*", ("metrics", "up"), _EXAMPLES),
    *(Accepted(f"{method}/*", ("up",), _SET) for method in _FRANK_WOLFE),
    Accepted("*/outer-*", ("metrics",), _OUTSIDE, "outside-domain"),
    Accepted("fedfw/digits/wrong-19", ("error", *_ALL), _ALLOWED),
    *(
        Accepted(f"{method}/*", ("up",), _PHASE)
        for method in ("hyfdca", "hyfem", "hybrid-fedavg")
    ),
    *(
        Accepted(f"{method}/*", ("up",), _DECLARED)
        for method in (
            *("projected-fedavg", "feddr", "fedgia", "fedavg-gd", "local-sgd"),
            *("fedprox", "first-order-rfl", "zeroth-order-rfl"),
        )
    ),
    Accepted("hyfdca/*", ("metrics",), _GAP),
    *(
        Accepted(f"{method}/hybrid-*/{data}", _RUN, _RARE)
        for method in ("hyfem", "hybrid-fedavg")
        for data in ("a9a", "news20")
    ),
    *(
        Accepted(f"feddr/{case}", ("model", "metrics", "used", "rejected"), _DIVERGES)
        for case in (
            *("quadratic-assignment/as-it-is", "lasso/as-it-is", "lasso/half-fixed"),
            *("lasso/relaxed", "lasso/lossy"),
        )
    ),
]


@dataclass(frozen=True)
class Comparison:
    """A recorded result beside today's.

    Attributes
    ----------
    parts : dict
        Of the result's entries that differ, what was and what is.
    model : float
        The largest difference of a model's arrays: of norms, first entries and probes,
        over the norm. 0 if all bits are the same, else at least 1e-16.
    """

    parts: dict[str, str]
    model: float


def compare(
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    tolerance: float = 0.0,
    ciphertexts: bool = False,
) -> Comparison:
    """Compare two results of :func:`~tests.recorded.run_case.run_case`.

    Parameters
    ----------
    was, now : mapping
        The one recorded, and today's.
    tolerance : float
        How far apart models and metrics may be, relative to what they were; 0: not at
        all, to the last bit. Bytes may then differ by one per cent.
    ciphertexts : bool
        Whether they may in any case.
    """
    loose = ciphertexts or tolerance > 0.0
    parts: dict[str, str] = {}
    apart = 0.0
    for part in dict.fromkeys((*was, *now)):
        old, new = was.get(part), now.get(part)
        if old == new or (part == "error" and old == _without_owner(new)):
            continue
        if old is None or new is None:
            parts[part] = f"was {old!r}, is {new!r}"
        elif part == "model":
            apart = _model_distance(old, new)
            if apart > tolerance:
                parts[part] = f"differs by {apart:.1e} of its norm"
        elif part == "metrics":
            wrong = [
                f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
                for name in dict.fromkeys((*old, *new))
                if _distance(old.get(name), new.get(name)) > tolerance
            ]
            if wrong:
                parts[part] = "; ".join(wrong)
        elif part in ("up", "down") and loose and len(old) == len(new):
            if any(abs(a - b) > BYTES * a for a, b in zip(old, new, strict=True)):
                parts[part] = f"was {old!r}, is {new!r}"
        else:
            parts[part] = f"was {old!r}, is {new!r}"
    return Comparison(parts, apart)


def reason_to_accept(name: str, part: str, now: object) -> str | None:
    """Why a part of a case's result may be what it is now; None if it may not."""
    return next(
        (
            a.reason
            for a in ACCEPTED
            if fnmatch(name, a.cases) and part in a.parts and a.now in str(now)
        ),
        None,
    )


def _without_owner(error: str | None) -> str | None:
    """An error's text with its first key as it was: without its owner's name."""
    return error and re.sub(r"^(\w+: )[a-z-]+\.([a-z-]+ = )", r"\1\2", error)


def _distance(old: float | None, new: float | None) -> float:
    """|a − b|, relative where the numbers are above 1."""
    if old is None or new is None:
        return inf
    if old == new or (old != old and new != new):
        return 0.0
    if not (isfinite(old) and isfinite(new)):
        return inf
    return abs(old - new) / max(1.0, abs(old))


def _model_distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    if list(old) != list(new):
        return inf
    largest = 0.0
    for name, was in old.items():
        now = new[name]
        if was["sha256"] == now["sha256"]:
            continue
        if was["shape"] != now["shape"]:
            return inf
        largest = max(largest, 1e-16)
        scale = was["norm"] or 1.0
        for key in ("norm", "first", "probes"):
            before, after = was[key], now[key]
            before = before if isinstance(before, list) else [before]
            after = after if isinstance(after, list) else [after]
            for a, b in zip(before, after, strict=True):
                largest = max(largest, abs(a - b) / scale if a == a and b == b else inf)
    return largest
