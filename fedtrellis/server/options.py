"""What every strategy takes, as keyword arguments for editors and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from fedtrellis.server.callbacks import Callback
from fedtrellis.server.guarded import Weights
from fedtrellis.server.method import Sampling
from fedtrellis.server.private import Privacy
from fedtrellis.server.robust import Rule
from fedtrellis.wire.exchange import ClientKeys
from fedtrellis.wire.layout import DType

__all__ = ["StrategyOptions"]


class StrategyOptions(TypedDict, total=False):
    """Fields of :class:`~fedtrellis.LoopStrategy`, which describes and checks them."""

    participation: float
    sampling: Sampling
    seed: int
    dtype: DType | Literal["auto"]
    robust: Rule
    trimmed_fraction: float
    clipping_radius: float
    answer_bound: float
    client_keys: ClientKeys | Literal["auto"]
    client_weights: Weights
    evaluation_weights: Weights
    privacy: Privacy
    privacy_clip: float
    privacy_noise_multiplier: float
    privacy_epsilon: float
    privacy_delta: float
    privacy_test_seed: int | None
    callbacks: Sequence[Callback]
    checkpoint: str | Path | None
    checkpoint_every: int
    resume: str | Path | None
    evaluate_every: int
    client_evaluate_every: int
    min_nodes: int
    start_timeout: float
    max_failed_rounds: int
