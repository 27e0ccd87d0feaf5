"""What a project that comes from Flower's own strategies expects of ours.

Rounds are logged as Flower logs them, unless a callback tells of them already, and
Flower's parameters are pointed to ours.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import INFO
from typing import TYPE_CHECKING, Any

from fedtrellis.server.callbacks import Callback, RoundRecord, observers
from fedtrellis.wire.flower_internals import log

if TYPE_CHECKING:
    from fedtrellis.server.loop import LoopStrategy

__all__ = ["FLOWER_HOOKS", "RoundLog", "advise", "with_a_log"]

#: Parts of Flower's own loop, which a subclass may override where a round is one wave.
FLOWER_HOOKS = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
)
# Flower's parameters, and what says the same here
_INSTEAD = {
    "fraction_train": "participation",
    "min_train_nodes": "min_nodes",
    "min_available_nodes": "min_nodes",
    "min_evaluate_nodes": "min_nodes",
    "fraction_evaluate": "client_evaluate_every, the rounds between evaluations on all "
    "clients",
    "weighted_by_key": "client_weights, where the method has a mean to weigh; else "
    "weight each objective by its share",
    "train_metrics_aggr_fn": "strategy.history, or a callback",
    "evaluate_metrics_aggr_fn": "evaluation_weights, or a callback",
    "arrayrecord_key": "nothing: the messages are the method's own",
    "configrecord_key": "nothing: the messages are the method's own",
}


def advise(cls: type[Any], options: Mapping[str, Any]) -> None:
    """Refuse parameters of Flower's FedAvg by what says the same here; TypeError."""
    for name in options:
        if name in _INSTEAD:
            raise TypeError(
                f"{cls.__name__} has no parameter {name!r} of Flower's FedAvg; here "
                f"it is {_INSTEAD[name]}"
            )


def with_a_log(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks, observers, and a :class:`RoundLog` if none tells of the rounds."""
    told = any(callback.tells_of_rounds for callback in callbacks)
    return [*callbacks, *observers(), *([] if told else [RoundLog()])]


class RoundLog(Callback):
    """Logs rounds in the words of Flower's own strategies.

    In a run of more than 1 000 rounds at most one round a second.
    """

    tells_of_rounds = True

    def on_start(
        self, strategy: LoopStrategy, first_round: int, num_rounds: int
    ) -> None:
        """Note how many rounds there will be."""
        self._total, self._wait = num_rounds, 1.0 if num_rounds > 1000 else 0.0
        self._logged = float("-inf")

    def on_round(self, strategy: LoopStrategy, record: RoundRecord) -> None:
        """Log who took part and the metrics."""
        now = time.monotonic()
        if now - self._logged < self._wait and record.round < self._total:
            return
        self._logged = now
        if record.round:
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", record.round, self._total)
            log(
                INFO,
                "configure_train: Sampled %s nodes (out of %s)",
                record.sampled,
                strategy.num_clients,
            )
            log(
                INFO,
                "aggregate_train: Received %s results and %s failures",
                record.used,
                record.sampled - record.used,
            )
        for metrics, where in (
            (record.train, "Aggregated MetricRecord"),
            (record.client_evaluation, "Aggregated MetricRecord of the evaluation"),
            (record.evaluation, "Global evaluation"),
        ):
            if metrics:
                log(INFO, "\t└──> %s: %s", where, metrics)
