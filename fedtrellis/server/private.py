"""Differential privacy of a run: how much noise, to what, and what ε that comes to.

The unit is a client with all its data. ``aggregation="private"``: the server, which is
trusted, clips each client's answer, adds noise to the mean and shows nothing else. With
``privacy="local"`` (:mod:`fedtrellis.server.local_privacy`) every client does so before
it answers. ε is an accountant's, of what was released.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO
from math import isfinite
from typing import Any, ClassVar

from fedtrellis.declared import Declared
from fedtrellis.extras import need
from fedtrellis.privacy import (
    Accountant,
    PrivateMean,
    SecretNoise,
    noise_multiplier_for,
)
from fedtrellis.privacy.accountant import Releases
from fedtrellis.server.aggregation import Aggregation, Cohorts, Points
from fedtrellis.settings import AUTO, SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

__all__ = ["Budget", "Private"]


class Budget(Declared):
    """How much noise, and what ε it comes to.

    Attributes
    ----------
    settled_noise_multiplier : float
        z of the run; from :meth:`open` on.
    """

    #: What stands before the settings' names in a run config.
    prefix: ClassVar[str] = "private."

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
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise SettingsError(
                f"{self.prefix}noise-multiplier = {_said(self.noise_multiplier)} and "
                f"{self.prefix}epsilon = {_said(self.epsilon)}: one of them must be a "
                "number, and the other 'auto'"
            )

    def described(self) -> dict[str, Any]:
        """Its settings' values, by name and symbol; none that is left open."""
        shown = super().described()
        return {name: value for name, value in shown.items() if value != AUTO}

    def open(self, planned: int, clients: int, how: Releases) -> None:
        """Settle how much noise a run takes.

        Parameters
        ----------
        planned : int
            Releases of one client's data, at most.
        clients : int
            n.
        how : dict
            What else the accountant has to know of a release.
        """
        z = self.noise_multiplier
        if z is None:
            z = noise_multiplier_for(self.epsilon, self.delta, planned, **how)
            name = f"{self.prefix}noise-multiplier"
            log(INFO, "%s %.4g, for ε = %g", name, z, self.epsilon)
        self.settled_noise_multiplier = z
        self._accountant = Accountant(z, self.delta, **how)
        if self.delta >= 1.0 / clients:
            log(
                INFO,
                "%sdelta = %g is not below 1/n for the %d clients: it allows that one "
                "of them is shown",
                self.prefix,
                self.delta,
                clients,
            )

    def spent(self, releases: int) -> dict[str, float]:
        """ε of so many releases, as a metric; nothing where no guarantee holds."""
        epsilon = self._accountant.epsilon(releases)
        return {"epsilon": epsilon} if isfinite(epsilon) else {}

    def too_much(self, who: str, clients: int, relative_noise: float = 0.0) -> str:
        """That the noise may be to blame; empty where there is none.

        Parameters
        ----------
        who : str
            The setting that asks for the noise, with its value.
        clients : int
            n.
        relative_noise : float
            The length of a round's noise, in units of the clip, where that is known.
        """
        if not self.settled_noise_multiplier:
            return ""
        said = f"the noise of {who} is too much for {clients} clients"
        if relative_noise:
            said += (
                f": in a round it is {relative_noise:.2g} times as long as any change "
                "counts"
            )
        return (
            f"{said}. More clients or a larger {self.prefix}epsilon make it less; so "
            f"does a {self.prefix}clip, here {self.clip:g}, near what clients change"
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
    sums_only = always = True
    no_resume = (
        "no checkpoint knows what was released after it, so ε would be too small"
    )

    test_seed: int | None = given(
        "for tests: noise that can be drawn again, which voids the guarantee, so that "
        "no ε is said",
        default=None,
        shown=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        need("dp_accounting", f"aggregation = {self.name!r}", "privacy")

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

    def metrics(self) -> dict[str, float]:
        """ε of what was released so far; nothing where no guarantee holds."""
        self._rounds += 1
        if self._mean.releases < self._rounds:
            raise RuntimeError(
                f"a round's model was made without the noise of aggregation = "
                f"{self.name!r}: aggregate has to use self.average or self.mean_of"
            )
        if self._cohorts.participation < 1.0 and self._draws < self._rounds:
            raise RuntimeError(
                f"aggregation = {self.name!r} relies on secret coins, and sample does "
                "not ask for them: it has to use super().sample"
            )
        if self.test_seed is not None:
            return {}
        return self.spent(self._mean.releases)

    def warning(self) -> str:
        """What ε is about."""
        if self.noise_multiplier == 0.0 or self.test_seed is not None:
            return f"aggregation = {self.name!r}, without noise that is secret: no ε"
        return (
            f"aggregation = {self.name!r}: ε is about the models, for a client's whole "
            "data; metrics and counts in this record have no noise"
        )

    def blame(self) -> str:
        """The noise, where there is some."""
        n, times = len(self._cohorts.clients), self._mean.relative_noise
        return self.too_much(f"aggregation = {self.name!r}", n, times)


def _said(value: float | None) -> str:
    return "'auto'" if value is None else f"{value:g}"
