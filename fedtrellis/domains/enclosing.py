"""The smallest ball of another kind around a domain: D_i ⊇ D for one client.

A client short of compute may work on an ℓ2 ball around D, whose oracle is a division;
one short of bandwidth on an ℓ1 or nuclear-norm ball, whose atoms are small (FedFW,
arXiv 2408.10090, §4.3). As long as one client has D itself the intersection is D.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from fedtrellis.domains import Domain, L1Ball, L2Ball, LInfBall, NuclearNormBall
from fedtrellis.domains.base import Norm
from fedtrellis.settings import SettingsError, check_choice

__all__ = ["ENCLOSING", "enclosing_ball"]

# A ball of radius r encloses what has no larger norm of its kind than r.
_BALLS: dict[str, tuple[Norm, Callable[[float], Domain]]] = {
    L1Ball.name: ("l1", L1Ball),
    L2Ball.name: ("l2", L2Ball),
    LInfBall.name: ("linf", LInfBall),
    NuclearNormBall.name: ("nuclear", NuclearNormBall),
}
#: Balls that can be put around a domain.
ENCLOSING = tuple(_BALLS)


def enclosing_ball(name: str, domain: Domain, shape: tuple[int, ...]) -> Domain:
    """The smallest ball of a kind of :data:`ENCLOSING` that contains a domain.

    SettingsError if the kind is not known, or not for this domain and shape of points;
    ValueError if the domain has no points of this shape.
    """
    check_choice("outer-domain", name, ENCLOSING)
    norm, ball = _BALLS[name]
    if norm == "nuclear" and len(shape) != 2:
        raise SettingsError(
            f"outer-domain = {name!r} is for matrices, the model has shape {shape}"
        )
    radius = domain.largest_norm(norm, shape)
    if radius is None or radius == inf:
        raise SettingsError(
            f"outer-domain = {name!r} is not available around {domain!r}; "
            f"allowed: another of {', '.join(ENCLOSING)}"
        )
    return ball(radius)
