"""What a project that comes from Flower's own strategies expects of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FLOWER_HOOKS", "advise"]

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
