"""How a round's answers become one vector: the mean, and rules that no few can choose.

The mean of n points is wherever one of them wants it. Each robust rule here stays near
the points of the majority, whatever the others are, and pays for it where honest points
differ: then it is not their mean either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtrellis.privacy import Budget, clipped, secret_normal, secret_uniform
from fedtrellis.server.conversation import Answer, Conversation, Entries
from fedtrellis.settings import Declared, SettingsError, setting
from fedtrellis.wire.arrays import FloatArray

Points = Sequence[FloatArray] | FloatArray

#: Of fewer points no majority is known: a liar and a client are one each.
LEAST = 3

# Centred clipping's l. One is enough near the mean, as its authors write; from the last
# model, as far away as the points are, the first brings the centre among them.
_CLIPPINGS = 3


@dataclass(frozen=True)
class Cohorts:
    """Whom the rounds of a run ask."""

    clients: Sequence[str]
    participation: float  # p, the setting
    fixed: int | None  # clients of a round; None: a coin for each
    expected: float  # how likely a client is to take part in a round
    rounds: int  # planned


@dataclass(slots=True)
class Sealed:
    """An answer that no method may see alone, only what all of them come to."""

    value: Any

    def __array__(self, *options: Any, **more: Any) -> NDArray[Any]:
        raise TypeError(
            "this run's aggregation gives no single answers: aggregate goes on from "
            "self.average or self.mean_of, or its method declares needs = 'each'"
        )


class Aggregation(Declared, ABC):
    """Base class: how a round's answers become one vector.

    A subclass is a :class:`~fedtrellis.settings.Declared` class; its settings are the
    run-config keys ``NAME.setting``. It implements :meth:`combine`; the rest has
    defaults for what looks at answers in the clear, once. An object serves one run at a
    time: a strategy makes a copy of its own. A run calls :meth:`begin` and
    :meth:`prepare`; in a round :meth:`cohort`, :meth:`entries`, :meth:`ask`,
    :meth:`lost`, :meth:`combine` as often as the method likes,
    :meth:`metrics`; and in the end :meth:`finish`.

    Examples
    --------
    >>> from fedtrellis import Aggregation
    >>> from fedtrellis.strategies import FedAvgGD
    >>> class Midrange(Aggregation):
    ...     name = "midrange"
    ...     def combine(self, points, centre):
    ...         return (np.min(points, axis=0) + np.max(points, axis=0)) / 2
    >>> FedAvgGD(aggregation=Midrange()).options.aggregation.name
    'midrange'
    """

    #: What run configs call it.
    name: ClassVar[str] = ""
    #: A line for listings.
    about: ClassVar[str] = ""
    #: The setting that asks for it, with its value.
    wanted: ClassVar[str] = ""
    #: Whether no few of those who answer can choose what it gives.
    robust: ClassVar[bool] = False
    #: Who sees a single answer: "method"; "server", where a method gets no more than
    #: what the answers come to; or "client", where clients hide them.
    seen_by: ClassVar[Literal["method", "server", "client"]] = "method"
    #: Why no run with it goes on from a checkpoint; empty: it may.
    no_resume: ClassVar[str] = ""
    #: Clients that a run needs.
    least: ClassVar[int] = 1
    #: Whether clients' evaluations may travel in the clear: "accept" or "refuse".
    exposed: ClassVar[str] = "accept"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.wanted = f"aggregation = {cls.name!r}"

    @abstractmethod
    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        r"""What some points come to: an ndarray of float64, of shape S.

        ``points`` are n finite ndarrays of shape S, or one of shape (n, \*S); at least
        one, unless :meth:`lost` lets a round without answers pass. ``centre``, of shape
        S, is the last result, and is not changed. Sums are of float64 whatever the
        points are of, to be rounded once.
        """

    def begin(self, cohorts: Cohorts) -> None:
        """Get ready for a run of these clients; SettingsError if they are too few."""
        if (n := len(cohorts.clients)) < self.least:
            raise SettingsError(
                f"{self.wanted} needs at least {self.least} clients; there are {n}"
            )

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Waves before round 1 in which the clients agree on something."""

    def finish(self, conversation: Conversation) -> None:
        """After the last round, and after a failure."""

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """Whom a round asks, instead of those that were drawn for it; called once."""
        return list(drawn)

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent."""
        return {}

    def ask(
        self, conversation: Conversation, t: int, entries: Entries, timeout: float
    ) -> Sequence[Answer]:
        """The answers of a round's clients, each of whom is sent its entries."""
        return conversation.ask(t, "train", entries, timeout)

    def lost(self, answers: int, least: int) -> str:
        """Why so many checked answers come to nothing; empty if they do not.

        ``least`` is how many a robust average of them needs.
        """
        return "" if answers else f"{self.wanted} needs an answer"

    def metrics(self) -> dict[str, float]:
        """Its own metrics of a round, after the round's result."""
        return {}

    def warning(self) -> str:
        """What a reader of the run's record must not overlook; empty: nothing."""
        return ""

    def why_failed(self) -> str:
        """What it may have done to a run that diverged, after a semicolon."""
        return ""


class Mean(Aggregation):
    """The mean: (1/n) Σ x_i.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Mean
    >>> Mean().combine(np.array([[0.0, 3.0], [2.0, 5.0]]), np.zeros(2))
    array([1., 4.])
    """

    name = "mean"
    about = "the mean"

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """The mean."""
        # (1/n) Σ x_i, as np.mean does it, which takes as long again to get there
        mean: FloatArray = np.add.reduce(points, axis=0, dtype=np.float64)
        mean /= len(points)
        return mean


class Robust(Aggregation):
    """Base class: an average that bears some liars, and refuses a run of more."""

    robust = True
    least = LEAST

    liars: int = setting(
        0,
        "clients that may lie; a run in which so many could choose the result is "
        "refused, and a round does without its answers",
        symbol="k",
        minimum=0,
    )

    def bears(self, answers: int) -> int:
        """How many lies among so many answers cannot choose the result: under half."""
        return (answers - 1) // 2

    def begin(self, cohorts: Cohorts) -> None:
        """SettingsError if the clients are too few for it, or for so many liars."""
        super().begin(cohorts)
        n = len(cohorts.clients)
        if (borne := self.bears(n)) < self.liars:
            why = f"of {n} clients it bears {borne} that lie"
            raise SettingsError(f"{self.name}.liars = {self.liars}: {why}")

    def lost(self, answers: int, least: int) -> str:
        """As for any average; the answers have to be enough for k liars."""
        if answers >= least and self.bears(answers) >= self.liars:
            return ""
        few = f"needs at least {least} answers in a round, and enough for"
        return f"{self.wanted} {few} {self.liars} that lie; there were {answers}"


class Median(Robust):
    """The coordinate-wise median.

    Source: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
    Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definition 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Median
    >>> Median().combine(np.array([[1.0], [2.0], [1e9]]), np.zeros(1))
    array([2.])
    """

    name = "median"
    about = "the median of each coordinate"

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """In each coordinate the mean of the values in the middle."""
        count, ordered = len(points), np.sort(points, axis=0)
        # as many as it bears are left out at either end
        cut = self.bears(count)
        middle: FloatArray = ordered[cut : count - cut].mean(axis=0, dtype=np.float64)
        return middle


class TrimmedMean(Median):
    """In each coordinate the mean without its largest and smallest values.

    ⌈βn⌉ are left out at either end, never all of them.

    Source: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
    Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definition 2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import TrimmedMean
    >>> points = np.array([[-1e9], [1.0], [2.0], [1e9]])
    >>> TrimmedMean(fraction=0.25).combine(points, np.zeros(1))
    array([1.5])
    """

    name = "trimmed-mean"
    about = "the mean of each coordinate's values without the outermost"

    fraction: float = setting(
        0.2,
        "part of the values that is left out at either end",
        symbol="β",
        above=0.0,
        below=0.5,
    )

    def bears(self, answers: int) -> int:
        """As many as are left out at either end, ⌈βn⌉."""
        # β·n may lie above a whole number by rounding alone
        return min(super().bears(answers), ceil(self.fraction * answers - 1e-9))


class Clipping(Robust):
    """Centred clipping, from the last result v.

    ::

        3 times:  v ← v + (1/n) Σ (x_i − v) min(1, τ/‖x_i − v‖)

    Source: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
    Optimization", ICML 2021, arXiv 2012.10333, algorithm 2. τ by itself, the median of
    the distances ‖x_i − v‖, is ours: half of the points are clipped to it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis import Clipping
    >>> points = np.array([[1.0], [1.0], [1e9]])
    >>> Clipping().combine(points, np.ones(1))
    array([1.])
    """

    name = "clipping"
    about = "centred clipping: no answer counts for more than a radius"

    radius: float = setting(
        None,
        "how far from the centre an answer counts whole; auto: the median of the "
        "distances",
        symbol="τ",
        above=0.0,
    )

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """The centre, moved towards the points."""
        x = np.asarray(points, dtype=np.float64)
        rows, v = x.reshape(len(x), -1), centre.reshape(-1)
        for _ in range(_CLIPPINGS):
            offsets = rows - v
            distances = np.linalg.norm(offsets, axis=1)
            radius = float(np.median(distances)) if self.radius is None else self.radius
            # v ← v + (1/n) Σ (x_i − v) min(1, τ/‖x_i − v‖)
            far = distances > radius
            weights = np.ones(len(rows))
            weights[far] = radius / distances[far]
            v = v + weights @ offsets / len(rows)
        return v.reshape(centre.shape)


class Private(Budget, Aggregation):
    """The noisy mean of clipped changes: central differential privacy.

    ::

        v + ( Σ_i clip(x_i − v) + z C N(0, I) ) / w,     clip(u) = u · min(1, C/‖u‖)

    w, the number of clients that a round is expected to have, is fixed beforehand: that
    one client is there or not moves the sum by at most C, whatever it sends, and
    changes nothing else. The server, which is trusted, adds the noise; all that leaves
    it is made of these means. Cohorts are drawn by coins that are secret, where ε
    relies on that. ε of what was released is a metric of every round. With z = 0 the
    mean is clipped only, and nothing is guaranteed.

    Source: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent
    Language Models" (DP-FedAvg), ICLR 2018, arXiv 1710.06963, estimator f̃_f.

    Raises
    ------
    SettingsError
        Not exactly one of ``noise_multiplier`` and ``epsilon`` is given, or the extra
        ``privacy`` is not installed.

    Examples
    --------
    >>> from fedtrellis import Private
    >>> from fedtrellis.strategies import FedAvgGD
    >>> private = Private(epsilon=8.0, clip=0.03)
    >>> strategy = FedAvgGD(step_size=0.01, aggregation=private)
    >>> strategy.aggregator.name
    'private'
    """

    name = "private"
    about = "clipped changes and noise by a trusted server, with an ε"
    seen_by = "server"

    def begin(self, cohorts: Cohorts) -> None:
        """Settle the noise, and forget an earlier run."""
        super().begin(cohorts)
        self._cohorts, n = cohorts, len(cohorts.clients)
        how: dict[str, Any] = {}
        if cohorts.expected < 1.0:
            how = {"sampling": "bernoulli", "participation": cohorts.participation}
            if cohorts.fixed is not None:
                how = {"sampling": "fixed", "cohort": cohorts.fixed, "clients": n}
        self.open(cohorts.rounds, n, how)
        self._weight = cohorts.expected * n
        self._releases = 0

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """The clients of a round, by coins that nobody can draw again."""
        cohorts = self._cohorts
        if cohorts.participation == 1.0:
            return list(drawn)
        coins = secret_uniform((len(cohorts.clients),))
        if cohorts.fixed is not None:
            chosen = sorted(coins.argsort()[: cohorts.fixed].tolist())
        else:
            chosen = (coins < cohorts.participation).nonzero()[0].tolist()
        return [cohorts.clients[i] for i in chosen]

    def combine(self, points: Points, centre: FloatArray) -> FloatArray:
        """The noisy mean of what the points change in the centre.

        There may be none: what is left then is the noise, as it has to be.
        """
        self._releases += 1
        total = np.zeros(centre.shape)
        for point in points:
            total += clipped(np.subtract(point, centre, dtype=np.float64), self.clip)
        if z := self.settled_noise_multiplier:
            total += z * self.clip * secret_normal(centre.shape)
        return centre + total / self._weight

    def lost(self, answers: int, least: int) -> str:
        """Nothing is lost: a round without answers has noise for a result."""
        return ""

    def metrics(self) -> dict[str, float]:
        """ε of what was released so far; nothing where no guarantee holds."""
        return self.spent(self._releases)
