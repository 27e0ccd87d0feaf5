"""Noise by the clients, ``privacy="local"``: the settings, and the ε of a run.

A client clips its answer and adds noise to it before it sends it
(:class:`~fedtrellis.privacy.LocalNoise`), so that nobody has to be trusted. That is
another choice than how the server aggregates the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from fedtrellis.extras import need
from fedtrellis.privacy.accountant import Mechanism, Releases
from fedtrellis.server.guarded import GuardedMethod
from fedtrellis.server.private import Budget
from fedtrellis.settings import SettingsError, setting

__all__ = ["LocallyPrivateMethod"]

Privacy = Literal["none", "local"]
_LOCAL = {"privacy": ("local",)}


class _LocalBudget(Budget):
    """That of noise by each client."""

    prefix = "privacy-"


class LocallyPrivateMethod(GuardedMethod):
    """The settings of noise by the clients, and what methods make of them."""

    #: What a client releases with ``privacy="local"``: "gaussian" noise on a vector, or
    #: vertices drawn by the "exponential" mechanism too; None: it adds no noise.
    private_mechanism: ClassVar[Mechanism | None] = None

    privacy: Privacy = setting(
        "none",
        "whether clients add noise to all that they send: differential privacy of each "
        "client's whole data, from the server too",
        choices=Privacy,
        shown=False,
        formerly="",
    )
    privacy_clip: float = setting(
        0.1,
        "the length that a client clips what it sends to",
        symbol="C",
        above=0.0,
        shown=False,
        only=_LOCAL,
        formerly="",
    )
    privacy_noise_multiplier: float = setting(
        None,
        "standard deviation of the noise, in units of 2C; 0: clip only, without a "
        "guarantee; auto: what privacy-epsilon needs",
        symbol="z",
        minimum=0.0,
        shown=False,
        only=_LOCAL,
        formerly="",
    )
    privacy_epsilon: float = setting(
        None,
        "ε that all planned rounds together may cost; auto: what "
        "privacy-noise-multiplier comes to",
        symbol="ε",
        above=0.0,
        shown=False,
        only=_LOCAL,
        formerly="",
    )
    privacy_delta: float = setting(
        1e-5,
        "the probability that ε does not hold; well below 1/n",
        symbol="δ",
        above=0.0,
        below=1.0,
        shown=False,
        only=_LOCAL,
        formerly="",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._budget: Budget | None = None
        if self.privacy == "none":
            return
        said = f"privacy = {self.privacy!r}"
        if self.private_mechanism is None:
            raise SettingsError(
                f"{said} does not apply to {self.described_name}; allowed: none"
            )
        self._budget = _LocalBudget(
            clip=self.privacy_clip,
            noise_multiplier=self.privacy_noise_multiplier,
            epsilon=self.privacy_epsilon,
            delta=self.privacy_delta,
        )
        if not self.aggregator.bears_noise:
            allowed = ", ".join(k.name for k in self.aggregations if k.bears_noise)
            raise SettingsError(
                f"aggregation = {self.aggregator.name!r} does not apply beside {said}, "
                f"whose noise is for a mean; allowed: {allowed}"
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
        if every := getattr(self, "client_evaluate_every", 0):
            raise SettingsError(
                f"client-evaluate-every = {every} does not apply beside {said}: "
                "evaluations have no noise; allowed: 0"
            )
        need("dp_accounting", said, "privacy")

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs, privacy among them."""
        if self._budget is None:
            return super().settings()
        own = {f"privacy {name}": v for name, v in self._budget.described().items()}
        return {**super().settings(), "privacy": self.privacy, **own}

    def warnings(self) -> list[str]:
        """What a reader of a private run's record must not overlook."""
        if self._budget is None:
            return super().warnings()
        said = f"privacy = {self.privacy!r}"
        if self.privacy_noise_multiplier == 0.0:
            said += ", without noise that is secret: no ε"
        else:
            said += (
                ": ε is about the models, for a client's whole data; metrics and "
                "counts in this record have no noise"
            )
        return [*super().warnings(), said]

    def begin_aggregation(self) -> None:
        """Settle how much noise it takes, too."""
        super().begin_aggregation()
        self._asked: dict[str, int] = {}
        if self._budget is not None:
            assert self.private_mechanism is not None
            planned = self.releases_of(self.num_rounds)
            # no coins: the server knows whom it asks
            how: Releases = {"mechanism": self.private_mechanism}
            self._budget.open(planned, self.num_clients, how)

    def releases_of(self, rounds: int) -> int:
        """Noisy releases that so many rounds make of one client's data, at most."""
        return rounds

    def private_entries(self) -> dict[str, Any]:
        """What clients are told that add noise."""
        if self._budget is None:
            return {}
        return {
            "privacy-clip": self._budget.clip,
            "privacy-noise-multiplier": self._budget.settled_noise_multiplier,
        }

    def note_asked(self, clients: Iterable[str]) -> None:
        """Remember whom a round asks: each may have answered, whatever was lost."""
        if self._budget is not None:
            for name in clients:
                self._asked[name] = self._asked.get(name, 0) + 1

    def privacy_metrics(self) -> dict[str, float]:
        """ε of the client that was asked most; nothing where no guarantee holds."""
        if self._budget is None:
            return {}
        most = max(self._asked.values(), default=0)
        return self._budget.spent(self.releases_of(most))

    @property
    def descends(self) -> bool:
        """With noise too a run has to come to something: it has cost its ε."""
        return self._budget is not None or super().descends

    def blame(self) -> str:
        """The noise, where there is some."""
        if self._budget is None:
            return super().blame()
        said = self._budget.too_much(f"privacy = {self.privacy!r}", self.num_clients)
        return said or super().blame()
