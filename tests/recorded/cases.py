"""The runs that were recorded: old-style run configs, small enough to run them all.

``record`` reads this list; ``compare`` reads the cases in ``runs.json``, where each
stands with its result. The keys are flat, as they were in the version recorded. One
list, as long as the methods and tasks have variants.

Not here, as their files are not in the repository: MNIST, EMNIST, CIFAR-10, covtype,
QSAR and Santander. Of LIBSVM's, QAPLIB's and MovieLens's formats there are small files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.recorded.refused import REFUSED

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


def variants(
    method: str, task: str, configs: Mapping[str, Config], **entries: Any
) -> None:
    """Add cases that differ in a few settings, by the names of these cases."""
    for name, config in configs.items():
        case(method, task, name, config, **entries)


def every_method_with_every_task() -> None:
    """One case each; those that do not fit say so in one line."""
    for method in METHODS:
        for task in SMALL:
            hybrid = method in HYBRID_METHODS
            if hybrid == (task in HYBRID_TASKS):
                # with longer steps it would go nowhere
                short = (method, task) == ("zeroth-order-rfl", "lasso")
                case(
                    method, task, "as-it-is", {"local-step-size": 1e-4} if short else {}
                )


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
        augmented: Config = {"variant": "augmented", "schedule": schedule}
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
    for ball in ("linf-ball", "nuclear-norm-ball", "l2-ball"):
        larger = {"outer-domain": ball, "outer-fraction": 0.5}
        case("fedfw", "digits", f"outer-{ball}", larger)
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
    for domain, limits in small_domains.items():
        task = "digits" if domain.endswith("norm-ball") else "lasso"
        for method in ("fedfw", "projected-fedavg"):
            case(method, task, f"in-{domain}", {"domain": domain, **limits})
    case("feddr", "digits", "in-nuclear-norm-ball", {"domain": "nuclear-norm-ball"})
    network = {"classification.model": "dnn"}
    for layers in ("whole", "product"):
        for domain in ("l1-ball", "linf-ball"):
            sets = {**network, "layers": layers, "domain": domain}
            case("fedfw", "classification", f"dnn-{layers}-{domain}", sets)
    augmented = {**network, "layers": "product", "variant": "augmented"}
    case("fedfw", "classification", "dnn-product-augmented", augmented)
    case("projected-fedavg", "low-rank-network", "product", {"layers": "product"})


def tasks() -> None:
    """The tasks' own settings, with one method."""
    config: Config
    labels = {"digits.partition": "labels", "digits.labels-per-client": 4}
    case("fedfw", "digits", "labels", labels)
    case("fedfw", "digits", "dirichlet", {"digits.partition": "dirichlet", "seed": 2})
    case("fedfw", "lasso", "noise", {"lasso.noise": 0.1, "seed": 5})
    case("fedfw", "matrix-completion", "centred", {"matrix-completion.centred": True})
    validation = {"matrix-completion.validation-fraction": 0.2}
    case("fedfw", "matrix-completion", "validation", validation)
    for partition in ("natural", "labels", "dirichlet"):
        by_labels: Config = {"classification.partition": partition}
        if partition == "labels":
            by_labels["classification.labels-per-client"] = 4
        case("fedfw", "classification", partition, by_labels)
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
        config = {f"logistic-regression.{key}": v for key, v in entries.items()}
        case("fedavg-gd", "logistic-regression", name, config)
    matrix: dict[str, Config] = {
        "iris": {"kernel-pca.dataset": "iris", "kernel-pca.components": 2},
        "iid-unscaled": {"kernel-pca.partition": "iid", "kernel-pca.scale": False},
    }
    variants("first-order-rfl", "kernel-pca", matrix)
    network: dict[str, Config] = {
        "full": {"low-rank-network.factored": False},
        "full-rank": {"low-rank-network.full-rank": True},
        "relu": {"low-rank-network.activation": "relu", "low-rank-network.l2": 0.01},
    }
    variants("first-order-rfl", "low-rank-network", network)
    clip = {"attack.clip": True, "attack.target-label": 5, "attack.confidence": 0.5}
    case("first-order-rfl", "attack", "clip", clip)
    matrices = {
        "t.dat": "3\n0 1 2\n1 0 3\n2 3 0\n0 5 2\n5 0 3\n2 3 0\n",
        "t.sln": "3 40\n2 1 3\n",
    }
    path = {"quadratic-assignment.path": "{files}/t.dat"}
    case("fedfw", "quadratic-assignment", "file", path, nodes=2, files=matrices)
    ratings = "".join(
        f"{1 + u}\t{1 + i}\t{1 + (u * i + u) % 5}\t0\n"
        for u in range(9)
        for i in range(7)
        if (u + 2 * i) % 3
    )
    config = {"matrix-completion.path": "{files}/u.data", "radius": 20.0}
    case("fedfw", "matrix-completion", "file", config, files={"u.data": ratings})
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


def libsvm_files() -> None:
    """LIBSVM's text, whole and spoilt."""
    lines = [
        f"{2 * (i * i % 3 > 0) - 1} "
        + " ".join(f"{j}:{(i * j) % 11 / 8}" for j in range(1, 9) if (i + j) % 3)
        for i in range(14)
    ]
    whole = "\n".join([*lines, ""])
    table: Config = {
        "logistic-regression.dataset": "libsvm",
        "logistic-regression.path": "{files}/rows.txt",
    }
    files = {"rows.txt": whole}
    for hessian in ("gram", "diagonal"):
        config = table | {"hessian": hessian}
        case("fedgia", "logistic-regression", f"libsvm-{hessian}", config, files=files)
    case("fedfw", "logistic-regression", "libsvm", table, files=files)
    intercept = {"logistic-regression.intercept": True}
    config = table | intercept | {"logistic-regression.scaling": "unit-columns"}
    case("fedavg-gd", "logistic-regression", "libsvm", config, files=files)
    for dataset in ("a9a", "news20"):
        for method in HYBRID_METHODS:
            config = {
                "hybrid-svm.dataset": dataset,
                "hybrid-svm.path": "{files}/rows.txt",
                "hybrid-svm.train-limit": 0,
            }
            case(method, "hybrid-svm", dataset, config, files=files)
    for name, line in {
        "no-number": "1 2:x",
        "index-0": "1 0:1.0",
        "index-falls": "1 3:1.0 2:1.0",
        "index-twice": "1 3:1.0 3:1.0",
        "no-index": "1 1.0",
        "no-label": "2:1.0",
        "not-finite": "1 2:nan",
        "third-label": "7 2:1.0",
    }.items():
        spoilt = {"rows.txt": "\n".join([*lines[:3], line, ""])}
        case("fedfw", "logistic-regression", f"libsvm-{name}", table, files=spoilt)


def nodes_own_data() -> None:
    """Every node has a file of its own."""
    config: Config

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
    for name, text in {
        "other-columns": "a,b,d,label\n1,2,3,1\n",
        "no-label": "a,b,c\n1,2,3\n",
        "no-number": "a,b,c,label\n1,2,x,1\n",
        "short-row": "a,b,c,label\n1,2,1\n",
        "third-label": "a,b,c,label\n1,2,3,7\n",
        "empty": "",
    }.items():
        spoilt = classes | {"files": classes["files"] | {"1.csv": text}}
        case("fedfw", "logistic-regression", name, config, small=False, **spoilt)
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
    split: Config = {
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
    config: Config
    for task in ("linear-regression", "logistic-regression"):
        for hessian in ("gram", "diagonal"):
            config = {"hessian": hessian, "selected-fraction": 1.0}
            case("fedgia", task, f"{hessian}-all", config)
            config = {"hessian": hessian, "participation": 0.5, "seed": 4}
            case("fedgia", task, f"{hessian}-half", config, nodes=5, rounds=6)
    admm: dict[str, Config] = {
        "sigma": {"sigma": 0.5},
        "sigma-scale": {"sigma-scale": 3.0},
        "one-selected": {"selected-fraction": 0.01},
        "one-step": {"local-steps": 1},
        "curvature": {"curvature": 2.0},
        "loose": {"tolerance": 1.0, "rounds": 12},
        "no-tolerance": {"tolerance": 0.0},
        "half-fixed": {"participation": 0.5, "sampling": "fixed"},
    }
    variants("fedgia", "linear-regression", admm, nodes=5)
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
        components: dict[str, Config] = {
            "no-correction": {"correction": False},
            "batch": {"local-batch-size": 8, "seed": 6},
            "server-step": {"server-step-size": 0.7},
            "half-fixed": {"participation": 0.5, "sampling": "fixed"},
            "half": {"participation": 0.5, "seed": 7},
            "stop": {"step-tolerance": 1e6},
        }
        variants(method, "kernel-pca", components, nodes=5)
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
    secure: Config = {"secure-sum": True}
    one_each: dict[str, Config] = {
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
    variants("hyfdca", "hybrid-svm", one_each)
    # the lengths of ciphertexts vary a little with the random numbers in them; and SEAL
    # draws its keys, from which follows what is mixed at random for secure sums
    bfv: Config = {"encryption": "tenseal-bfv"}
    encrypted: dict[str, Config] = {
        "encrypted": bfv,
        "encrypted-practical": bfv | {"dual-step": "practical", "local-fraction": 0.5},
        "encrypted-theoretical": bfv | {"dual-step": "theoretical"},
    }
    variants("hyfdca", "hybrid-svm", encrypted, rounds=3, ciphertexts=True)
    shared: dict[str, Config] = {
        "horizontal": {"hybrid-svm.partition": "horizontal"},
        "vertical": {"hybrid-svm.partition": "vertical"},
        "half-fixed": {"participation": 0.5, "sampling": "fixed"},
        "step": {"local-steps": 2, "local-step-size": 0.5, "step-offset": 3.0},
    }
    variants("hyfem", "hybrid-svm", shared)
    variants("hybrid-fedavg", "hybrid-svm", shared)
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
    for number, (method, task, config) in enumerate(REFUSED, 1):
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
    half: Config = {
        "rounds": 8,
        "checkpoint-every": 2,
        "participation": 0.6,
        "seed": 11,
    }
    augmented: Config = {"variant": "augmented", "schedule": "nonconvex"}
    key = {"key-file": "{files}/clients.key", "exposed": "accept"}
    keys: Config = {"node_configs": [key] * 4}
    shared: Config = {
        "context-file": "{files}/server.context",
        "local-fraction": 0.5,
        # where somebody is away in round 4, the others propose anew after a resumption
        "participation": 1.0,
    }
    iris: Config = {"kernel-pca.dataset": "iris", "kernel-pca.components": 2}
    runs: list[tuple[str, str, Config, Config]] = [
        ("fedfw", "lasso", augmented, {}),
        ("fedgia", "linear-regression", {"hessian": "gram"}, {}),
        ("zeroth-order-rfl", "kernel-pca", iris | {"kernel-pca.samples": 0}, {}),
        ("hyfdca", "hybrid-svm", shared, keys),
        ("hyfem", "hybrid-svm", {}, {}),
    ]
    for method, task, config, entries in runs:
        folder = f"old_record_{method.replace('-', '_')}"
        case(method, task, "old", half | config, **entries)
        case(method, task, "old-resumed", half | config, resume=folder, **entries)


every_method_with_every_task()
frank_wolfe()
tasks()
libsvm_files()
nodes_own_data()
smooth_methods()
riemannian()
hybrid()
lossy()
errors()
old_records()
