"""The settings of a run itself, whatever its method and task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtrellis.domains.enclosing import ENCLOSING
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.progress import LOG_FORMATS
from fedtrellis.settings import keys, parse_values, setting

__all__ = ["RunSettings", "run_options"]


@dataclass(frozen=True)
class RunSettings:
    """What a run config says of the run, beside the options of every strategy.

    The latter are the fields of :class:`~fedtrellis.RoundStrategy`: participation,
    seed, min-nodes and so on.
    """

    method: str = setting("fedfw", "the method")
    task: str = setting("digits", "what is learnt")
    rounds: int = setting(50, "rounds", minimum=1)
    domain: str = setting("", "the constraint; empty: the task's own")
    radius: float = setting(0.0, "of the domain; 0: the task's own", minimum=0.0)
    layers: str = setting(
        "whole",
        "several layers: one vector in one set, or a product of sets",
        choices=("whole", "product"),
    )
    outer_domain: str = setting(
        "", f"larger set that clients may have: {', '.join(ENCLOSING)}; empty: none"
    )
    outer_fraction: float = setting(
        0.0,
        "fraction of clients with the larger set, beside those whose node config has "
        "outer-domain too",
        minimum=0.0,
        maximum=0.99,
    )
    evaluate_gap: bool = setting(
        True,
        "whether to evaluate the Frank-Wolfe gap, ‖∇F‖² without a constraint, "
        "or ‖G(x)‖ on a manifold",
    )
    reference: bool = setting(
        False, "solve a convex task centrally first, to show the distance to F*"
    )
    stop_metric: str = setting("", "metric to stop on, such as gap; empty: none")
    stop_tolerance: float = setting(0.0, "stop when the metric is at most this")
    timeout: float = setting(600.0, "seconds to wait for answers", above=0.0)
    resume: str = setting(
        "", "record of a run to go on from, as an absolute path; empty: none"
    )
    initial_model: str = setting(
        "",
        "model to start from, as an absolute path: the record of a run, or a .npz of "
        "arrays; empty: the task's own",
    )
    results_dir: str = setting(
        "", "where records go, an absolute path; empty: ~/.fedtrellis/runs"
    )
    picture: bool = setting(
        True,
        "whether the record has convergence.png; Matplotlib, which draws it, is only "
        "loaded if so",
    )
    track: str = setting(
        "",
        "what else is told of the rounds, with commas between: tensorboard, mlflow, "
        "wandb, openmetrics; empty: nothing",
    )
    log_format: str = setting(
        "text", "a line a round for people, or JSON objects", choices=LOG_FORMATS
    )


def run_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of every strategy that a run config has, by field, checked."""
    return parse_values(keys(LoopStrategy), LoopStrategy, config)
