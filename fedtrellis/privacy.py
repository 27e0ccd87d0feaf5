"""Differential privacy: mechanisms, secret noise, and a library's accountant.

What a run's settings ``privacy``, ``privacy-clip`` and so on are made of; the page
docs/security.md says what they guarantee. The accountant is dp-accounting's, an extra:
``pip install "fedtrellis[privacy]"``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from logging import INFO
from math import inf, isfinite
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain, L1Ball, Simplex
from fedtrellis.domains.atoms import Atom
from fedtrellis.settings import Declared, SettingsError, given, need, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import log

Cohort = Literal["all", "bernoulli", "fixed"]
Mechanism = Literal["gaussian", "exponential"]

# Width of the cells that a privacy loss is rounded up to: ε is a bound from above, and
# ten times as wide as the library's own it is 0.03 % larger, in a tenth of the time.
_CELL = 1e-3


@dataclass(eq=False)
class Accountant:
    """ε(δ) of so many releases of one mechanism, each on a cohort drawn anew.

    ====================== ======================= ====================================
    cohort                 neighbours              by
    ====================== ======================= ====================================
    all clients            one client's answer or  k Gaussian releases are one of
                           nothing in its place    noise z/√k, whose ε is exact
    ``"bernoulli"``, p     the same                privacy loss distribution of the
                                                   Poisson-sampled Gaussian
    ``"fixed"``, ⌈pn⌉ of n one client's answer or  Rényi bound of sampling without
                           any other: 2C, so z/2   replacement (Wang, Balle,
                                                   Kasiviswanathan, 2019)
    ====================== ======================= ====================================

    With ``mechanism="exponential"`` a release is a vertex drawn with noise of scale z
    (:func:`~fedtrellis.privacy.report_noisy_max`), which is 1/(2z²)-zCDP as the
    Gaussian is, of all clients; ε is the Rényi accountant's.

    ``noise_multiplier`` is z, the noise's deviation by the length C that answers are
    clipped to, ``delta`` δ; ``cohort`` clients of n = ``clients`` are in a round where
    their number is fixed, ``participation`` is p; the coins have to be secret. All
    numbers are dp-accounting's (Google); SettingsError: it is not installed.
    """

    noise_multiplier: float
    delta: float
    _: KW_ONLY
    sampling: Cohort = "all"
    participation: float = 1.0
    cohort: int = 1
    clients: int = 1
    mechanism: Mechanism = "gaussian"
    _composed: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        need("dp_accounting", "an accountant of privacy", "privacy")
        # whether ε has a closed form
        self._closed = self.sampling == "all" and self.mechanism == "gaussian"

    @cached_property
    def _running(self) -> Any:
        import dp_accounting
        from dp_accounting import pld, rdp

        relation = dp_accounting.NeighboringRelation
        if self.sampling == "all":
            return rdp.RdpAccountant()
        if self.sampling == "fixed":
            return rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        return pld.PLDAccountant(
            relation.REPLACE_SPECIAL, value_discretization_interval=_CELL
        )

    def _event(self) -> Any:
        import dp_accounting

        if self.sampling == "all":
            return dp_accounting.ZCDpEvent(0.5 / self.noise_multiplier**2)
        if self.sampling == "fixed":
            # another answer instead of one moves the sum by 2C
            noise = dp_accounting.GaussianDpEvent(self.noise_multiplier / 2.0)
            return dp_accounting.SampledWithoutReplacementDpEvent(
                self.clients, self.cohort, noise
            )
        return dp_accounting.PoissonSampledDpEvent(
            self.participation, dp_accounting.GaussianDpEvent(self.noise_multiplier)
        )

    def epsilon(self, releases: int) -> float:
        """ε after so many releases; infinite without noise.

        Asked in rising order it costs least.
        """
        import dp_accounting

        if releases == 0:
            return 0.0
        if self.noise_multiplier == 0.0:
            return inf
        if self._closed:
            # k releases of noise z are one of z/√k
            single = self.noise_multiplier / releases**0.5
            return float(dp_accounting.get_epsilon_gaussian(single, self.delta))
        if releases < self._composed:
            del self._running
            self._composed = 0
        if more := releases - self._composed:
            self._running.compose(self._event(), more)
            self._composed = releases
        return float(self._running.get_epsilon(self.delta))


def noise_multiplier_for(
    epsilon: float, delta: float, releases: int, **how: Any
) -> float:
    """The least z with which so many releases cost at most ε, to 0.001 above.

    ``how`` are the rest of :class:`Accountant`'s parameters.
    """
    import dp_accounting

    some = Accountant(1.0, delta, **how)
    if some._closed:
        # k releases of noise z are one of z/√k
        return float(dp_accounting.get_sigma_gaussian(epsilon, delta) * releases**0.5)

    def fresh() -> Any:
        return Accountant(1.0, delta, **how)._running

    def made(z: float) -> Any:
        event = Accountant(z, delta, **how)._event()
        return dp_accounting.SelfComposedDpEvent(event, releases)

    def enough(z: float) -> bool:
        return Accountant(z, delta, **how).epsilon(releases) <= epsilon

    # from the middle: with little noise the library's tables are long
    high = 1.0
    while not enough(high):
        high *= 2.0
    while enough(high / 2.0):
        high /= 2.0
    bracket = dp_accounting.ExplicitBracketInterval(high / 2.0, high)
    found = dp_accounting.calibrate_dp_mechanism(
        fresh, made, epsilon, delta, bracket, tol=1e-3
    )
    return float(found)


def secret_uniform(shape: tuple[int, ...]) -> FloatArray:
    """Numbers in (0, 1), float64, each (k + 1/2)/2⁵³ of a random k.

    They are of the operating system's generator for keys, never of a run's seed, which
    is public: whoever knows it could take the noise off again.
    """
    data = os.urandom(8 * int(np.prod(shape)))
    bits: NDArray[np.uint64] = np.frombuffer(data, dtype=np.uint64) >> np.uint64(11)
    # below 2⁵³ − 1/2, which would round up to 1
    numbers: FloatArray = np.minimum((bits + 0.5) / 2.0**53, 1.0 - 2.0**-53)
    return numbers.reshape(shape)


def secret_normal(shape: tuple[int, ...]) -> FloatArray:
    """Standard normal numbers, float64, of :func:`secret_uniform`.

    A number is half the sum of four, each Φ⁻¹ of 53 random bits, so that what a
    single floating-point sample gives away of its bits is hidden (Holohan, Braghin,
    "Secure Random Sampling in Differential Privacy", 2021, as Opacus does it). What is
    left of Mironov's attack on floating-point noise ("On Significance of the Least
    Significant Bits for Differential Privacy", CCS 2012) is not analysed: ε is that of
    real numbers.
    """
    # a run without noise need not load it
    from scipy.special import ndtri

    total = np.zeros(shape)
    for _ in range(4):
        total += ndtri(secret_uniform(shape))
    return total / 2.0


def secret_gumbel(shape: tuple[int, ...]) -> FloatArray:
    """Standard Gumbel numbers −log(−log u), float64, of :func:`secret_uniform`."""
    numbers: FloatArray = -np.log(-np.log(secret_uniform(shape)))
    return numbers


def clipped(vector: FloatArray, clip: float, order: float | None = None) -> FloatArray:
    """The vector, shortened to ``clip`` if it is longer: v · min(1, C/‖v‖).

    float64, of the vector's shape. One that is not finite becomes zero, as no length is
    known. ``order`` is that of the norm: None, the Euclidean one, or ``numpy.inf``, the
    largest entry.
    """
    values = np.asarray(vector, dtype=np.float64)
    if not np.isfinite(values).all():
        return np.zeros(values.shape)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return values
    # in units of the largest entry, so that no square is beyond what a float can hold
    unit = values / largest
    norm = 1.0 if order == np.inf else float(np.linalg.norm(unit))
    # v · min(1, C/‖v‖)
    if largest * norm <= clip:
        return values
    short: FloatArray = unit * (clip / norm)
    return short


def report_noisy_max(domain: Domain, gradient: FloatArray, scale: float) -> Atom:
    """A vertex of a polytope, drawn by the exponential mechanism instead of the oracle.

    ::

        argmax over the vertices v of  ⟨−g, v⟩ + Gumbel(scale)

    which draws v with probability ∝ exp(⟨−g, v⟩/scale). Where another data set changes
    every ⟨g, v⟩ by at most Δ, that is (2Δ/scale)-differentially private, and, as the
    mechanism's range is bounded, Δ²/(2 scale²)-zCDP: exactly what Gaussian noise of
    deviation ``scale`` on a vector of sensitivity Δ gives.

    Source: McSherry, Talwar, FOCS 2007; Talwar, Thakurta, Zhang, "Nearly Optimal
    Private LASSO", NIPS 2015; the zCDP bound is that of Cesar, Rogers, "Bounding,
    Concentrating, and Truncating", ALT 2021, arXiv 2004.07223.

    The set is an ℓ1 ball or a simplex; g, of any shape, is not changed; with a
    ``scale`` of 0 it is the oracle itself.
    """
    radius: float = domain.radius  # type: ignore[attr-defined]
    signs = (1.0, -1.0) if isinstance(domain, L1Ball) else (1.0,)
    flat = np.asarray(gradient, dtype=np.float64).reshape(-1)
    # the vertices ±r e_j, or r e_j
    scores = np.stack([-sign * radius * flat for sign in signs])
    scores += scale * secret_gumbel(scores.shape)
    side, index = np.unravel_index(int(scores.argmax()), scores.shape)
    towards = np.zeros(flat.shape)
    towards[index] = -signs[int(side)]
    # the oracle's answer to −v is v
    return domain.lmo(towards.reshape(np.shape(gradient)))


@dataclass
class LocalNoise:
    """What a client does to its own answer before it sends it.

    Whatever its data, its clipped vector is at most 2C away from that of any other
    data: noise is in units of that. ``clip`` is C, ``noise_multiplier`` z.
    """

    clip: float
    noise_multiplier: float

    @classmethod
    def asked_for(cls, config: Mapping[str, Any]) -> Self | None:
        """What a request asks for, if it does."""
        if "privacy-clip" not in config:
            return None
        return cls(config["privacy-clip"], config["privacy-noise-multiplier"])

    def hidden(self, vector: FloatArray) -> FloatArray:
        """clip(v) + 2C z N(0, I), of its shape; zero where it is not finite."""
        result = clipped(vector, self.clip)
        if self.noise_multiplier:
            scale = 2.0 * self.clip * self.noise_multiplier
            result = result + scale * secret_normal(result.shape)
        return result

    def answer(
        self, domain: Domain, known: FloatArray, gradient: FloatArray
    ) -> tuple[FloatArray, Atom | None]:
        """What the oracle is to be asked of known + gradient, or its answer.

        Where vertices are few, the gradient, which is the client's own part of the
        direction, is clipped by its largest entry and a vertex drawn by
        :func:`report_noisy_max`; elsewhere it is :meth:`hidden`. ``known``, of the same
        shape, is the part that the server can tell by itself.
        """
        if type(domain) not in (L1Ball, Simplex):
            return known + self.hidden(gradient), None
        direction = known + clipped(gradient, self.clip, np.inf)
        # ⟨g, v⟩ of a vertex ±r e_j moves by at most 2C r
        radius: float = domain.radius  # type: ignore[attr-defined]
        scale = 2.0 * self.clip * radius * self.noise_multiplier
        return direction, report_noisy_max(domain, direction, scale)


class Budget(Declared):
    """How much noise, ``settled_noise_multiplier`` once it is open, and its ε."""

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
            z, epsilon = ("'auto'" if v is None else f"{v:g}" for v in values)
            raise SettingsError(
                f"{self.prefix}noise-multiplier = {z} and {self.prefix}epsilon = "
                f"{epsilon}: one of them must be a number, and the other 'auto'"
            )
        need("dp_accounting", self.wanted, "privacy")

    def open(self, planned: int, clients: int, how: Mapping[str, Any]) -> None:
        """Settle the noise, of so many releases each; ``how`` is as Accountant's."""
        z = self.noise_multiplier
        if z is None:
            z = noise_multiplier_for(self.epsilon, self.delta, planned, **how)
            name = f"{self.prefix}noise-multiplier"
            log(INFO, "%s %.4g, for ε = %g", name, z, self.epsilon)
        self.settled_noise_multiplier, self._clients = z, clients
        self._accountant = Accountant(z, self.delta, **how)
        if self.delta >= 1.0 / clients:
            stated = f"{self.prefix}delta = {self.delta:g} is not below 1/n for the"
            log(INFO, "%s %d clients: one of them may be shown", stated, clients)

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
        """The noise, where there is some, for a run that diverged."""
        if not self.settled_noise_multiplier:
            return ""
        less = f"{self.prefix}epsilon or a {self.prefix}clip below {self.clip:g}"
        return (
            f"; the noise of {self.wanted} may be too much for {self._clients} "
            f"clients: more of them, a larger {less} make it less"
        )


class LocalPrivacy(Budget):
    """Noise by each client: what it is sent, and the ε of the one asked most."""

    wanted = "privacy = 'local'"
    prefix = "privacy-"

    mechanism: Mechanism = given(
        "of a release: noise on a vector, or vertices drawn at random, too"
    )
    each: int = given("releases of a client that a round makes")

    def begin(self, cohorts: Any) -> None:
        """Settle the noise, and forget an earlier run."""
        self._asked: Counter[str] = Counter()
        # no coins: the server knows whom it asks
        planned, n = self.each * cohorts.rounds, len(cohorts.clients)
        self.open(planned, n, {"mechanism": self.mechanism})

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent; it counts, whatever gets lost."""
        self._asked.update(cohort)
        z = self.settled_noise_multiplier
        return {"privacy-clip": self.clip, "privacy-noise-multiplier": z}

    def metrics(self) -> dict[str, float]:
        """ε so far; nothing where no guarantee holds."""
        return self.spent(self.each * max(self._asked.values(), default=0))
