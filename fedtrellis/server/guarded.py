"""What every method makes of answers: what it checks, and how they become one vector.

Against clients that lie within the wire's rules: who answers must be who answered
before (:mod:`fedtrellis.wire.exchange`), an answer must not be out of all proportion to
the model, nobody weighs more in an evaluation than was declared before round 1. How
answers are aggregated is the user's choice among what fits the method
(:mod:`fedtrellis.server.aggregation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
from flwr.app import ConfigRecord, MetricRecord

from fedtrellis.privacy.accountant import Mechanism
from fedtrellis.server.aggregation import (
    LEAST,
    Aggregation,
    Clipping,
    Cohorts,
    Mean,
    Median,
    Points,
    Sealed,
    TrimmedMean,
)
from fedtrellis.server.answers import Answer, one_point
from fedtrellis.server.checkpoint import Checkpoint
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.method import Method
from fedtrellis.server.metrics import mean_metrics
from fedtrellis.server.private import Budget, LocalPrivacy, Private
from fedtrellis.server.secure_sum import SecureSum
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.exchange import ClientKeys
from fedtrellis.wire.protocol import ANSWER_BOUND, EXAMPLES, is_count

__all__ = ["AGGREGATIONS", "GuardedMethod", "Name", "Needs", "Privacy"]

Weights = Literal["equal", "examples"]
Needs = Literal["sum", "each"]
Privacy = Literal["none", "local"]
Name = Literal["mean", "median", "trimmed-mean", "clipping", "private", "secure-sum"]

#: What ``aggregation`` may name.
AGGREGATIONS: tuple[type[Aggregation], ...] = (
    *(Mean, Median, TrimmedMean, Clipping),
    *(Private, SecureSum),
)


def _of_noise(name: str) -> Any:
    """A setting of noise's budget, for noise by the clients."""
    (declared,) = (one for one in fields(Budget) if one.name == name)
    meta = {"shown": False, "only": {"privacy": ("local",)}}
    return field(default=declared.default, metadata={**declared.metadata, **meta})


class GuardedMethod(Method):
    """How answers are checked and aggregated: the settings, and what methods use."""

    #: What the server uses of a round's answers: "sum", nothing but the vector that
    #: :meth:`average` or :meth:`mean_of` makes of them; "each", single answers, too;
    #: None: it makes something else of them, so that no aggregation but the mean fits.
    needs: Needs | None = None
    #: Answers that a robust average of a round needs; 1 where those who sat out count
    #: with what they last sent, or the method looks after itself.
    least_answers: ClassVar[int] = LEAST
    #: What a client releases with ``privacy="local"``: "gaussian" noise on a vector, or
    #: vertices drawn by the "exponential" mechanism too; None: it adds no noise.
    private_mechanism: ClassVar[Mechanism | None] = None
    #: How often it does so in a round.
    private_releases = 1
    #: What there is to choose from.
    aggregations: ClassVar[tuple[type[Aggregation], ...]] = AGGREGATIONS

    aggregation: Name | Aggregation = setting(
        "mean",
        "how a round's answers become one vector: the mean, an average that a few of "
        "them cannot choose, one with noise and an ε, or sums of what clients hide",
        note="In Python also an object, such as ``TrimmedMean(fraction=0.3)``; in a "
        "run config its settings are ``trimmed-mean.fraction`` and so on",
        choices=Name,
        shown=False,
    )
    answer_bound: float = setting(
        ANSWER_BOUND,
        "an answer of a norm beyond this times max(1, the model's) is refused",
        minimum=1.0,
        shown=False,
    )
    client_keys: ClientKeys | Literal["auto"] = setting(
        None,
        "whether a client-id is bound to the key of the node that first answered for "
        "it, over checkpoints too; auto: where the node's key was registered under a "
        "name",
        choices=ClientKeys,
        shown=False,
    )
    client_weights: Weights = given(
        "what an answer weighs in the mean of a round: as much as any other, as in the "
        "papers, or by the examples that its client declared before round 1, as in "
        "Flower's FedAvg",
        note="By examples the minimum is that of Σ d_i f_i / Σ d_i, the mean over all "
        "examples where f_i is the mean over the client's d_i",
        default="equal",
        choices=Weights,
        shown=False,
    )
    evaluation_weights: Weights = given(
        "what a client's evaluation weighs in the mean: the examples that it declared "
        "before round 1, or as much as any other's",
        default="examples",
        choices=Weights,
        shown=False,
    )

    privacy: Privacy = setting(
        "none",
        "whether clients add noise to all that they send: differential privacy of each "
        "client's whole data, from the server too",
        choices=Privacy,
        shown=False,
    )
    privacy_clip: float = _of_noise("clip")
    privacy_noise_multiplier: float = _of_noise("noise_multiplier")
    privacy_epsilon: float = _of_noise("epsilon")
    privacy_delta: float = _of_noise("delta")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._model_size: tuple[Any, int, float] = None, 0, 0.0
        chosen = self.aggregation
        if isinstance(chosen, str):
            chosen = next(kind for kind in self.aggregations if kind.name == chosen)()
        #: The run's own aggregation.
        self.aggregator: Aggregation = copy(chosen)
        self.check_aggregation()
        #: The noise that clients add, if they do.
        self.local_noise = None if self.privacy == "none" else self._make_noise()

    def admits(self, kind: type[Aggregation]) -> bool:
        """Whether the method can go on from what an aggregation gives it.

        By what it :attr:`needs`; a method that knows more of itself says it here.
        """
        if issubclass(kind, Mean):
            return True
        if kind.hides:  # takes clients that can hide what they send
            return False
        return self.needs == "sum" or (self.needs == "each" and not kind.sums_only)

    def check_aggregation(self) -> None:
        """Refuse an aggregation that does not fit the method or other settings.

        Raises
        ------
        SettingsError
            One line, with what is allowed.
        """
        kind, said = type(self.aggregator), f"aggregation = {self.aggregator.name!r}"
        if not self.admits(kind):
            allowed = [k.name for k in self.aggregations if self.admits(k)]
            variant: str = getattr(self, "variant", "")
            beside = f" with variant = {variant!r}" if variant else ""
            raise SettingsError(
                f"{said} does not apply to {self.described_name}{beside}; allowed: "
                f"{', '.join(allowed)}"
            )
        if self.client_weights != "equal" and self.needs != "sum":
            raise SettingsError(
                f"client_weights = {self.client_weights!r} does not apply to "
                f"{self.described_name}; allowed: equal (scale each client's f_i by "
                "its examples)"
            )
        if self.client_weights != "equal" and not kind.weighs:
            raise SettingsError(
                f"client_weights = {self.client_weights!r} does not apply beside "
                f"{said}, with which all clients count alike; allowed: equal"
            )
        self._refuse_resume(said, kind.no_resume)

    def _refuse_resume(self, said: str, why: str) -> None:
        if why and getattr(self, "resume", None) is not None:
            raise SettingsError(f"resume does not apply beside {said}: {why}")

    def _make_noise(self) -> LocalPrivacy:
        """Noise by the clients; SettingsError where it would leave no guarantee."""
        said = LocalPrivacy.wanted
        if self.private_mechanism is None:
            raise SettingsError(
                f"{said} does not apply to {self.described_name}; allowed: none"
            )
        means = [kind.name for kind in self.aggregations if kind.bears_noise]
        beside = (
            ("aggregation", self.aggregator.name, means, "the noise is for a mean"),
            ("client_weights", self.client_weights, ["equal"], "it is for equal ones"),
            (
                "client-evaluate-every",
                getattr(self, "client_evaluate_every", 0),
                [0],
                "evaluations have no noise",
            ),
        )
        for name, value, allowed, why in beside:
            if value not in allowed:
                raise SettingsError(
                    f"{name} = {value!r} does not apply beside {said}: {why}; allowed: "
                    f"{', '.join(map(str, allowed))}"
                )
        self._refuse_resume(said, LocalPrivacy.no_resume)
        return LocalPrivacy(
            clip=self.privacy_clip,
            noise_multiplier=self.privacy_noise_multiplier,
            epsilon=self.privacy_epsilon,
            delta=self.privacy_delta,
            mechanism=self.private_mechanism,
            each=self.private_releases,
        )

    @property
    def _parts(self) -> list[Aggregation | LocalPrivacy]:
        return [
            self.aggregator,
            *([] if self.local_noise is None else [self.local_noise]),
        ]

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs; the mean goes without saying."""
        chosen: dict[str, Any] = {}
        if not isinstance(self.aggregator, Mean):
            chosen |= {"aggregation": self.aggregator.name}
            own = self.aggregator.described()
            chosen |= {f"{self.aggregator.name} {name}": own[name] for name in own}
        if self.local_noise is not None:
            own = self.local_noise.described()
            chosen |= {"privacy": self.privacy}
            chosen |= {f"privacy {name}": own[name] for name in own}
        return {**super().settings(), **chosen}

    def warnings(self) -> list[str]:
        """What a reader of a run's record must not overlook."""
        own = [part.warning() for part in self._parts]
        return [*super().warnings(), *filter(None, own)]

    @property
    def descends(self) -> bool:
        """With noise a run has to come to something: it has cost its ε."""
        noisy = any(isinstance(part, Budget) for part in self._parts)
        return noisy or super().descends

    def blame(self) -> str:
        """What a run that ended above its start is put down to, where it is known."""
        own = [part.blame() for part in self._parts]
        return next(filter(None, own), super().blame())

    @property
    def described_name(self) -> str:
        """The method as an error names it."""
        return self.name or type(self).__name__

    # ------------------------------------------------------------------ who is there

    def meet(
        self,
        conversation: Conversation,
        count: int,
        timeout: float,
        resume: Path | None,
    ) -> None:
        """Wait for the clients, and look at what they say of themselves.

        Raises
        ------
        SettingsError
            There are too few for the aggregation; or what
            :meth:`~fedtrellis.server.conversation.Conversation.meet` raises.
        """
        self.check_hooks()
        if resume is not None:
            conversation.registry.remember(Checkpoint(resume).keys)
        conversation.meet(count, timeout)
        self.begin_aggregation()
        if self.client_weights == "examples":
            for client in self.clients:
                if not self.client_properties(client).get(EXAMPLES):
                    raise SettingsError(
                        f"client_weights = 'examples': client {client} declared none; "
                        "its objective needs num_examples"
                    )

    def begin_aggregation(self) -> None:
        """Get the aggregation ready, now that the clients are known."""
        cohorts = Cohorts(
            self.clients,
            self.participation,
            self._fixed_count() if self.sampling == "fixed" else None,
            self.expected_participation,
            self.num_rounds,
        )
        for part in self._parts:
            part.begin(cohorts)

    def sample(self, server_round: int) -> list[str]:
        """The clients of a round; depends on the seed and the round alone.

        Unless the aggregation says otherwise: by secret coins, or without some.
        """
        return self.aggregator.cohort(server_round, super().sample(server_round))

    # ---------------------------------------------------------------------- answers

    def take_point(
        self, answer: Answer, reference: FloatArray | None = None
    ) -> FloatArray:
        """The one dense array of an answer, a point in proportion to the model.

        Parameters
        ----------
        answer : Answer
        reference : ndarray, optional
            What of the model the client has; by default all of it.

        Raises
        ------
        ValueError
            Another number of arrays, another shape or dtype, or out of proportion; the
            message is the reason that log and history give.
        """
        reference = self.broadcast.model if reference is None else reference
        point = one_point(answer, reference.shape, self.broadcast.layout)
        self.check_proportion(point, reference, answer.norm)
        return point

    def check_proportion(
        self, point: FloatArray, reference: FloatArray, norm: float | None = None
    ) -> None:
        """Refuse a point, of a norm that may be known, far beyond the model.

        ValueError says so.
        """
        size = _norm(point) if norm is None else norm
        known = self._size_of(reference)
        # ‖x_i‖ ≤ b · max(1, ‖x‖)
        if not size <= self.answer_bound * max(1.0, known):
            raise ValueError(
                f"the answer has norm {size:.3g}, the model {known:.3g}: beyond "
                f"answer-bound = {self.answer_bound:g}; local steps that diverge, or a "
                "lie"
            )

    def _size_of(self, reference: FloatArray) -> float:
        """The norm of what answers are compared with; of the model once a version."""
        if reference is not self.broadcast.model:
            return _norm(reference)
        broadcast, (known, version, size) = self.broadcast, self._model_size
        if known is not broadcast or version != broadcast.version:
            size = _norm(reference)
            self._model_size = broadcast, broadcast.version, size
        return size

    def sealed(self, answers: dict[str, Any]) -> dict[str, Any]:
        """A round's checked answers as ``aggregate`` may have them."""
        if not self.aggregator.sums_only:
            return answers
        return {name: Sealed(answer) for name, answer in answers.items()}

    def average(self, points: Points, centre: FloatArray) -> FloatArray:
        r"""What some points come to, by the run's aggregation.

        Parameters
        ----------
        points : sequence of n ndarrays of shape S, or ndarray of shape (n, \*S)
            A round's answers, or vectors made of them.
        centre : ndarray of shape S
            Their last average, or what they changed: the model, or zero.

        Returns
        -------
        ndarray of float64, of shape S
        """
        if self.aggregator.sums_only:
            points = [cast(Sealed, point).value for point in points]
        return self.aggregator.combine(points, centre)

    def mean_of(
        self, answers: Mapping[str, FloatArray], centre: FloatArray
    ) -> FloatArray:
        r"""What a round's answers come to, weighted if ``client_weights`` says so.

        Parameters
        ----------
        answers : mapping of str to ndarray of shape S
            By client; at least one, but for noise that a round without any has, too.
        centre : ndarray of shape S
            As :meth:`average` takes it.
        """
        points = list(answers.values())
        if self.client_weights == "equal":
            return self.average(points, centre)
        counts = [self.client_properties(client)[EXAMPLES] for client in answers]
        # Σ d_i x_i / Σ d_i
        mean: FloatArray = np.average(
            np.asarray(points, dtype=np.float64), axis=0, weights=counts
        )
        return mean

    def unusable(self, server_round: int, answers: Mapping[str, Any]) -> str:
        """Why a round's checked answers come to nothing; empty if they do not."""
        if self.aggregator.robust and len(answers) < self.least_answers:
            return (
                f"aggregation = {self.aggregator.name!r} needs at least "
                f"{self.least_answers} answers in a round, and this one had "
                f"{len(answers)}"
            )
        return self.aggregator.lost(server_round, self._sampled, answers)

    # ------------------------------------------------------------------ evaluations

    def evaluate_clients(
        self,
        conversation: Conversation,
        server_round: int,
        config: ConfigRecord,
        timeout: float,
    ) -> MetricRecord | None:
        """Mean of the clients' metrics of their own data, where an evaluation is due.

        Parameters are those of :meth:`run_round`.
        """
        entries: dict[str, Mapping[str, Any]] = {
            name: dict(config) for name in self.clients
        }
        answers = conversation.ask(server_round, "evaluate", entries, timeout)
        for answer in answers:
            conversation.note_version(answer)
        return self.mean_evaluation(answers)

    def mean_evaluation(self, answers: Sequence[Answer]) -> MetricRecord | None:
        """The clients' metrics in the mean; with a robust aggregation in the median.

        A client weighs by the examples that it declared before round 1, whatever its
        evaluation says. What one that did not says first, it has declared by that.
        """
        metrics, weights = [], []
        for answer in answers:
            told = self.client_properties(answer.client)
            said = answer.metrics.get(EXAMPLES)
            if not is_count(said):
                self.conversation.reject(
                    answer.client, f"the evaluation is of {said!r} examples"
                )
                continue
            examples = int(told.setdefault(EXAMPLES, said))
            metrics.append({**answer.metrics, EXAMPLES: examples})
            equal = self.evaluation_weights == "equal"
            weights.append(float(examples > 0) if equal else float(examples))
        return mean_metrics(metrics, weights, median=self.aggregator.robust)


def _norm(point: FloatArray) -> float:
    # a float32's square may be beyond what a float32 can hold
    return float(np.linalg.norm(point.astype(np.float64, copy=False)))
