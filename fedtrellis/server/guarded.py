"""What every method does about clients that lie within the wire's rules.

Who answers must be who answered before (:mod:`fedtrellis.wire.exchange`), an answer
must not be out of all proportion to the model, nobody weighs more in an evaluation than
was declared before round 1, and where a method averages answers, the average can be one
that no few of them choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ConfigRecord, MetricRecord

from fedtrellis.server.answers import Answer, one_point
from fedtrellis.server.checkpoint import read_client_keys
from fedtrellis.server.conversation import Conversation
from fedtrellis.server.method import Method
from fedtrellis.server.metrics import mean_metrics
from fedtrellis.server.robust import LEAST, Average, Rule
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.exchange import ClientKeys
from fedtrellis.wire.protocol import ANSWER_BOUND, EXAMPLES, is_count

__all__ = ["GuardedMethod"]

Weights = Literal["equal", "examples"]


class GuardedMethod(Method):
    """The settings against liars, and what methods make of them."""

    #: The rules of ``robust`` that the method can average by.
    rules: ClassVar[tuple[str, ...]] = ("none",)
    #: Whether its mean over answers may weigh them by their clients' examples.
    weighable: ClassVar[bool] = False
    #: Answers that such an average of a round needs; 1 where those who sat out count
    #: with what they last sent, or the method looks after itself.
    least_answers: ClassVar[int] = LEAST

    robust: Rule = setting(
        "none",
        "how answers are averaged, so that a few of them cannot choose the average; "
        "none: the mean",
        note="see :class:`~fedtrellis.server.robust.Average`",
        choices=Rule,
        shown=False,
    )
    trimmed_fraction: float = setting(
        0.2,
        "part of the values that the trimmed mean leaves out at either end",
        symbol="β",
        above=0.0,
        below=0.5,
        shown=False,
        only={"robust": ("trimmed-mean",)},
    )
    clipping_radius: float = setting(
        None,
        "how far from the centre an answer counts whole in centred clipping; auto: the "
        "median of the distances",
        symbol="τ",
        above=0.0,
        shown=False,
        only={"robust": ("centred-clipping",)},
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._model_size: tuple[Any, int, float] = None, 0, 0.0
        if self.robust not in self.rules:
            raise SettingsError(
                f"robust = {self.robust!r} does not apply to {self.described_name}; "
                f"allowed: {', '.join(self.rules)}"
            )
        if self.client_weights != "equal" and not self.weighable:
            raise SettingsError(
                f"client_weights = {self.client_weights!r} does not apply to "
                f"{self.described_name}; allowed: equal (scale each client's f_i by "
                "its examples)"
            )
        if self.client_weights != "equal" and self.robust != "none":
            raise SettingsError(
                f"client_weights = {self.client_weights!r} needs robust = 'none': with "
                f"{self.robust!r} all clients count alike"
            )

    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`summary` logs; a robust average is one of them."""
        rule = {} if self.robust == "none" else {"robust": self.robust}
        return {**super().settings(), **rule}

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
            There are too few for a robust average; or what
            :meth:`~fedtrellis.server.conversation.Conversation.meet` raises.
        """
        self.check_hooks()
        if resume is not None:
            conversation.registry.remember(read_client_keys(resume))
        conversation.meet(count, timeout)
        n = self.num_clients
        if self.robust != "none" and n < LEAST:
            raise SettingsError(
                f"robust = {self.robust!r} needs at least {LEAST} clients; there are "
                f"{n}"
            )
        if self.client_weights == "examples":
            for client in self.clients:
                if not self.client_properties(client).get(EXAMPLES):
                    raise SettingsError(
                        f"client_weights = 'examples': client {client} declared none; "
                        "its objective needs num_examples"
                    )

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

    @property
    def average(self) -> Average:
        """The rule that answers are averaged by."""
        return Average(self.robust, self.trimmed_fraction, self.clipping_radius)

    def mean_of(
        self, answers: Mapping[str, FloatArray], centre: FloatArray
    ) -> FloatArray:
        r"""The average of a round's answers.

        Parameters
        ----------
        answers : mapping of str to ndarray of shape S
            By client; at least one.
        centre : ndarray of shape S
            As :class:`~fedtrellis.server.robust.Average` takes it.
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

    def too_few(self, count: int) -> str:
        """Why so many answers cannot be averaged; empty if they can."""
        if self.robust == "none" or count >= self.least_answers:
            return ""
        return (
            f"robust = {self.robust!r} needs at least {self.least_answers} answers in "
            f"a round, and this one had {count}"
        )

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
        """The clients' metrics in the mean; with a robust average in the median.

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
        return mean_metrics(metrics, weights, median=self.robust != "none")


def _norm(point: FloatArray) -> float:
    # a float32's square may be beyond what a float32 can hold
    return float(np.linalg.norm(point.astype(np.float64, copy=False)))
