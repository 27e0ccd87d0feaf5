"""What every strategy takes beside its method's own settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Literal

from fedtrellis.privacy import Budget
from fedtrellis.server.aggregation import (
    Aggregation,
    Clipping,
    Mean,
    Median,
    Private,
    TrimmedMean,
)
from fedtrellis.server.callbacks import Callback
from fedtrellis.server.secure_sum import SecureSum
from fedtrellis.settings import Declared, given, setting
from fedtrellis.wire.arrays import DType
from fedtrellis.wire.exchange import ClientKeys
from fedtrellis.wire.protocol import ANSWER_BOUND

Sampling = Literal["bernoulli", "fixed"]
Weights = Literal["equal", "examples"]
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
    only = {"only": {"privacy": ("local",)}}
    return field(default=declared.default, metadata={**declared.metadata, **only})


#: Names of settings in Flower's examples, and ours.
SYNONYMS = dict.fromkeys(("lr", "learning-rate", "learning_rate"), "step-size")
SYNONYMS |= {"proximal-mu": "proximal-weight", "local-epochs": "local-steps"}
SYNONYMS["batch-size"] = "batch-fraction"
_WEIGHTS = {"num-examples": "examples"}
# Flower's keywords that options stand for; a KeyError: not for this value
_SAME: dict[str, Callable[[Any], dict[str, Any]]] = {
    "fraction_train": lambda part: {"participation": part, "sampling": "fixed"},
    "fraction_evaluate": lambda part: {"client_evaluate_every": {0: 0, 1: 1}[part]},
    "min_available_nodes": lambda count: {"min_nodes": count},
    "weighted_by_key": lambda key: {"client_weights": _WEIGHTS[key]},
}


class RunOptions(Declared):
    """What every strategy takes as keywords, and run configs without a prefix.

    A strategy has them in its ``options``, and reads them as its own attributes.

    Examples
    --------
    >>> from fedtrellis.strategies import FedAvgGD
    >>> strategy = FedAvgGD(participation=0.5, seed=1)
    >>> strategy.options.participation, strategy.seed
    (0.5, 1)
    """

    _same, _page = _SAME, "Flower's stand in docs/from-flower.md, with ours"

    participation: float = setting(
        1.0,
        "probability, or fraction, of the clients that take part in a round",
        symbol="p",
        above=0.0,
        maximum=1.0,
    )
    sampling: Sampling = setting(
        "bernoulli",
        "a coin flip for each client, or a fixed number of them, ⌈p·n⌉",
        choices=Sampling,
    )
    seed: int = setting(0, "of everything random", minimum=0)
    dtype: DType | Literal["auto"] = setting(
        None,
        "what the model is made of: computed, kept and sent in; auto: what "
        "initial_arrays are of, where the method takes that, and in a run config "
        "float64",
        note="see :mod:`fedtrellis.wire.arrays`",
        choices=DType,
    )
    aggregation: Name | Aggregation = setting(
        "mean",
        "how a round's answers become one vector: the mean, an average that a few of "
        "them cannot choose, one with noise and an ε, or sums of what clients hide",
        note="In Python also an object, such as ``TrimmedMean(fraction=0.3)``; in a "
        "run config its settings are ``trimmed-mean.fraction`` and so on",
        choices=Name,
    )
    answer_bound: float = setting(
        ANSWER_BOUND,
        "an answer of a norm beyond this times max(1, the model's) is refused",
        minimum=1.0,
    )
    client_keys: ClientKeys | Literal["auto"] = setting(
        None,
        "whether a client-id is bound to the key of the node that first answered for "
        "it, over checkpoints too; auto: where the node's key was registered under a "
        "name",
        choices=ClientKeys,
    )
    client_weights: Weights = given(
        "what an answer weighs in the mean of a round: as much as any other, as in the "
        "papers, or by the examples that its client declared before round 1, as in "
        "Flower's FedAvg",
        note="By examples the minimum is that of Σ d_i f_i / Σ d_i, the mean over all "
        "examples where f_i is the mean over the client's d_i",
        default="equal",
        choices=Weights,
    )
    evaluation_weights: Weights = given(
        "what a client's evaluation weighs in the mean: the examples that it declared "
        "before round 1, or as much as any other's",
        default="examples",
        choices=Weights,
    )
    privacy: Privacy = setting(
        "none",
        "whether clients add noise to all that they send: differential privacy of each "
        "client's whole data, from the server too",
        choices=Privacy,
    )
    privacy_clip: float = _of_noise("clip")
    privacy_noise_multiplier: float = _of_noise("noise_multiplier")
    privacy_epsilon: float = _of_noise("epsilon")
    privacy_delta: float = _of_noise("delta")
    callbacks: Sequence[Callback] = given(
        "called with every round; any of them can stop the run", default=()
    )
    checkpoint: str | Path | None = given(
        "file to keep the run's state in, replaced in one step, so that a run killed "
        "at any moment leaves a whole one",
        default=None,
    )
    checkpoint_every: int = setting(10, "rounds between checkpoints", minimum=1)
    resume: str | Path | None = given("checkpoint to go on from", default=None)
    evaluate_every: int = setting(
        1,
        "rounds between evaluations",
        note="the last round is always evaluated",
        minimum=1,
    )
    client_evaluate_every: int = setting(
        0,
        "rounds between evaluations on the clients; 0: never, but with nodes' own data "
        "as evaluate-every says",
        minimum=0,
    )
    min_nodes: int = setting(
        1,
        "nodes to wait for before the start",
        note="the run begins once no further ones connect; all that are there then are "
        "the clients, and with methods that keep nothing of a single one (the FedAvg "
        "family) later ones too",
        minimum=1,
    )
    start_timeout: float = given("seconds to wait for them", default=600.0, above=0.0)
    quorum: float = setting(
        1.0,
        "answers after which a round goes on: below 1 a part of those that are "
        "outstanding, above 1 their number; 1: all. Later ones count when they come",
        note="for methods that can use an answer of an earlier round, see "
        ":doc:`faults`; a client is asked again once it has answered, or after the "
        "timeout",
        above=0.0,
    )
    max_delay: int | None = setting(
        None,
        "rounds of silence after which a client is no longer part of F, until it "
        "answers; auto: 100 with a quorum, else never",
        minimum=1,
    )
    local_deadline: float | None = setting(
        None,
        "seconds for a client's local steps: it takes those that fit, at least one, "
        "and the mean is normalised by how many they were; auto: no deadline",
        note="for methods that average where local steps of gradients lead, see "
        ":doc:`faults`",
        above=0.0,
    )
    max_failed_rounds: int = setting(
        5, "rounds in a row without a usable answer that end the run", minimum=1
    )

    def _described(self) -> dict[str, Any]:
        """Whom a round asks; the rest says nothing of the method."""
        return {"participation p": self.participation, "sampling": self.sampling}
