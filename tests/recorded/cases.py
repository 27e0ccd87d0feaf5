"""The runs that were recorded: old-style run configs, small enough to run them all.

``record`` reads this list; ``compare`` reads the cases in ``runs.json``, where each
stands with its result. The keys are flat, as they were in the version recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CASES"]

Config = dict[str, Any]

# Settings of the tasks that make them small.
SMALL: dict[str, Config] = {
    "digits": {},
    "lasso": {"lasso.rows": 40, "lasso.columns": 60, "lasso.nonzeros": 5},
    "quadratic-assignment": {},
    "matrix-completion": {},
    "classification": {
        "classification.train-limit": 300,
        "classification.test-limit": 100,
    },
    "linear-regression": {
        "linear-regression.features": 20,
        "linear-regression.rows-min": 10,
        "linear-regression.rows-max": 30,
    },
    "logistic-regression": {},
    "kernel-pca": {"kernel-pca.samples": 200},
    "low-rank-network": {
        "low-rank-network.train-limit": 200,
        "low-rank-network.test-limit": 100,
        "low-rank-network.hidden": 8,
        "low-rank-network.rank": 3,
    },
    "attack": {},
    "hybrid-svm": {
        "hybrid-svm.dataset": "breast-cancer",
        "hybrid-svm.train-limit": 60,
    },
    "hybrid-logistic": {
        "hybrid-logistic.dataset": "breast-cancer",
        "hybrid-logistic.train-limit": 60,
    },
}
HYBRID_METHODS = ("hyfdca", "hyfem", "hybrid-fedavg")
HYBRID_TASKS = ("hybrid-svm", "hybrid-logistic")
METHODS = (
    "fedfw",
    "naive-frank-wolfe",
    "projected-fedavg",
    "feddr",
    "fedgia",
    "fedavg-gd",
    "local-sgd",
    "fedprox",
    "first-order-rfl",
    "zeroth-order-rfl",
    *HYBRID_METHODS,
)
# What makes a method quick, or is needed for it to run at all.
QUICK: dict[str, Config] = {
    "projected-fedavg": {"local-steps": 2, "local-step-size": 0.05},
    "feddr": {"local-steps": 2, "local-step-size": 0.05},
    "fedavg-gd": {"local-steps": 3, "local-step-size": 0.05},
    "local-sgd": {"local-steps": 3, "local-step-size": 0.05},
    "fedprox": {"local-steps": 3, "local-step-size": 0.05},
    "first-order-rfl": {"local-steps": 3, "local-step-size": 0.01},
    "zeroth-order-rfl": {"local-steps": 2, "local-step-size": 0.01, "samples": 5},
    "hyfdca": {"encryption": "none"},
}

CASES: list[dict[str, Any]] = []


def case(
    method: str,
    task: str,
    name: str,
    config: Mapping[str, Any] | None = None,
    *,
    nodes: int = 4,
    rounds: int = 4,
    small: bool = True,
    **entries: Any,
) -> None:
    """Add a case; what is given wins over what makes the task small."""
    made: Config = {"method": method, "task": task, "rounds": rounds}
    if small:
        made |= SMALL.get(task, {}) | QUICK.get(method, {})
    made |= config or {}
    full = f"{method}/{task}/{name}"
    if any(other["name"] == full for other in CASES):
        raise ValueError(f"two cases are called {full}")
    CASES.append({"name": full, "config": made, "nodes": nodes, **entries})


def every_method_with_every_task() -> None:
    """One case each; those that do not fit say so in one line."""
    for method in METHODS:
        for task in SMALL:
            hybrid = method in HYBRID_METHODS
            if hybrid == (task in HYBRID_TASKS):
                case(method, task, "as-it-is")


def frank_wolfe() -> None:
    """Variants, schedules, sampling, noise, domains, products, losses."""
    for method in ("fedfw", "naive-frank-wolfe"):
        for schedule in ("convex", "nonconvex", "stochastic", "constant"):
            case(method, "lasso", f"schedule-{schedule}", {"schedule": schedule})
        half = {"participation": 0.5, "seed": 3}
        case(method, "lasso", "half", half, nodes=5, rounds=6)
        fixed = {**half, "sampling": "fixed"}
        case(method, "lasso", "half-fixed", fixed, nodes=5, rounds=6)
        outer = {"outer-domain": "l2-ball", "outer-fraction": 0.5}
        case(method, "lasso", "outer-l2-ball", outer)
    for schedule in ("convex", "nonconvex", "constant"):
        augmented = {"variant": "augmented", "schedule": schedule}
        case("fedfw", "lasso", f"augmented-{schedule}", augmented)
    case(
        "fedfw",
        "lasso",
        "augmented-dual",
        {"variant": "augmented", "dual-penalty": 2.0},
    )
    case(
        "fedfw", "lasso", "augmented-no-dual", {"variant": "augmented", "penalty": 0.0}
    )
    for schedule in ("stochastic", "constant"):
        stochastic = {"variant": "stochastic", "schedule": schedule, "batch-size": 4}
        case("fedfw", "lasso", f"stochastic-{schedule}", stochastic)
    case(
        "fedfw",
        "digits",
        "stochastic-half-fixed",
        {
            "variant": "stochastic",
            "schedule": "stochastic",
            "participation": 0.5,
            "sampling": "fixed",
        },
        nodes=5,
        rounds=6,
    )
    case(
        "fedfw",
        "digits",
        "augmented-half",
        {"variant": "augmented", "participation": 0.5},
    )
    case("fedfw", "lasso", "penalty-zero", {"penalty": 0.0})
    case("fedfw", "lasso", "step-size", {"schedule": "constant", "step-size": 0.3})
    case("fedfw", "lasso", "lmo-noise", {"lmo-noise": 0.1})
    case("fedfw", "digits", "lmo-noise", {"lmo-noise": 0.01})
    case(
        "fedfw",
        "lasso",
        "evaluations",
        {"evaluate-every": 2, "client-evaluate-every": 3},
    )
    case("fedfw", "lasso", "no-gap", {"evaluate-gap": False})
    case("fedfw", "lasso", "reference", {"reference": True})
    case("fedfw", "logistic-regression", "reference", {"reference": True})
    case("fedfw", "lasso", "early-stop", {"stop-metric": "gap", "stop-tolerance": 1e4})
    for outer in ("linf-ball", "nuclear-norm-ball", "l2-ball"):
        entries = {"outer-domain": outer, "outer-fraction": 0.5}
        case("fedfw", "digits", f"outer-{outer}", entries)
    small_domains: dict[str, Config] = {
        "l1-ball": {},
        "l2-ball": {},
        "linf-ball": {},
        "box": {"lower": -0.5, "upper": 0.5},
        "simplex": {"radius": 5.0},
        "k-support-ball": {"radius": 5.0, "sparsity": 3},
        "group-l1-ball": {"radius": 5.0, "group-size": 10},
        "nuclear-norm-ball": {},
        "spectral-norm-ball": {},
    }
    for domain, entries in small_domains.items():
        task = "digits" if domain.endswith("norm-ball") else "lasso"
        for method in ("fedfw", "projected-fedavg"):
            case(method, task, f"in-{domain}", {"domain": domain, **entries})
    case("feddr", "digits", "in-nuclear-norm-ball", {"domain": "nuclear-norm-ball"})
    network = {"classification.model": "dnn"}
    for layers in ("whole", "product"):
        for domain in ("l1-ball", "linf-ball"):
            entries = {**network, "layers": layers, "domain": domain}
            case("fedfw", "classification", f"dnn-{layers}-{domain}", entries)
    augmented = {**network, "layers": "product", "variant": "augmented"}
    case("fedfw", "classification", "dnn-product-augmented", augmented)
    case("projected-fedavg", "low-rank-network", "product", {"layers": "product"})


def tasks() -> None:
    """The tasks' own settings, with one method."""
    labels = {"digits.partition": "labels", "digits.labels-per-client": 4}
    case("fedfw", "digits", "labels", labels)
    case("fedfw", "digits", "dirichlet", {"digits.partition": "dirichlet", "seed": 2})
    case("fedfw", "lasso", "noise", {"lasso.noise": 0.1, "seed": 5})
    case("fedfw", "matrix-completion", "centred", {"matrix-completion.centred": True})
    validation = {"matrix-completion.validation-fraction": 0.2}
    case("fedfw", "matrix-completion", "validation", validation)
    for partition in ("natural", "labels", "dirichlet"):
        entries = {"classification.partition": partition}
        entries |= (
            {"classification.labels-per-client": 4} if partition == "labels" else {}
        )
        case("fedfw", "classification", partition, entries)
    validation = {"classification.validation-fraction": 0.3}
    case("fedfw", "classification", "validation", validation)
    by_kind = {"linear-regression.partition": "by-distribution"}
    case("fedgia", "linear-regression", "by-distribution", by_kind)
    examples = {"linear-regression.weighting": "examples"}
    case("fedgia", "linear-regression", "examples", examples)
    logistic: dict[str, Config] = {
        "uneven": {"partition": "uneven"},
        "labels": {"partition": "labels"},
        "dirichlet": {"partition": "dirichlet"},
        "unit-rows": {"scaling": "unit-rows"},
        "unit-columns": {"scaling": "unit-columns", "intercept": True},
        "unscaled": {"scaling": "none", "test-fraction": 0.0},
        "nonconvex": {"regularizer": "nonconvex"},
        "clients": {"weighting": "clients", "partition": "uneven"},
        "l2-per-example": {"l2": 0.1, "l2-per-example": True, "partition": "uneven"},
    }
    for name, entries in logistic.items():
        config = {f"logistic-regression.{key}": value for key, value in entries.items()}
        case("fedavg-gd", "logistic-regression", name, config)
    for name, entries in {
        "iris": {"kernel-pca.dataset": "iris", "kernel-pca.components": 2},
        "iid-unscaled": {"kernel-pca.partition": "iid", "kernel-pca.scale": False},
    }.items():
        case("first-order-rfl", "kernel-pca", name, entries)
    for name, network in {
        "full": {"low-rank-network.factored": False},
        "full-rank": {"low-rank-network.full-rank": True},
        "relu": {"low-rank-network.activation": "relu", "low-rank-network.l2": 0.01},
    }.items():
        case("first-order-rfl", "low-rank-network", name, network)
    clip = {"attack.clip": True, "attack.target-label": 5, "attack.confidence": 0.5}
    case("first-order-rfl", "attack", "clip", clip)
    matrices = {
        "t.dat": "3\n0 1 2\n1 0 3\n2 3 0\n0 5 2\n5 0 3\n2 3 0\n",
        "t.sln": "3 40\n2 1 3\n",
    }
    path = {"quadratic-assignment.path": "{files}/t.dat"}
    case("fedfw", "quadratic-assignment", "file", path, nodes=2, files=matrices)
    entries = "".join(
        f"{1 + u}\t{1 + i}\t{1 + (u * i + u) % 5}\t0\n"
        for u in range(9)
        for i in range(7)
        if (u + 2 * i) % 3
    )
    config = {"matrix-completion.path": "{files}/u.data", "radius": 20.0}
    case("fedfw", "matrix-completion", "file", config, files={"u.data": entries})
    rows = "".join(
        f"{i * i % 7},{(3 * i) % 11},{i % 4},{(i * 5) % 13}\n" for i in range(16)
    )
    config = {
        "kernel-pca.dataset": "file",
        "kernel-pca.path": "{files}/rows.csv",
        "kernel-pca.components": 2,
        "kernel-pca.samples": 0,
    }
    case("first-order-rfl", "kernel-pca", "file", config, files={"rows.csv": rows})


def nodes_own_data() -> None:
    """Every node has a file of its own."""

    def rows(node: int, label: Any) -> list[str]:
        return [
            f"{i},{(i * 7 + node) % 5 / 4},{(i * 3 + node) % 7 / 8},{label(i)}"
            for i in range(8 + node)
        ]

    def node_files(header: str, label: Any) -> Config:
        files = {f"{k}.csv": "\n".join([header, *rows(k, label), ""]) for k in range(3)}
        nodes = [{"data": f"{{files}}/{k}.csv"} for k in range(3)]
        return {"files": files, "node_configs": nodes, "nodes": 3}

    numbers = node_files("a,b,c,label", lambda i: i * i % 9 / 2)
    classes = node_files("a,b,c,label", lambda i: i % 2)
    own = {"data.feature-names": "a,b,c", "min-nodes": 3}
    for method in ("fedavg-gd", "fedgia"):
        config = {
            "linear-regression.dataset": "nodes",
            **own,
            "local-step-size": 0.01,
            "sigma-scale": 0.2,
        }
        case(method, "linear-regression", "nodes", config, small=False, **numbers)
    config = {"lasso.dataset": "nodes", **own, "radius": 2.0, "data.examples": 27}
    case("fedfw", "lasso", "nodes", config, small=False, **numbers)
    config = {"logistic-regression.dataset": "nodes", **own, "data.examples": 27}
    case("fedfw", "logistic-regression", "nodes", config, small=False, **classes)
    config = {"classification.dataset": "nodes", **own, "data.classes": 2}
    case("local-sgd", "classification", "nodes", config, small=False, **classes)
    config = {
        "kernel-pca.dataset": "nodes",
        "kernel-pca.scale": False,
        "kernel-pca.components": 2,
        "data.feature-names": "a,b,c",
        "min-nodes": 3,
        "local-step-size": 0.001,
    }
    case("first-order-rfl", "kernel-pca", "nodes", config, small=False, **classes)
    split = {
        "files": {
            f"{k}.csv": "\n".join(
                [
                    "id," + ",".join(own_columns) + ",label",
                    *(
                        f"s{i},"
                        + ",".join(str((i * j + k) % 9 / 8) for j in (2, 3))
                        + f",{i % 2 * 2 - 1}"
                        for i in range(10)
                        if (i + k) % 5
                    ),
                    "",
                ]
            )
            for k, own_columns in enumerate((["a", "b"], ["c", "d"]))
        },
        "node_configs": [{"data": f"{{files}}/{k}.csv"} for k in range(2)],
        "nodes": 2,
    }
    for method in HYBRID_METHODS:
        config = {
            "hybrid-logistic.dataset": "nodes",
            "hybrid-logistic.bias": 0.0,
            "data.feature-names": "a,b,c,d",
            "min-nodes": 2,
            "encryption": "none",
        }
        case(method, "hybrid-logistic", "nodes", config, small=False, **split)


def smooth_methods() -> None:
    """FedGiA, FedAvgGD, LocalSGD, FedProx, ProjectedFedAvg and FedDR."""
    for task in ("linear-regression", "logistic-regression"):
        for hessian in ("gram", "diagonal"):
            config = {"hessian": hessian, "selected-fraction": 1.0}
            case("fedgia", task, f"{hessian}-all", config)
            config = {"hessian": hessian, "participation": 0.5, "seed": 4}
            case("fedgia", task, f"{hessian}-half", config, nodes=5, rounds=6)
    for name, config in {
        "sigma": {"sigma": 0.5},
        "sigma-scale": {"sigma-scale": 3.0},
        "one-selected": {"selected-fraction": 0.01},
        "one-step": {"local-steps": 1},
        "curvature": {"curvature": 2.0},
        "loose": {"tolerance": 1.0, "rounds": 12},
        "no-tolerance": {"tolerance": 0.0},
        "half-fixed": {"participation": 0.5, "sampling": "fixed"},
    }.items():
        case("fedgia", "linear-regression", name, config, nodes=5)
    case("fedgia", "lasso", "gram", {"hessian": "gram"})
    for task in ("low-rank-network", "attack"):
        case("fedgia", task, "curvature", {"curvature": 10.0, "sigma": 1.0})
    for method in ("fedavg-gd", "local-sgd", "fedprox"):
        for schedule in ("log", "constant", "inverse-sqrt"):
            config = {"step-schedule": schedule, "local-step-size": 0.1}
            case(method, "linear-regression", f"steps-{schedule}", config)
        config = {"participation": 0.5, "sampling": "fixed", "seed": 1}
        case(method, "linear-regression", "half-fixed", config, nodes=5)
    case("local-sgd", "digits", "batch", {"batch-fraction": 0.3, "seed": 2})
    case("fedprox", "digits", "weight", {"proximal-weight": 0.5})
    case("fedprox", "digits", "no-weight", {"proximal-weight": 0.0})
    for method in ("projected-fedavg", "feddr"):
        case(method, "digits", "batch", {"local-batch-size": 16})
        case(method, "lasso", "without", {"domain": "whole-space"})
        half = {"participation": 0.5, "sampling": "fixed", "seed": 1}
        case(method, "lasso", "half-fixed", half, nodes=5, rounds=6)
    relaxed = {"relaxation": 1.0, "proximal-step": 2.0}
    case("feddr", "lasso", "relaxed", relaxed)


def riemannian() -> None:
    """First-order and zeroth-order federated learning on manifolds."""
    for method in ("first-order-rfl", "zeroth-order-rfl"):
        for name, config in {
            "no-correction": {"correction": False},
            "batch": {"local-batch-size": 8, "seed": 6},
            "server-step": {"server-step-size": 0.7},
            "half-fixed": {"participation": 0.5, "sampling": "fixed"},
            "half": {"participation": 0.5, "seed": 7},
            "stop": {"step-tolerance": 1e6},
        }.items():
            case(method, "kernel-pca", name, config, nodes=5)
        case(method, "low-rank-network", "batch", {"local-batch-size": 8})
    for upload in ("auto", "scalars", "dense"):
        for correction in (True, False):
            config = {"upload": upload, "correction": correction, "samples": 3}
            name = f"upload-{upload}" + ("" if correction else "-uncorrected")
            case("zeroth-order-rfl", "attack", name, config)
    config = {"shared-samples": False, "local-batch-size": 4}
    case("zeroth-order-rfl", "attack", "own-samples", config)
    case("zeroth-order-rfl", "attack", "smoothing", {"smoothing": 0.1})


def hybrid() -> None:
    """HyFDCA's steps, slots and sums, and its two baselines."""
    for step in ("bundle", "line-search", "practical", "theoretical"):
        for task in HYBRID_TASKS:
            config = {"dual-step": step, "local-fraction": 0.5, "seed": 1}
            case("hyfdca", task, step, config)
        config = {"dual-step": step, "slots": "chosen", "local-fraction": 0.3}
        case("hyfdca", "hybrid-svm", f"{step}-chosen", config)
        config = {"dual-step": step, "participation": 0.5, "seed": 2}
        case("hyfdca", "hybrid-svm", f"{step}-half", config, rounds=6)
    secure = {"secure-sum": True}
    variants: dict[str, Config] = {
        "memory": {"memory": 3, "rounds": 7},
        "parts": {"parts": 3},
        "secure-sum": secure,
        "secure-sum-line-search": {**secure, "dual-step": "line-search"},
        "half-fixed": {"participation": 0.5, "sampling": "fixed"},
        "cyclic": {
            "dual-step": "theoretical",
            "cyclic-groups": 2,
            "hybrid-svm.partition": "vertical",
        },
        "horizontal": {"hybrid-svm.partition": "horizontal"},
        "vertical": {"hybrid-svm.partition": "vertical"},
        "entries": {"hybrid-svm.partition": "entries"},
        "passes": {"hybrid-svm.partition": "horizontal", "local-passes": 2},
        "smoothed": {"hybrid-svm.loss": "smoothed-hinge", "hybrid-svm.smoothing": 0.5},
        "squared": {"hybrid-svm.loss": "squared", "hybrid-svm.row-scaling": "unit"},
        "first-labels": {"hybrid-svm.labels-on": "first", "hybrid-svm.bias": 0.0},
        "predictions": {"client-evaluate-every": 2},
        "reference": {"reference": True},
        "backup": {"backup-every": 2},
        "converges": {"gap-tolerance": 0.3, "rounds": 30, "hybrid-svm.loss": "squared"},
    }
    for name, config in variants.items():
        case("hyfdca", "hybrid-svm", name, config)
    # the lengths of ciphertexts vary a little with the random numbers in them
    bfv = {"encryption": "tenseal-bfv"}
    for name, config in {
        "encrypted": {},
        "encrypted-secure-sum": secure,
        "encrypted-practical": {"dual-step": "practical", "local-fraction": 0.5},
        "encrypted-theoretical": {"dual-step": "theoretical"},
    }.items():
        case(
            "hyfdca", "hybrid-svm", name, {**bfv, **config}, rounds=3, ciphertexts=True
        )
    shared: dict[str, Config] = {
        "horizontal": {"hybrid-svm.partition": "horizontal"},
        "vertical": {"hybrid-svm.partition": "vertical"},
        "half-fixed": {"participation": 0.5, "sampling": "fixed"},
        "step": {"local-steps": 2, "local-step-size": 0.5, "step-offset": 3.0},
    }
    for name, config in shared.items():
        case("hyfem", "hybrid-svm", name, config)
        case("hybrid-fedavg", "hybrid-svm", name, config)
    case("hyfem", "hybrid-logistic", "no-matching", {"matching": 0.0})
    case("hyfem", "hybrid-logistic", "matching", {"matching": 5.0})


def lossy() -> None:
    """Messages get lost, in this process's grid, by the seed."""
    faults: Config = {"request_loss": 0.15, "reply_loss": 0.15}
    for method, task in {
        "fedfw": "lasso",
        "naive-frank-wolfe": "lasso",
        "projected-fedavg": "lasso",
        "feddr": "lasso",
        "fedgia": "linear-regression",
        "fedavg-gd": "linear-regression",
        "local-sgd": "linear-regression",
        "fedprox": "linear-regression",
        "first-order-rfl": "kernel-pca",
        "zeroth-order-rfl": "kernel-pca",
        "hyfdca": "hybrid-svm",
        "hyfem": "hybrid-svm",
        "hybrid-fedavg": "hybrid-svm",
    }.items():
        case(method, task, "lossy", rounds=6, faults={**faults, "encode": True})
    worse: Config = {
        **faults,
        "wipe": 0.1,
        "crash": 0.1,
        "state_loss": 0.1,
        "late_reply": 0.1,
        "garbage": 0.1,
        "duplicate": 0.1,
    }
    for method, task, config in (
        ("fedfw", "lasso", {"variant": "augmented"}),
        ("fedgia", "linear-regression", {}),
        ("zeroth-order-rfl", "kernel-pca", {}),
        ("hyfdca", "hybrid-svm", {}),
        ("hyfdca", "hybrid-logistic", {"dual-step": "practical"}),
    ):
        case(method, task, "everything-goes-wrong", config, rounds=8, faults=worse)
    case("fedfw", "lasso", "nobody-answers", rounds=8, faults={"reply_loss": 1.0})


def errors() -> None:
    """Run configs that are refused."""
    # (method, task, settings)
    wrong: list[tuple[str, str, Config]] = [
        ("fedgai", "digits", {}),
        ("fedfw", "digitz", {}),
        ("fedfw", "digits", {"rounds": 0}),
        ("fedfw", "digits", {"rounds": 2.5}),
        ("fedfw", "digits", {"rounds": "5"}),
        ("fedfw", "digits", {"seed": -1}),
        ("fedfw", "digits", {"radius": -1.0}),
        ("fedfw", "digits", {"radius": "wide"}),
        ("fedfw", "digits", {"domain": "simplex"}),
        ("fedfw", "digits", {"domain": "l3-ball"}),
        ("fedfw", "digits", {"domain": "birkhoff-polytope"}),
        ("fedfw", "lasso", {"domain": "nuclear-norm-ball"}),
        ("fedfw", "lasso", {"domain": "box", "lower": 1.0, "upper": -1.0}),
        ("fedfw", "lasso", {"domain": "group-l1-ball", "radius": 1.0, "group-size": 7}),
        (
            "fedfw",
            "lasso",
            {"domain": "k-support-ball", "radius": 1.0, "sparsity": 500},
        ),
        ("fedfw", "quadratic-assignment", {"radius": 2.0}),
        ("fedfw", "digits", {"domain": "whole-space"}),
        ("fedfw", "digits", {"layers": "split"}),
        ("fedfw", "digits", {"outer-domain": "l2-ball"}),
        ("fedfw", "digits", {"outer-domain": "ball", "outer-fraction": 0.5}),
        ("fedgia", "digits", {"outer-domain": "l2-ball", "outer-fraction": 0.5}),
        ("fedfw", "digits", {"evaluate-every": 0}),
        ("fedfw", "digits", {"evaluate-gap": "yes"}),
        ("fedfw", "digits", {"stop-metric": "gapp"}),
        ("fedfw", "digits", {"timeout": 0.0}),
        ("fedfw", "digits", {"log-format": "xml"}),
        ("fedfw", "digits", {"resume": "runs/1"}),
        ("fedfw", "digits", {"resume": "/nowhere/runs/1"}),
        ("fedfw", "digits", {"participation": 0.0}),
        ("fedfw", "digits", {"sampling": "poisson"}),
        ("fedfw", "digits", {"variant": "plus"}),
        ("fedfw", "digits", {"schedule": "linear"}),
        ("fedfw", "digits", {"penalty": -0.5}),
        ("fedfw", "digits", {"penalty": -2.0}),
        ("fedfw", "digits", {"dual-penalty": -0.5}),
        ("fedfw", "digits", {"step-size": 1.5}),
        ("fedfw", "digits", {"averaging": 0.0}),
        ("fedfw", "digits", {"batch-size": 0}),
        ("fedfw", "digits", {"lmo-noise": -1.0}),
        ("fedfw", "digits", {"lmo-noise": float("inf")}),
        ("fedfw", "quadratic-assignment", {"reference": True}),
        ("fedfw", "digits", {"data.features": 3}),
        ("fedfw", "digits", {"digits.partition": "random"}),
        (
            "fedfw",
            "digits",
            {"digits.partition": "labels", "digits.labels-per-client": 11},
        ),
        ("fedfw", "digits", {"digits.alpha": 0.0}),
        ("fedfw", "lasso", {"lasso.nonzeros": 500}),
        ("fedfw", "matrix-completion", {"matrix-completion.path": "/nowhere/u.data"}),
        ("fedfw", "matrix-completion", {"matrix-completion.dataset": "nodes"}),
        ("fedfw", "classification", {"classification.dataset": "mnist"}),
        ("fedfw", "classification", {"classification.model": "cnn"}),
        ("fedfw", "linear-regression", {"linear-regression.rows-min": 200}),
        ("fedfw", "linear-regression", {"linear-regression.dataset": "nodes"}),
        ("fedfw", "logistic-regression", {"logistic-regression.dataset": "qsar"}),
        ("fedfw", "logistic-regression", {"logistic-regression.test-fraction": 0.95}),
        ("first-order-rfl", "kernel-pca", {"kernel-pca.components": 65}),
        ("first-order-rfl", "kernel-pca", {"kernel-pca.dataset": "file"}),
        ("first-order-rfl", "low-rank-network", {"low-rank-network.rank": 50}),
        ("first-order-rfl", "attack", {"attack.target-label": 12}),
        ("first-order-rfl", "digits", {"reference": True}),
        ("first-order-rfl", "digits", {"step-tolerance": -1.0}),
        ("zeroth-order-rfl", "kernel-pca", {"domain": "l2-ball"}),
        ("zeroth-order-rfl", "kernel-pca", {"samples": 0}),
        ("zeroth-order-rfl", "kernel-pca", {"smoothing": 0.0}),
        ("zeroth-order-rfl", "kernel-pca", {"upload": "sparse"}),
        ("fedgia", "digits", {"domain": "l1-ball"}),
        ("fedgia", "digits", {"radius": 2.0}),
        ("fedgia", "linear-regression", {"hessian": "gramm"}),
        ("fedgia", "linear-regression", {"selected-fraction": 0.0}),
        ("fedgia", "linear-regression", {"sigma": -1.0}),
        ("fedgia", "linear-regression", {"tolerance": -1.0}),
        ("fedgia", "linear-regression", {"curvature": -1.0}),
        ("fedavg-gd", "linear-regression", {"local-steps": 0}),
        ("fedavg-gd", "linear-regression", {"step-schedule": "linear"}),
        ("local-sgd", "linear-regression", {"batch-fraction": 0.0}),
        ("fedprox", "linear-regression", {"proximal-weight": -1.0}),
        ("feddr", "lasso", {"relaxation": 2.0}),
        ("feddr", "lasso", {"proximal-step": 0.0}),
        ("projected-fedavg", "lasso", {"local-batch-size": -1}),
        ("hyfdca", "digits", {}),
        ("fedfw", "hybrid-svm", {}),
        ("hyfdca", "hybrid-svm", {"domain": "l1-ball"}),
        ("hyfdca", "hybrid-svm", {"hybrid-svm.regularization": 0.0}),
        ("hyfdca", "hybrid-svm", {"hybrid-svm.partition": "file"}),
        ("hyfdca", "hybrid-svm", {"dual-step": "bundel"}),
        ("hyfdca", "hybrid-svm", {"memory": 2}),
        ("hyfdca", "hybrid-svm", {"local-fraction": 1.5}),
        ("hyfdca", "hybrid-svm", {"cyclic-groups": 2}),
        ("hyfdca", "hybrid-svm", {"secure-sum": True, "dual-step": "practical"}),
        ("hyfdca", "hybrid-svm", {"secure-sum": True, "local-passes": 1}),
        ("hyfdca", "hybrid-svm", {"slots": "some"}),
        ("hyfdca", "hybrid-svm", {"parts": 0}),
        ("hyfdca", "hybrid-svm", {"context-file": "/nowhere/key"}),
        ("hyfdca", "hybrid-svm", {"encryption": "paillier"}),
        ("hyfem", "hybrid-svm", {"matching": -1.0}),
        ("hybrid-fedavg", "hybrid-svm", {"step-offset": -1.0}),
    ]
    for number, (method, task, config) in enumerate(wrong, 1):
        case(method, task, f"wrong-{number}", config, small=False)
    case("fedfw", "lasso", "too-many-clients", {"lasso.rows": 3}, small=False)
    chr12a = {"rounds": 2}
    case("fedfw", "quadratic-assignment", "too-many-clients", chr12a, nodes=200)
    many = {"hybrid-svm.train-limit": 2}
    case("hyfdca", "hybrid-svm", "too-many-clients", many, nodes=30)


def old_records() -> None:
    """Runs of eight rounds, and the same gone on with after the fourth.

    Interrupted in round 6; the folders beside this file have what they left.
    """
    half = {"rounds": 8, "checkpoint-every": 2, "participation": 0.6, "seed": 11}
    augmented = {"variant": "augmented", "schedule": "nonconvex"}
    keys: Config = {"node_configs": [{"key-file": "{files}/clients.key"}] * 4}
    shared: Config = {
        "context-file": "{files}/server.context",
        "local-fraction": 0.5,
        # where somebody is away in round 4, the others propose anew after a resumption
        "participation": 1.0,
    }
    iris = {"kernel-pca.dataset": "iris", "kernel-pca.components": 2}
    for method, task, config, entries in (
        ("fedfw", "lasso", augmented, {}),
        ("fedgia", "linear-regression", {"hessian": "gram"}, {}),
        ("zeroth-order-rfl", "kernel-pca", iris | {"kernel-pca.samples": 0}, {}),
        ("hyfdca", "hybrid-svm", shared, keys),
        ("hyfem", "hybrid-svm", {}, {}),
    ):
        folder = f"old_record_{method.replace('-', '_')}"
        for name, more in (("old", {}), ("old-resumed", {"resume": folder})):
            case(method, task, name, {**half, **config}, **entries, **more)


every_method_with_every_task()
frank_wolfe()
tasks()
nodes_own_data()
smooth_methods()
riemannian()
hybrid()
lossy()
errors()
old_records()
