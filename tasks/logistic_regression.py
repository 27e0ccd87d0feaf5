"""Logistic regression on tables of examples with two labels or more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.objectives import Logistic, MultinomialLogistic, Objective
from fedtrellis.objectives.base import MeanObjective
from fedtrellis.objectives.linear_models import NonconvexLogistic
from fedtrellis.random import generator
from fedtrellis.settings import need, setting

from .base import (
    DataFileError,
    Depending,
    Point,
    data_path,
    derived_seed,
    stratified,
    toy,
)
from .data.readers import is_dense, libsvm_table, read_csv, read_own_file
from .data.table import (
    FILE,
    NODES,
    Schema,
    Table,
    divide,
    fault,
    norms,
    scaled,
    with_constant,
)
from .data.task import Dealt, Indices, PartitionedTask, data_of, starts_of

_QSAR_FEATURES, _SANTANDER_FEATURES = 1024, 200
# How many labels a message lists.
_LISTED = 10


def load_qsar(path: Path) -> Table:
    """Load UCI's QSAR oral toxicity: 1 024 binary features, positive or negative.

    UCI's zip archive or the csv file in it: lines of 0 or 1 with ``;`` between and the
    label at their end, without a header. CSR features; class 1 for positive.

    Notes
    -----
    D. Ballabio, F. Grisoni, V. Consonni, R. Todeschini, "Integrated QSAR models to
    predict acute oral systemic toxicity", 2019.
    """
    names = tuple(f"bit-{j}" for j in range(1, _QSAR_FEATURES + 1))
    schema = Schema(0, names, "class", ("negative", "positive"))
    table = read_csv(path, schema, separator=";", header=(*names, "label"))
    wrong = np.argwhere((table.features != 0.0) & (table.features != 1.0))
    if len(wrong):
        row, column = (int(i) for i in wrong[0])
        fault(path, "must be 0 or 1", row + 1, names[column])
    return table._replace(features=scipy.sparse.csr_array(table.features))


def load_santander(path: Path) -> Table:
    """Load ``train.csv`` of Kaggle's Santander customer transaction prediction.

    The csv file or Kaggle's zip archive of it: a header
    ``ID_code,target,var_0,…,var_199`` and lines of an identifier, which is not used,
    the label 0 or 1 and 200 numbers. Dense features.
    """
    names = tuple(f"var_{j}" for j in range(_SANTANDER_FEATURES))
    schema = Schema(0, names, "class", ("0", "1"), "target", ignored=("ID_code",))
    return read_csv(path, schema)


def load_libsvm(path: Path) -> Table:
    """Load examples with two labels in LIBSVM's text format, whatever its name.

    The smaller of the two labels becomes 0, the larger 1. CSR features, as many as the
    largest index says.
    """
    return _with_labels(path, libsvm_table(path, Schema(0, target="class")), 2)


def _with_labels(path: str | Path, table: Table, classes: int) -> Table:
    labels = [f"{x:g}" if isinstance(x, float) else x for x in table.labels]
    if len(labels) != classes:
        more = "" if len(labels) <= _LISTED else f" and {len(labels) - _LISTED} more"
        raise DataFileError(
            f"{path}: the labels are {', '.join(labels[:_LISTED])}{more}; there must "
            f"be exactly {'two' if classes == 2 else classes}"
        )
    return table


_LOADERS = {"qsar": load_qsar, "santander": load_santander, "libsvm": load_libsvm}
# Sets that stay sparse, beside a file in LIBSVM's format.
_SPARSE = ("qsar", "libsvm")

_SCHEDULE = Depending(
    "nonconvex if the regularizer is, else nothing",
    lambda task, given: None if task.convex else "nonconvex",
)


@dataclass(frozen=True)
class LogisticRegression(PartitionedTask):
    """The mean logistic loss over training examples, plus a regulariser.

    ``regularizer = "l2"``: f_i is weight times the mean over the client's d_i examples
    of ln(1 + exp(aᵀx)) − b aᵀx, plus (μ/2)‖x‖² with μ = ``l2``;
    ``regularizer = "nonconvex"``: with (μ/2) Σ x_j²/(1 + x_j²) instead.

    ``weighting = "examples"``: weight n·d_i/d, so that F = (1/n) Σ f_i is the mean over
    all training examples; ``weighting = "clients"``: weight 1, F = (1/n) Σ f_i counts
    every client the same. Either way the regulariser counts once.

    Data sets: ``breast-cancer`` comes with scikit-learn (569 × 30), the others are the
    user's files: ``qsar`` (UCI's QSAR oral toxicity, 8 992 × 1 024, sparse),
    ``santander`` (Kaggle's, 200 000 × 200) and ``file``, any csv or npz file with
    ``classes`` labels, or one in LIBSVM's text format, which is sparse (``libsvm``, of
    any name, with two). The smallest label, or the first in the alphabet, is 0.

    With more than two classes the loss is the cross-entropy of a linear softmax, and
    the model one array of shape (features, classes).

    Scaling: ``unit-rows`` and ``unit-columns`` divide by Euclidean norms, ``standard``
    gives every feature zero mean and unit variance; ``auto`` is ``standard`` for
    breast-cancer and csv and npz files, ``unit-rows`` for the others. Columns are
    measured on the training examples, and on all of them: real clients would have to
    agree on that. The column of ones of ``intercept``, the last one, comes after
    scaling and is regularised like the others.

    Notes
    -----
    Example V.2 of FedGiA, arXiv 2205.01438: *qot* (qsar) and *sct* (santander), l2,
    μ = 0.001, every client counting the same. The paper does not say how it scales
    its data or whether it has test data; the authors' public code has columns of norm
    1, uneven shares, and μ/d_i instead of μ.
    """

    name = "logistic-regression"
    summary = "logistic regression: breast cancer, QSAR, Santander, a file"
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedfw": {"schedule": _SCHEDULE},
        "naive-frank-wolfe": {"schedule": _SCHEDULE},
    }
    not_on_nodes = (*PartitionedTask.not_on_nodes, "weighting", "classes")
    node_labels: ClassVar[tuple[str, ...]] = ("0", "1")

    # There are two labels: a base class's 3 would never do.
    labels_per_client: int = setting(
        1, "labels a client holds, with partition = 'labels'", minimum=1
    )
    dataset: str = setting(
        "breast-cancer",
        "the data set; 'file': a csv, npz or LIBSVM file; 'libsvm': the last, of any "
        "name and with two labels; 'nodes': every node's own file",
        choices=("breast-cancer", FILE, *_LOADERS, NODES),
    )
    path: str = setting("", "the data set's file", only={"dataset": (FILE, *_LOADERS)})
    classes: int = setting(
        2,
        "labels in your file; more than two: multinomial logistic regression",
        minimum=2,
        only={"dataset": (FILE,)},
    )
    partition: str = setting(
        "iid",
        "how examples are dealt to clients; 'uneven': shuffled, cut in random places",
        choices=("iid", "uneven", "labels", "dirichlet"),
    )
    l2: float = setting(0.001, "μ, the factor of the regulariser", minimum=0.0)
    l2_per_example: bool = setting(
        False, "μ/d_i in the place of μ, d_i the client's number of examples"
    )
    regularizer: str = setting(
        "l2",
        "the regulariser: the squared norm or a bounded one that is not convex",
        choices=("l2", "nonconvex"),
    )
    scaling: str = setting(
        "auto",
        "how features are scaled",
        choices=("auto", "none", "unit-rows", "unit-columns", "standard"),
    )
    intercept: bool = setting(False, "add a constant feature of ones")
    test_fraction: float = setting(
        0.2,
        "share of the examples kept for testing; 0 for none",
        minimum=0.0,
        maximum=0.9,
    )
    weighting: str = setting(
        "examples",
        "what counts the same: every example, or every client",
        choices=("examples", "clients"),
    )

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether F is convex, which its regulariser decides."""
        return self.regularizer == "l2" or self.l2 == 0.0

    def check_settings(self) -> None:  # noqa: D102
        _scaling(self)
        if self.classes > 2 and self.regularizer != "l2":
            why = f"does not fit logistic-regression.classes = {self.classes}"
            raise self.refused("regularizer", f"{why}; allowed: l2")

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features() + self.intercept,)]
        features = data_of(self).features.shape[1]
        return [(features,) if self.classes == 2 else (features, self.classes)]

    def domains(self) -> dict[str, float]:  # noqa: D102
        return {"l1-ball": 10.0, "l2-ball": 5.0, "linf-ball": 1.0}

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"accuracy"`` on the test examples.

        Without any, ``"train-accuracy"`` on the training examples.
        """
        if len(data_of(self).test_targets):
            return super().metrics(x)
        measures = self.objective().metrics(self.argument(x))
        return {"train-accuracy": measures["accuracy"]}

    def deal(self, labels: NDArray[Any]) -> list[Indices]:
        """Deal examples to the clients; ``uneven`` cuts a random order at random.

        No share is below a fortieth of the mean, as in the FedGiA authors' code.
        """
        if self.partition != "uneven":
            return super().deal(labels)
        self.check_clients(len(labels), "examples")
        rng = generator(self.seed, "partition")
        order = rng.permutation(len(labels))
        least = 0.025 * len(labels) / self.num_clients
        # the authors draw all cuts again until no share is too small, which for many
        # clients takes for ever: here every share has its least, the rest is cut
        spare = len(labels) - self.num_clients * math.ceil(least)
        cuts = np.sort(rng.integers(0, spare + 1, self.num_clients - 1))
        sizes = np.diff([0, *cuts, spare]) + math.ceil(least)
        return np.split(order, np.cumsum(sizes)[:-1])

    def _loss(
        self, features: Any, targets: Any, weight: float, examples: float = 1.0
    ) -> Logistic | MultinomialLogistic:
        l2 = self.l2 / examples if self.l2_per_example else self.l2
        if self.classes > 2:
            # the data have the constant feature of an intercept already
            return MultinomialLogistic(
                features, targets, self.classes, intercept=False, l2=l2, weight=weight
            )
        kind = Logistic if self.regularizer == "l2" else NonconvexLogistic
        return kind(features, targets, l2=l2, weight=weight)

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        return self._loss(features, targets, weight, len(targets))

    def _build_objective(self) -> Objective:
        if self.weighting == "clients":
            clients = range(self.num_clients)
            return MeanObjective([self.client_objective(i) for i in clients])
        data = data_of(self)
        # (1/n) Σ (n d_i/d) (μ/d_i) = n μ/d
        examples = len(data.targets) / self.num_clients
        return self._loss(data.features, data.targets, 1.0, examples)

    def _node_inputs(self, features: Any) -> Any:
        if _scaling(self) == "unit-rows":
            features = divide(features.copy(), norms(features, 0), 0)
        return with_constant(features) if self.intercept else features

    def _load(self) -> Dealt:
        table = _table(self)
        labels = table.targets.astype(np.intp)
        train, test = _split(self, labels)
        shares = self.deal(labels[train])
        order, starts = train[np.concatenate(shares)], starts_of(shares)
        # copies, so that they can be scaled in place
        parts = table.features[order], table.features[test]
        parts = scaled(*parts, _scaling(self))
        if self.intercept:
            parts = with_constant(parts[0]), with_constant(parts[1])
        return Dealt(parts[0], labels[order], starts, parts[1], labels[test])


def _scaling(task: LogisticRegression) -> str:
    """Return the scaling that ``auto`` stands for, or the one that was chosen."""
    dense_file = task.on_file and is_dense(task.path)
    sparse = task.dataset in _SPARSE or (task.on_file and not dense_file)
    dense = dense_file or task.dataset == "breast-cancer"
    auto = "standard" if dense else "unit-rows"
    left_out, why = (["standard"], ", which is sparse and would not stay so")
    if task.on_nodes:
        left_out, auto = ["standard", "unit-columns"], "none"
        why = ": it is measured on the examples of all nodes"
    if (sparse or task.on_nodes) and task.scaling in left_out:
        every = ("auto", "none", "unit-columns", "unit-rows")
        allowed = ", ".join(name for name in every if name not in left_out)
        raise task.refused(
            "scaling",
            f"does not fit logistic-regression.dataset = {task.dataset!r}{why}; "
            f"allowed: {allowed}",
        )
    return auto if task.scaling == "auto" else task.scaling


def _table(task: LogisticRegression) -> Table:
    if task.on_file:
        column = task.nodes.label_column
        table = read_own_file("logistic-regression.path", task.path, "class", column)
        return _with_labels(task.path, table, task.classes)
    if task.dataset in _LOADERS:
        path = data_path("logistic-regression.path", task.path)
        return _LOADERS[task.dataset](path)
    what = "logistic-regression.dataset = 'breast-cancer'"
    features, labels = toy("breast_cancer", what)
    return Table(features, labels.astype(np.float64))


def _split(task: LogisticRegression, labels: Indices) -> tuple[Indices, Indices]:
    """Return the training and the test examples, stratified by label."""
    everything = np.arange(len(labels))
    if task.test_fraction == 0.0:
        return everything, everything[:0]
    need("sklearn", "logistic-regression.test-fraction", "sklearn")
    seed = derived_seed(task.seed, "logistic-regression split")
    try:
        train, test = stratified(labels, task.test_fraction, seed)
    except ValueError as error:
        counts = np.bincount(labels, minlength=2)
        found = f"{counts[0]} and {counts[1]} examples of the labels 0 and 1"
        if task.classes > 2:
            found = f"{task.classes} labels, one of {counts.min()} examples"
        why = f"does not suit {found}: training and test data need some of each"
        raise task.refused("test_fraction", why) from error
    return train, test
