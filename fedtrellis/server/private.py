"""Differential privacy of a run: how much noise, to what, and what ε that comes to.

The unit is a client with all its data. With ``privacy="local"`` every client clips and
adds noise before it answers (:class:`~fedtrellis.privacy.LocalNoise`), so that nobody
has to be trusted. ε is an accountant's, of what was released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO
from math import isfinite
from typing import Any, ClassVar

from fedtrellis.extras import need
from fedtrellis.privacy import (
    Accountant,
    Mechanism,
    PrivateMean,
    Releases,
    SecretNoise,
    noise_multiplier_for,
)
from fedtrellis.server.aggregation import Aggregation, Cohorts, Points
from fedtrellis.settings import AUTO, Declared, SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

__all__ = ["Budget", "LocalPrivacy", "Private"]


class Budget(Declared):
    """How much noise, and what ε it comes to.

    Attributes
    ----------
    settled_noise_multiplier : float
        z of the run; from :meth:`open` on.
    """

    #: The setting that asks for it, with its value.
    wanted: ClassVar[str] = ""
    #: What stands before the settings' names in a run config.
    prefix: ClassVar[str] = "private."
    #: Why no run with it goes on from a checkpoint.
    no_resume: ClassVar[str] = (
        "no checkpoint knows what was released after it, so ε would be too small"
    )

    clip: float = setting(
        0.1,
        "the length that what a client answers is clipped to",
        note="of the size of what clients change or smaller: the noise grows with it",
        symbol="C",
        above=0.0,
    )
    noise_multiplier: float = setting(
        None,
        "standard deviation of the noise, in units of how far one client can move "
        "what it is added to; 0: clip only, without a guarantee; auto: what epsilon "
        "needs",
        symbol="z",
        minimum=0.0,
    )
    epsilon: float = setting(
        None,
        "ε that all planned rounds together may cost; auto: what noise-multiplier "
        "comes to",
        symbol="ε",
        above=0.0,
    )
    delta: float = setting(
        1e-5,
        "the probability that ε does not hold; well below 1/n",
        symbol="δ",
        above=0.0,
        below=1.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.noise_multiplier, self.epsilon
        if values.count(None) != 1:
            shown = ["'auto'" if value is None else f"{value:g}" for value in values]
            raise SettingsError(
                f"{self.prefix}noise-multiplier = {shown[0]} and {self.prefix}epsilon "
                f"= {shown[1]}: one of them must be a number, and the other 'auto'"
            )
        need("dp_accounting", self.wanted, "privacy")

    def _described(self) -> dict[str, Any]:
        """Its settings' values, by name and symbol; none that is left open."""
        shown = super()._described()
        return {name: value for name, value in shown.items() if value != AUTO}

    def open(self, planned: int, clients: int, how: Releases) -> None:
        """Settle the noise of a run of n clients with so many releases each, at most.

        ``how`` is what else the accountant has to know of a release.
        """
        z = self.noise_multiplier
        if z is None:
            z = noise_multiplier_for(self.epsilon, self.delta, planned, **how)
            name = f"{self.prefix}noise-multiplier"
            log(INFO, "%s %.4g, for ε = %g", name, z, self.epsilon)
        self.settled_noise_multiplier, self._clients = z, clients
        self._accountant = Accountant(z, self.delta, **how)
        if self.delta >= 1.0 / clients:
            stated = f"{self.prefix}delta = {self.delta:g} is not below 1/n"
            why = "it allows that one of them is shown"
            log(INFO, "%s for the %d clients: %s", stated, clients, why)

    def spent(self, releases: int) -> dict[str, float]:
        """ε of so many releases, as a metric; nothing where no guarantee holds."""
        epsilon = self._accountant.epsilon(releases)
        return {"epsilon": epsilon} if isfinite(epsilon) else {}

    def warning(self) -> str:
        """What ε is about."""
        if self.noise_multiplier == 0.0:
            return f"{self.wanted}, without noise that is secret: no ε"
        return (
            f"{self.wanted}: ε is about the models, for a client's whole data; metrics "
            "and counts in this record have no noise"
        )

    def why_failed(self) -> str:
        """The noise, where there is some, for a run that came to nothing."""
        if not self.settled_noise_multiplier:
            return ""
        return (
            f"the noise of {self.wanted} is too much for {self._clients} clients. More "
            f"of them or a larger {self.prefix}epsilon make it less; so does a "
            f"{self.prefix}clip, here {self.clip:g}, near what clients change"
        )


class Private(Budget, Aggregation):
    """The noisy mean of clipped changes: central differential privacy.

    The server, which is trusted, adds the noise; all that leaves it is made of these
    means (:class:`~fedtrellis.privacy.PrivateMean`). Cohorts are drawn by coins that
    are secret, where ε relies on that. ε of what was released is a metric of every
    round.

    Raises
    ------
    SettingsError
        Not exactly one of ``noise_multiplier`` and ``epsilon`` is given, or the extra
        ``privacy`` is not installed.

    Examples
    --------
    >>> from fedtrellis import Private
    >>> from fedtrellis.strategies import FedAvgGD
    >>> strategy = FedAvgGD(aggregation=Private(epsilon=8.0, clip=0.03))
    >>> strategy.aggregator.name
    'private'
    """

    name = "private"
    about = "clipped changes and noise by a trusted server, with an ε"
    seen_by = "server"

    test_seed: int | None = given(
        "for tests: noise that can be drawn again, which voids the guarantee, so that "
        "no ε is shown",
        default=None,
        shown=False,
    )

    def begin(self, cohorts: Cohorts) -> None:
        """Settle the noise, and forget an earlier run."""
        super().begin(cohorts)
        self._cohorts, n = cohorts, len(cohorts.clients)
        how: Releases = {}
        if cohorts.expected < 1.0:
            how = {"sampling": "bernoulli", "participation": cohorts.participation}
            if cohorts.fixed is not None:
                how = {"sampling": "fixed", "cohort": cohorts.fixed, "clients": n}
        self.open(cohorts.rounds, n, how)
        self._noise = SecretNoise(self.test_seed)
        z, weight = self.settled_noise_multiplier, cohorts.expected * n
        self._mean = PrivateMean(self.clip, z, weight, self._noise)
        self._drawn: tuple[int, list[str]] = 0, []
        self._rounds = self._draws = 0

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """The clients of a round, by coins that nobody can draw again."""
        cohorts = self._cohorts
        if cohorts.participation == 1.0:
            return list(drawn)
        if self._drawn[0] != server_round:
            clients = cohorts.clients
            coins = self._noise.uniform((len(clients),))
            if cohorts.fixed is not None:
                chosen = sorted(coins.argsort()[: cohorts.fixed].tolist())
            else:
                chosen = (coins < cohorts.participation).nonzero()[0].tolist()
            self._drawn = server_round, [clients[i] for i in chosen]
            self._draws += 1
        return self._drawn[1]

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """The noisy mean of what the points change in the centre."""
        return self._mean(points, centre)

    def lost(
        self,
        server_round: int,
        cohort: Sequence[str],
        answers: Mapping[str, Any],
        least: int,
    ) -> str:
        """Nothing is lost: a round without answers has noise for a result."""
        return ""

    def metrics(self) -> dict[str, float]:
        """ε of what was released so far; nothing where no guarantee holds."""
        self._rounds += 1
        if self._mean.releases < self._rounds:
            raise RuntimeError(
                f"a round's model was made without the noise of {self.wanted}: "
                "aggregate has to use self.average or self.mean_of"
            )
        if self._cohorts.participation < 1.0 and self._draws < self._rounds:
            raise RuntimeError(
                f"{self.wanted} relies on secret coins, and sample does not ask for "
                "them: it has to use super().sample"
            )
        if self.test_seed is not None:
            return {}
        return self.spent(self._mean.releases)

    def warning(self) -> str:
        """What ε is about, or that there is none."""
        if self.test_seed is not None:
            return f"{self.wanted}, without noise that is secret: no ε"
        return super().warning()


class LocalPrivacy(Budget):
    """Noise by each client: what it is sent, and the ε of the one asked most."""

    wanted = "privacy = 'local'"
    prefix = "privacy-"

    mechanism: Mechanism = given(
        "of a release: noise on a vector, or vertices drawn at random, too"
    )
    each: int = given("releases of a client that a round makes")

    def begin(self, cohorts: Cohorts) -> None:
        """Settle the noise, and forget an earlier run."""
        self._asked: dict[str, int] = {}
        # no coins: the server knows whom it asks
        how: Releases = {"mechanism": self.mechanism}
        self.open(self.each * cohorts.rounds, len(cohorts.clients), how)

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent.

        Each of them may answer, and so it counts, whatever gets lost.
        """
        for name in cohort:
            self._asked[name] = self._asked.get(name, 0) + 1
        return {
            "privacy-clip": self.clip,
            "privacy-noise-multiplier": self.settled_noise_multiplier,
        }

    def metrics(self) -> dict[str, float]:
        """ε so far; nothing where no guarantee holds."""
        return self.spent(self.each * max(self._asked.values(), default=0))
