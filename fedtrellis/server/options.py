"""What every strategy takes, as keyword arguments for editors and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from fedtrellis.server.aggregation import Aggregation
from fedtrellis.server.callbacks import Callback
from fedtrellis.server.guarded import Name, Privacy, Weights
from fedtrellis.server.method import Sampling
from fedtrellis.wire.exchange import ClientKeys
from fedtrellis.wire.layout import DType

__all__ = ["StrategyOptions"]


class StrategyOptions(TypedDict, total=False):
    """Fields of :class:`~fedtrellis.LoopStrategy`, which describes and checks them."""

    participation: float
    sampling: Sampling
    seed: int
    dtype: DType | Literal["auto"]
    aggregation: Name | Aggregation
    answer_bound: float
    client_keys: ClientKeys | Literal["auto"]
    client_weights: Weights
    evaluation_weights: Weights
    privacy: Privacy
    privacy_clip: float
    privacy_noise_multiplier: float
    privacy_epsilon: float
    privacy_delta: float
    callbacks: Sequence[Callback]
    checkpoint: str | Path | None
    checkpoint_every: int
    resume: str | Path | None
    evaluate_every: int
    client_evaluate_every: int
    min_nodes: int
    start_timeout: float
    max_failed_rounds: int
