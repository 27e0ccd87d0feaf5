"""Strategies whose clients answer with points of a set: their base, and a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, Literal

from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import Atom, rounding, unpack_atoms
from fedtrellis.domains.base import alike, describe
from fedtrellis.random import generator
from fedtrellis.schedules import FrankWolfeSchedule, Schedule
from fedtrellis.server.answers import Answer
from fedtrellis.server.rounds import RoundStrategy
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.broadcast import Step
from fedtrellis.wire.flower_internals import log

# Random directions in which a larger set is compared with D.
_DIRECTIONS = 10


class FrankWolfeStrategy(RoundStrategy):
    """Base of strategies that take atoms: D, and whose atoms are taken.

    A client sends before round 1 which set it works on, and an atom outside that set is
    refused: whatever one of n clients sends, its share of x̄ stays in its set.
    """

    space = "domain"
    _bounded = True
    # the steps shrink: halves would soon no longer hold them
    dtypes = ("float64", "float32")

    domain: Domain = given(
        "D, in the shape of the model: an array's own shape if the model has one "
        "array, else the vector of all entries, layer after layer",
        kw_only=False,
    )
    client_domains: Mapping[str, Domain] | Sequence[Domain] = given(
        "larger sets D_i ⊇ D by the clients that have them, or a list of sets of which "
        "any client may have one; the intersection of all clients' sets must be D",
        default=(),
        shown=False,
    )

    def _check_model(self, layout: Layout) -> None:
        """Check that the model has the shape of the domain's points."""
        self.domain.check_shape(layout.point_shape)

    def _settle_domains(self, shape: tuple[int, ...]) -> None:
        """Find out which set each client has, of what was declared and what it sent."""
        named: Mapping[str, Domain] = {}
        anybody: Sequence[Domain] = ()
        if isinstance(self.client_domains, Mapping):
            named = self.client_domains
        else:
            anybody = self.client_domains
        for name in sorted(named.keys() - set(self.clients)):
            raise SettingsError(
                f"client_domains has client {name!r}; the clients are "
                f"{', '.join(self.clients[:20])}"
            )
        for domain in (*named.values(), *anybody):
            self._check_encloses(domain, shape)
        # D_i, the client's own set, or D
        self._domains = {
            name: self._domain_from(name, named.get(name), anybody)
            for name in self.clients
        }
        self._may_leave = any(d is not self.domain for d in self._domains.values())
        self._was_outside = False

    def _domain_from(
        self, name: str, its_own: Domain | None, anybody: Sequence[Domain]
    ) -> Domain:
        sent = str(self._client_properties(name).get("domain", ""))
        allowed = [d for d in (its_own, self.domain, *anybody) if d is not None]
        if not sent:  # a client of somebody else's
            return allowed[0]
        for domain in allowed:
            if alike(sent, describe(domain)):
                return domain
        raise SettingsError(
            f"client {name} works on {sent[:500]}, and the strategy on "
            f"{' or '.join(map(repr, allowed))}: make them one set, or declare the "
            f"client's, which must enclose the strategy's, by client_domains (in a run "
            "config outer-domain)"
        )

    def _check_encloses(self, domain: Domain, shape: tuple[int, ...]) -> None:
        domain.check_shape(shape)
        rng = generator(0, "directions")
        for _ in range(_DIRECTIONS):
            g = rng.standard_normal(shape)
            # D ⊆ D_i just if  min over s in D_i of ⟨g, s⟩ ≤ min over D  for all g
            lowest, needed = domain.lmo(g).dot(g), self.domain.lmo(g).dot(g)
            if lowest > needed + 1e-9 * abs(needed):
                raise SettingsError(
                    f"client_domains has {domain!r}, which does not enclose "
                    f"{self.domain!r}"
                )

    def _take_atoms(self, answer: Answer, count: int) -> tuple[Atom, ...]:
        """The atoms of an answer; ValueError if one is missing or outside its set."""
        layout = self.broadcast.layout
        shape, dtype = layout.point_shape, layout.point_dtype
        atoms = unpack_atoms(answer.arrays, shape, dtype)
        if len(atoms) != count:
            raise ValueError(f"the answer has {len(atoms)} atoms instead of {count}")
        domain = self._domains[answer.client]
        if not all(domain.contains_atom(atom, rounding(dtype)) for atom in atoms):
            raise ValueError(f"an atom lies outside {domain!r}")
        return tuple(atoms)

    def _whether_outside(self) -> dict[str, float]:
        """The metric ``outside-domain``, 0 or 1; none where all clients have D."""
        if not self._may_leave:
            return {}
        tolerance = rounding(self.broadcast.layout.point_dtype)
        outside = not self.domain.contains(self._result_point(), tolerance)
        if outside and not self._was_outside:
            log(
                WARNING,
                "the model lies outside %r: some clients' sets are larger, "
                "and they agree in the long run only",
                self.domain,
            )
            self._was_outside = True
        return {"outside-domain": float(outside)}


class NaiveFrankWolfe(FrankWolfeStrategy):
    """Average the atoms of the clients' own gradients; a baseline that fails.

    ::

        client   s_i = argmin over s in D of ⟨∇f_i(x̄), s⟩
        server   x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ over S of s_i

    The mean of the clients' oracles is not the oracle of the mean gradient. On
    min over [−1, 1] of ½(x − 3)² + ½(x + 1)² from 0 the two clients answer 1 and −1 for
    ever, and x̄ stays at 0; the solution is 1.

    Source: arXiv 2408.10090, Appendix A.

    Notes
    -----
    The matching client is ``NaiveFrankWolfeClient(context, objective, domain)``.

    Examples
    --------
    Run as :class:`FedFW` is, with ``NaiveFrankWolfeClient`` on the nodes:

    >>> from fedtrellis.domains import L1Ball
    >>> from fedtrellis.strategies import NaiveFrankWolfe
    >>> NaiveFrankWolfe(L1Ball(1.0)).schedule
    'convex'
    """

    name = "naive-frank-wolfe"
    about = "averaged oracles, a baseline that does not converge"
    audience = RoundStrategy._all_alike
    stateful = False

    schedule: Schedule | Literal["auto"] = setting(
        None,
        "of the step size",
        note="see :class:`~fedtrellis.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=Schedule,
    )
    step_size: float = setting(
        0.01, "of the constant schedule", symbol="η", above=0.0, maximum=1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._needs_planned_rounds = self.schedule == "nonconvex"

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Make the schedule, now that rounds and clients are known."""
        self._settle_domains(layout.point_shape)
        self._schedule = FrankWolfeSchedule(
            self.schedule,
            penalty=0.0,
            participation=self._expected_participation,
            num_rounds=self.planned_rounds,
            step_size=self.step_size,
        )

    def instruction(self, server_round: int, client: str) -> dict[str, Any]:
        """Nothing: the client only needs x̄."""
        return {}

    def check(self, answer: Answer) -> Atom:
        """The atom s_i."""
        (atom,) = self._take_atoms(answer, 1)
        return atom

    def aggregate(self, server_round: int, answers: dict[str, Any]) -> dict[str, float]:
        """Average the atoms."""
        eta = self._schedule.step(server_round)
        # x̄ ← (1 − η_t) x̄ + (η_t / |S|) Σ s_i
        step = Step(1.0 - eta, eta / len(answers), tuple(answers.values()))
        self.broadcast.advance(step)
        return self._whether_outside()
