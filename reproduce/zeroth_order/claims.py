"""What the zeroth-order Riemannian paper claims and shows, and what measures it."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduce.claims import Claim, Effect, Exhibit, Paper, Results, paired

from .pca import slopes

__all__ = ["PAPERS"]


def _cheaper(found: Results) -> list[Effect]:
    """Time of an iteration with (6) over that with (7)."""
    measured = []
    for data, rows in found["figure-2"]["data"].items():
        ours = rows["(7), projection"]["milliseconds"]
        measured += [
            paired(
                f"{data}, {name}", row["milliseconds"], ours, ratio=True, form="×{:.3g}"
            )
            for name, row in rows.items()
            if name != "(7), projection"
        ]
    return measured


def _reached(row: dict[str, Any], what: str) -> list[float]:
    """What a goal took, by seed; a KeyError where a seed has not met it."""
    if min(row[what]) < 0:
        raise KeyError(f"{row['label']} has not met its goal with every seed")
    return list(row[what])


def _rounds(found: Results, item: str, few: str, many: str) -> list[Effect]:
    rows = {row["label"]: row for row in found[item]["rows"]}
    return [
        paired(
            f"{many} instead of {few}",
            _reached(rows[few], "reached"),
            _reached(rows[many], "reached"),
            ratio=True,
            form="×{:.3g}",
        )
    ]


def _local_steps(found: Results) -> list[Effect]:
    return _rounds(found, "figure-4", "2", "5") + _rounds(found, "figure-4", "5", "10")


def _speedup(found: Results) -> list[Effect]:
    """Rounds saved by four times the clients, and how far that is from a fourth."""
    (faster,) = _rounds(found, "figure-5", "5", "20")
    # in proportion: three times as fast at least with four times as many
    return [
        faster,
        Effect(
            f"{faster.case}, in proportion",
            (np.asarray(faster.values) - np.log(3.0)).tolist(),
            ratio=True,
            form="×{:.3g} of 3",
        ),
    ]


def _directions(found: Results) -> list[Effect]:
    """Misclassified with 10 directions minus with 2."""
    rows = {row["label"]: row for row in found["figure-6"]["rows"]}
    return [
        paired(
            f"η = {step}",
            100 * np.array(rows[f"10, η = {step}"]["misclassified"]),
            100 * np.array(rows[f"2, η = {step}"]["misclassified"]),
            form="{:+.1f} points",
        )
        for step in ("0.02", "0.005")
    ]


def _accuracy(found: Results, item: str, more: str, less: str) -> list[Effect]:
    rows = {row["label"]: row for row in found[item]["rows"]}
    return [
        paired(
            f"{more} instead of {less}",
            100 * np.array(rows[more]["accuracy"]),
            100 * np.array(rows[less]["accuracy"]),
            form="{:+.1f} points",
        )
    ]


def _rank(found: Results) -> list[Effect]:
    """Two points minus what rank 8 loses of full rank's accuracy; bytes to a goal."""
    (loss,) = _accuracy(found, "figure-9", "values, full rank", "values, R = 8")
    kept = Effect(
        "R = 8 keeps the accuracy to 2 points",
        [2.0 - value for value in loss.values],
        form="{:+.1f} points",
    )
    rows = {row["label"]: row for row in found["figure-9"]["rows"]}
    sent = paired(
        "R = 8 moves less until 45 %",
        _reached(rows["values, full rank"], "reached-bytes"),
        _reached(rows["values, R = 8"], "reached-bytes"),
        ratio=True,
        form="×{:.3g}",
    )
    return [kept, sent]


def _theorem(found: Results) -> list[Effect]:
    """How much faster than K^−0.9 the mean falls, and twice the gradients' mean."""
    results = found["theorem"]
    means = {name: np.array(runs)[:, -1] for name, runs in results["means"].items()}
    return [
        Effect(
            "at least as fast as 1/K, to 0.1 in the power",
            [-0.9 - slope for slope in slopes(results, "values")],
        ),
        paired(
            "at most twice the gradients' mean",
            2.0 * means["gradients"],
            means["values"],
            ratio=True,
            form="×{:.3g}",
        ),
    ]


# what is smaller than in the paper, and why
_CIFAR = (
    "CIFAR-10, its class and batch; two of five training batches, a CNN of 71.7 %, at "
    "most 20 clients, to save hours"
)
_MNIST = "MNIST, 32 hidden units (the paper gives none), at most 12 rounds"

CLAIMS = (
    Claim(
        "estimator",
        "leveraging the projection operator eliminates the need for sampling tangent "
        "random vectors, significantly reducing computation time",
        "section 5.1, figure 2",
        ("figure-2",),
        _cheaper,
        "a picture",
        "as the paper's",
        "time of an iteration with (6) over that with (7)",
    ),
    Claim(
        "local-updates",
        "demonstrating consistent performance across varying local update steps, "
        "client "
        "numbers, and batch sizes of the gradient estimator",
        "section 5.2, figure 4",
        ("figure-4",),
        _local_steps,
        "pictures",
        _CIFAR,
        "rounds until 40 % are misclassified, fewer over more local steps",
    ),
    Claim(
        "speedup",
        "our algorithm achieves the linear speedup property, with the convergence rate "
        "improving proportionally to the number of participating clients",
        "section 1.2, figure 5",
        ("figure-5",),
        _speedup,
        "in proportion",
        _CIFAR,
        "rounds with few clients over rounds with four times as many; 3 is ours",
    ),
    Claim(
        "directions",
        "Impact of the batch size in zeroth-order Riemannian gradient estimator.",
        "section 5.2, figure 6",
        ("figure-6",),
        _directions,
        "pictures",
        _CIFAR,
        "misclassified after 4 rounds with 10 directions minus with 2",
    ),
    Claim(
        "more-clients",
        "increasing the number of participating clients from 10 to 30 improves test "
        "accuracy",
        "section 5.3, figure 7",
        ("figure-7",),
        lambda found: _accuracy(found, "figure-7", "30", "10"),
        "pictures",
        _MNIST,
        "test accuracy with 30 clients minus with 10",
    ),
    Claim(
        "batch",
        "increasing the batch size from 5 to 100 reduces gradient bias",
        "section 5.3, figure 8",
        ("figure-8",),
        lambda found: _accuracy(found, "figure-8", "50", "5"),
        "pictures",
        _MNIST,
        "test accuracy with 50 directions minus with 5",
    ),
    Claim(
        "rank",
        "optimal rank selection strikes a near-optimal balance, reducing communication "
        "costs compared to full-rank models while maintaining accuracy",
        "section 5.3, figure 9",
        ("figure-9",),
        _rank,
        "pictures",
        _MNIST,
        "two points (ours) minus the accuracy lost; bytes until 45 % of full rank over "
        "those of rank 8",
    ),
    Claim(
        "theorem",
        "we establish sublinear convergence to an approximate first-order optimal "
        "solution under heterogeneous client data, matching the rate of its "
        "first-order "
        "counterpart",
        "section 1.2, theorem 4.1",
        ("theorem",),
        _theorem,
        "a theorem",
        "PCA of 1 797 digits, sorted by label over 10 clients; 300 rounds",
        "mean squared gradient map over K rounds, K from 100 to 300, after a plateau; "
        "0.1 and twice are ours",
    ),
)

PAPERS = (
    Paper(
        "Federated Learning on Riemannian Manifolds: A Gradient-Free Projection-Based "
        "Approach",
        "https://arxiv.org/abs/2507.22855",
        9,
        1,
        CLAIMS,
        (
            Exhibit("Figure 1", "Euclidean perturbation", note="a drawing"),
            Exhibit("Figure 2", "cost of the estimators", ("figure-2",)),
            Exhibit("Figure 3", "attacked images", ("figure-3",)),
            Exhibit("Figure 4", "attack: local updates", ("figure-4",)),
            Exhibit("Figure 5", "attack: clients", ("figure-5",)),
            Exhibit("Figure 6", "attack: directions", ("figure-6",)),
            Exhibit("Figure 7", "low rank: clients", ("figure-7",)),
            Exhibit("Figure 8", "low rank: directions", ("figure-8",)),
            Exhibit("Figure 9", "low rank: rank", ("figure-9",)),
            Exhibit("Table 1", "notations", note="symbols of a proof"),
        ),
    ),
)
