"""Differential privacy of a run: who adds noise, to what, and what ε that comes to.

The unit is a client with all its data. With ``privacy="central"`` the server, which is
trusted, clips each client's answer, adds noise to the mean and shows nothing else; with
``"local"`` every client does so before it answers. ε is an accountant's, of what was
released; a method that cannot promise one refuses the setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from logging import INFO
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

from fedtrellis.extras import need
from fedtrellis.privacy import (
    Accountant,
    PrivateMean,
    SecretNoise,
    noise_multiplier_for,
)
from fedtrellis.privacy.accountant import Mechanism, Releases
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.guarded import GuardedMethod
from fedtrellis.server.robust import Average
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.flower_internals import log
from fedtrellis.wire.method_client import speaks_for

__all__ = ["CENTRAL", "LOCAL", "PRIVACIES", "PrivateMethod"]

Privacy = Literal["none", "central", "local"]
PRIVACIES: tuple[Privacy, ...] = get_args(Privacy)
#: What a method can promise all of whose models are made of ``average``'s results.
CENTRAL: tuple[str, ...] = ("none", "central")
#: What one can whose clients add the noise to all that they send.
LOCAL: tuple[str, ...] = ("none", "local")
_ON = PRIVACIES[1:]

# What a subclass may say anew only together with ``privacies``: a promise of ε is
# about them.
_PROMISED = (
    "aggregate",
    "average",
    "mean_of",
    "mean_change",
    "check",
    "instruction",
    "client_state",
    "sample",
    "run_round",
)


class PrivateMethod(GuardedMethod):
    """The settings of differential privacy, and what methods make of them."""

    #: What ``privacy`` the method can promise. ``"central"``: all that leaves the
    #: server is made of :meth:`average`'s results. ``"local"``: clients add noise.
    privacies: ClassVar[tuple[str, ...]] = ("none",)
    #: What clients release with ``"local"``: "gaussian" noise on a vector, or vertices
    #: drawn by the "exponential" mechanism too.
    private_mechanism: ClassVar[Mechanism] = "gaussian"

    privacy: Privacy = setting(
        "none",
        "differential privacy of every client's whole data: central, noise by a "
        "trusted server; or local, noise by each client",
        choices=Privacy,
        shown=False,
    )
    privacy_clip: float = setting(
        0.1,
        "the length that what a client answers is clipped to",
        note="of the size of what clients change or smaller: the noise grows with it",
        symbol="C",
        above=0.0,
        shown=False,
        only={"privacy": _ON},
    )
    privacy_noise_multiplier: float = setting(
        None,
        "standard deviation of the noise, in units of how far one client can move "
        "what it is added to; 0: clip only, without a guarantee; auto: what "
        "privacy-epsilon needs",
        symbol="z",
        minimum=0.0,
        shown=False,
        only={"privacy": _ON},
    )
    privacy_epsilon: float = setting(
        None,
        "ε that all planned rounds together may cost; auto: what "
        "privacy-noise-multiplier comes to",
        symbol="ε",
        above=0.0,
        shown=False,
        only={"privacy": _ON},
    )
    privacy_delta: float = setting(
        1e-5,
        "the probability that ε does not hold; well below 1/n",
        symbol="δ",
        above=0.0,
        below=1.0,
        shown=False,
        only={"privacy": _ON},
    )
    privacy_test_seed: int | None = given(
        "for tests: noise that can be drawn again, which voids the guarantee, so that "
        "no ε is said",
        default=None,
        shown=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.privacy == "none":
            return
        kind = type(self)
        if self.privacy not in self.privacies:
            raise SettingsError(
                f"privacy = {self.privacy!r} does not apply to {self.described_name}; "
                f"allowed: {', '.join(self.privacies)}"
            )
        for hook in _PROMISED:
            if hasattr(kind, hook) and not speaks_for(kind, "privacies", hook):
                raise SettingsError(
                    f"privacy = {self.privacy!r} does not apply to "
                    f"{self.described_name}, which has another {hook} than the class "
                    "that promises it; say privacies anew, or leave privacy at 'none'"
                )
        self._refuse_beside()
        need("dp_accounting", f"privacy = {self.privacy!r}", "privacy")

    def _refuse_beside(self) -> None:
        """Refuse what would leave no guarantee."""
        said = f"privacy = {self.privacy!r}"
        if (self.privacy_noise_multiplier is None) == (self.privacy_epsilon is None):
            raise SettingsError(
                f"{said} needs one of privacy-noise-multiplier = "
                f"{_said(self.privacy_noise_multiplier)} and privacy-epsilon = "
                f"{_said(self.privacy_epsilon)}: a number there, and 'auto' for the "
                "other"
            )
        if self.robust != "none":
            raise SettingsError(
                f"robust = {self.robust!r} does not apply beside {said}, whose noise "
                "is for a mean; allowed: none"
            )
        if self.client_weights != "equal":
            raise SettingsError(
                f"client_weights = {self.client_weights!r} does not apply beside "
                f"{said}, whose noise is for equal ones; allowed: equal"
            )
        if getattr(self, "resume", None) is not None:
            raise SettingsError(
                f"resume does not apply beside {said}: no checkpoint knows what was "
                "released after it, so ε would be too small"
            )
        every: int | None = getattr(self, "client_evaluate_every", None)
        if self.privacy == "local" and every:
            raise SettingsError(
                f"client-evaluate-every = {every} does not apply beside {said}: "
                "evaluations have no noise; allowed: 0"
            )

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs, privacy among them."""
        if self.privacy == "none":
            return super().settings()
        own: dict[str, Any] = {"privacy": self.privacy}
        own["privacy clip C"] = self.privacy_clip
        if self.privacy_epsilon is None:
            own["privacy noise multiplier z"] = self.privacy_noise_multiplier
        else:
            own["privacy ε"] = self.privacy_epsilon
        return {**super().settings(), **own, "privacy δ": self.privacy_delta}

    def warnings(self) -> list[str]:
        """What a reader of a private run's record must not overlook."""
        if self.privacy == "none":
            return super().warnings()
        said = (
            f"privacy = {self.privacy!r}: ε is about the models, for a client's whole "
            "data; metrics and counts in this record have no noise"
        )
        if self.privacy_noise_multiplier == 0.0 or self.privacy_test_seed is not None:
            said = f"privacy = {self.privacy!r}, without noise that is secret: no ε"
        return [*super().warnings(), said]

    # ----------------------------------------------------------------------- the run

    def meet(
        self,
        conversation: Conversation,
        count: int,
        timeout: float,
        resume: Path | None,
    ) -> None:
        """As without privacy; then settle how much noise it takes."""
        super().meet(conversation, count, timeout, resume)
        if self.privacy == "none":
            return
        for name in ("_noise", "_how", "_private_mean"):
            self.__dict__.pop(name, None)
        self._asked: dict[str, int] = {}
        self._private_rounds = 0
        self._cohort: tuple[int, list[str]] | None = None
        z = self.privacy_noise_multiplier
        if z is None:
            z = noise_multiplier_for(
                self.privacy_epsilon,
                self.privacy_delta,
                self.releases_of(self.num_rounds),
                **self._how,
            )
            epsilon = self.privacy_epsilon
            log(INFO, "privacy-noise-multiplier %.4g, for ε = %g", z, epsilon)
        self.settled_noise_multiplier = z
        self._accountant = Accountant(z, self.privacy_delta, **self._how)
        if self.privacy_delta >= 1.0 / self.num_clients:
            log(
                INFO,
                "privacy-delta = %g is not below 1/n for the %d clients: it allows "
                "that one of them is shown",
                self.privacy_delta,
                self.num_clients,
            )

    def releases_of(self, rounds: int) -> int:
        """Noisy releases that so many rounds make of one client's data, at most."""
        return rounds

    @cached_property
    def _noise(self) -> SecretNoise:
        return SecretNoise(self.privacy_test_seed)

    @cached_property
    def _how(self) -> Releases:
        """What the accountant has to know of the cohorts."""
        whole = self.expected_participation == 1.0
        if self.privacy == "local":  # the server knows whom it asks
            return {"mechanism": self.private_mechanism}
        if whole:
            return {}
        if self.sampling == "fixed":
            count = self._fixed_count()
            return {"sampling": "fixed", "cohort": count, "clients": self.num_clients}
        return {"sampling": "bernoulli", "participation": self.participation}

    @cached_property
    def _private_mean(self) -> PrivateMean:
        weight = self.expected_participation * self.num_clients
        return PrivateMean(
            self.privacy_clip, self.settled_noise_multiplier, weight, self._noise
        )

    @property
    def average(self) -> Average:
        """The rule that answers are averaged by; with noise, if the server adds it."""
        if self.privacy == "central":
            # is called like one
            return cast(Average, self._private_mean)
        return super().average

    @property
    def private_cohort(self) -> bool:
        """Whether a round without answers is a release too, of noise alone."""
        return self.privacy == "central"

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round, by coins that are secret where ε relies on that."""
        if self.privacy != "central" or self.participation == 1.0:
            return super().sample(server_round)
        if self._cohort is None or self._cohort[0] != server_round:
            clients, coins = self.clients, self._noise.uniform((self.num_clients,))
            if self.sampling == "fixed":
                chosen = sorted(coins.argsort()[: self._fixed_count()].tolist())
            else:
                chosen = (coins < self.participation).nonzero()[0].tolist()
            self._cohort = server_round, [clients[i] for i in chosen]
        return self._cohort[1]

    def private_entries(self) -> dict[str, Any]:
        """What clients are told that add the noise themselves."""
        if self.privacy != "local":
            return {}
        return {
            "privacy-clip": self.privacy_clip,
            "privacy-noise-multiplier": self.settled_noise_multiplier,
        }

    def note_asked(self, clients: Iterable[str]) -> None:
        """Remember whom a round asks: each may have answered, whatever was lost."""
        if self.privacy == "local":
            for name in clients:
                self._asked[name] = self._asked.get(name, 0) + 1

    @property
    def descends(self) -> bool:
        """With noise too a run has to come to something: it has cost its ε."""
        return self.privacy != "none" or super().descends

    def blame(self) -> str:
        """The noise, where there is some."""
        if self.privacy == "none" or not self.settled_noise_multiplier:
            return super().blame()
        said = f"the noise of privacy = {self.privacy!r} is too much for "
        said += f"{self.num_clients} clients"
        if self.privacy == "central":
            times = self._private_mean.relative_noise
            said += f": in a round it is {times:.2g} times as long as any change counts"
        return (
            f"{said}. More clients or a larger privacy-epsilon make it less; so does a "
            f"privacy-clip, here {self.privacy_clip:g}, near what clients change"
        )

    def privacy_metrics(self) -> dict[str, float]:
        """ε of what was released so far; nothing where no guarantee holds."""
        if self.privacy == "none" or self.privacy_test_seed is not None:
            return {}
        if self.privacy == "central":
            self._private_rounds += 1
            releases = self._private_mean.releases
            if releases < self._private_rounds:
                raise RuntimeError(
                    f"{self.described_name} averaged without the noise of "
                    "privacy = 'central'"
                )
        else:
            releases = self.releases_of(max(self._asked.values(), default=0))
        epsilon = self._accountant.epsilon(releases)
        return {"epsilon": epsilon} if isfinite(epsilon) else {}


def _said(value: float | None) -> str:
    return "'auto'" if value is None else f"{value:g}"
