"""Linear models whose clients hold different samples and different features.

What the tasks ``hybrid-svm`` and ``hybrid-logistic`` share: all but the loss.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray

from fedtrellis.dual.regularized_loss import Optimum, RegularizedLoss, central_optimum
from fedtrellis.objectives import Objective
from fedtrellis.objectives.losses import Loss
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Point, data_path
from .hybrid_data import DATASETS
from .hybrid_partition import (
    Share,
    column_groups,
    deal_blocks,
    deal_entries,
    group_counts,
    quadrants,
    sample_groups,
    selected_entries,
)
from .hybrid_partition_file import read_partition_file
from .hybrid_samples import Samples, load_samples
from .node_settings import NODES, Schema
from .node_task import NodeDataTask

__all__ = ["ClientData", "HybridTask"]

FloatArray = NDArray[np.float64]


class ClientData(NamedTuple):
    """The entries that one client holds.

    Attributes
    ----------
    features : ndarray or scipy.sparse.csr_array of shape (n_k, p_k)
        float64; an entry of these samples and features that another client holds is 0.
    feature_names : tuple of str
        Of the p_k features, in the model's order.
    sample_ids : tuple of str
        Of the n_k samples: the numbers of their rows in the data set.
    labels : ndarray of shape (n_k,) or None
        −1 and +1, NaN for a sample whose label another client has; None: this client
        has no labels.
    """

    features: Any
    feature_names: tuple[str, ...]
    sample_ids: tuple[str, ...]
    labels: FloatArray | None


@dataclass(frozen=True)
class HybridTask(NodeDataTask):
    """A linear model of data that is split over the clients by samples and features.

    P(w) = (λ/2)‖w‖² + (1/N) Σ l(x_iᵀw; y_i) over all N training samples. It has no f_i:
    a client that holds some features of a sample has no loss of its own.

    Data sets and the labels made of their classes (``positive-class``: one class
    against the rest instead): ``digits``, pixels over 16, 5 and above against 0 to 4;
    ``breast-cancer``, standardised; the user's ``mnist``, pixels over 255, labelled
    like digits, whose own test images are the test data unless ``test-fraction`` is 0;
    ``covtype`` (UCI's or LIBSVM's file), scaled to [0, 1], class 2 against the rest;
    ``a9a`` (or any LIBSVM file with two labels); ``news20`` (LIBSVM's multi-class
    file), the upper half of the twenty classes against the lower. What scaling needs
    is measured on the training samples, all of them: real clients would have to agree
    on that, also on norms for ``row-scaling = "unit"``. The column ``bias`` comes
    after scaling and before the rows', is regularised like the others and belongs to
    the last feature group.

    Partitions, client s·Q + q of sample group s and feature group q: ``grid``,
    consecutive columns, but the images' quadrants for 4 feature groups of ``digits``
    and ``mnist``; ``entries``, 1/Q of every sample's non-zero entries, at random;
    ``horizontal``, one feature group; ``vertical``, one sample group; ``file``, the
    user's (:func:`tasks.hybrid_partition_file.read_partition_file`; its rows are the
    data set's, whatever part of them is test data, and its columns the model's). Test
    samples are dealt like the training samples, so that predictions can be tried.

    Notes
    -----
    HyFDCA, arXiv 2210.08106, sections 5 and 7.2: MNIST's quadrants with a bias of 10,
    λ = 10⁻³; News20 and Covtype by entries without a bias, λ = 10⁻⁵ and 5·10⁻⁵. Its
    News20 is LIBSVM's binary file, which has rows of norm 1, and how it makes MNIST's
    ten classes two is not said.
    """

    not_on_nodes: ClassVar[tuple[str, ...]] = (
        *("path", "positive_class", "partition", "sample_groups", "feature_groups"),
        *("partition_file", "test_fraction", "labels_on", "train_limit"),
    )

    dataset: str = setting(
        "digits",
        "the data set; 'nodes': every node's own file",
        choices=(*DATASETS, NODES),
    )
    path: str = setting(
        "", "the data set's file or folder; not for digits and breast-cancer"
    )
    positive_class: int = setting(
        -1,
        "the class that is told from all others; -1: the data set's rule",
        minimum=-1,
    )
    regularization: float = setting(1e-3, "λ, the factor of ½‖w‖²", above=0.0)
    partition: str = setting(
        "grid",
        "how samples and features are dealt to clients",
        choices=("grid", "entries", "horizontal", "vertical", "file"),
    )
    sample_groups: int = setting(
        0, "sample groups; 0: clients over feature groups", minimum=0
    )
    feature_groups: int = setting(
        0,
        "feature groups; 0: the largest divisor of the number of clients that is not "
        "above its root",
        minimum=0,
    )
    partition_file: str = setting(
        "", "the TOML or JSON file that says who holds what, with partition = 'file'"
    )
    row_scaling: str = setting(
        "none", "how rows are scaled; 'unit': to norm 1", choices=("none", "unit")
    )
    bias: float = setting(
        1.0, "the value of a constant feature; 0 for none", minimum=0.0
    )
    test_fraction: float = setting(
        0.2,
        "share of the samples kept for testing; 0 for none",
        minimum=0.0,
        maximum=0.9,
    )
    labels_on: str = setting(
        "all",
        "who has a sample's label; 'first': only the first client that holds it",
        choices=("all", "first"),
    )
    train_limit: int = setting(
        0, "the most training samples, drawn at random; 0 for all", minimum=0
    )

    def check(self) -> None:  # noqa: D102
        if self.on_nodes:
            self._check_split_nodes()
            return
        # Nothing can be dealt to none, so this comes before the data.
        self.check_clients(max(self.num_clients, 1), "samples")
        _shares(self)
        _objective(self)

    def _check_split_nodes(self) -> None:
        for key, value, off in (
            ("bias", self.bias, 0.0),
            ("row-scaling", self.row_scaling, "none"),
        ):
            if value != off:
                raise SettingsError(
                    f"{self.name}.{key} = {value!r} does not fit {self.name}.dataset = "
                    f"{NODES!r}: it concerns a sample's features on all nodes that "
                    "have some (a bias is a constant column in one of their files); "
                    f"allowed: {off!r}"
                )
        if self.nodes.examples:
            raise SettingsError(
                f"data.examples = {self.nodes.examples} is not for task {self.name!r}, "
                "whose nodes agree on the number of samples; allowed: 0"
            )
        self.check_nodes()

    def node_schema(self) -> Schema:
        """Return the schema: some of the features, of some samples, by their ids."""
        return Schema(
            self.nodes.num_features(),
            self.nodes.names(),
            "class",
            self.nodes.class_labels(("-1", "1")),
            self.nodes.label_column,
            split=True,
        )

    def node_client_data(self, path: Path) -> ClientData:
        """Return what a node with its own file holds; class 0 is −1, class 1 is +1.

        Raises
        ------
        DataFileError
            Its message names file, row and column, and shows nothing of what is there.
        """
        table = self.node_table(path)
        labels = None if table.targets is None else 2.0 * table.targets - 1.0
        return ClientData(table.features, table.names, table.ids, labels)

    def num_examples(self) -> int:  # noqa: D102
        self._need_central_data()
        return _data(self).num_train

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.nodes.num_features(),)]
        return [(len(_data(self).names),)]

    def domains(self) -> dict[str, float]:
        """Return none: the methods for split data have no constraint."""
        return {}

    @abstractmethod
    def make_loss(self) -> Loss:
        """Return l."""

    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the model's p features, in its order.

        None of them where only the nodes know them.
        """
        if self.on_nodes:
            return self.nodes.names()
        return _data(self).names

    def client_data(self, client: int) -> ClientData:
        """Return the training data of a client, made once per process.

        Raises
        ------
        IndexError
            There is no such client.
        """
        return _client_data(self, self._existing(client), False)

    def test_client_data(self, client: int) -> ClientData:
        """Return the test data of a client: the features it has, of other samples.

        Raises
        ------
        IndexError
            There is no such client.
        """
        return _client_data(self, self._existing(client), True)

    def optimum(self) -> Optimum:
        """Return P* with its certificate, found once per process.

        Raises
        ------
        RuntimeError
            It cannot be certified.
        """
        return _optimum(self)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"accuracy"`` on the test samples.

        Without any, ``"train-accuracy"`` on the training samples.
        """
        w = np.asarray(self.argument(x))
        data = _data(self)
        if len(data.labels) > data.num_train:
            return _test_objective(self).metrics(w)
        return {"train-accuracy": self.objective().metrics(w)["accuracy"]}

    def _build_objective(self) -> RegularizedLoss:
        return _objective(self)

    def _build_client_objective(self, client: int) -> Objective:
        raise SettingsError(
            f"task {self.name!r} has no loss for each client, as its samples are split "
            "by features; it needs method hyfdca, hyfem or hybrid-fedavg"
        )

    def _existing(self, client: int) -> int:
        if not 0 <= client < self.num_clients:
            raise IndexError(
                f"client {client} of task {self.name!r} does not exist: "
                f"there are {self.num_clients}, counted from 0"
            )
        return int(client)

    def _groups(self) -> tuple[int, int]:
        """Return the numbers of sample groups and of feature groups."""
        samples, features = self.sample_groups, self.feature_groups
        if self.partition == "horizontal":
            features = features or 1
        elif self.partition == "vertical":
            samples = samples or 1
        for name, groups, fixed in (
            ("feature", features, "horizontal"),
            ("sample", samples, "vertical"),
        ):
            if self.partition == fixed and groups != 1:
                raise SettingsError(
                    f"{self.name}.{name}-groups = {groups} does not suit "
                    f"{self.name}.partition = {fixed!r}; allowed: 0, 1"
                )
        samples, features = group_counts(
            self.num_clients, samples, features, self.name
        ).tolist()
        return samples, features


# More tasks than one are alive in a process only in tests and sweeps.
@lru_cache(maxsize=2)
def _data(task: HybridTask) -> Samples:
    return load_samples(task)


@lru_cache(maxsize=2)
def _shares(task: HybridTask) -> list[tuple[Share, NDArray[np.bool_]]]:
    """Return what each client holds, and of which samples it has the label."""
    data = _data(task)
    shares = _from_file(task, data) if task.partition == "file" else _dealt(task, data)
    seen = np.zeros(len(data.labels), dtype=np.bool_)
    result = []
    for client, share in enumerate(shares):
        if not (share.rows < data.num_train).any() or not len(share.columns):
            raise SettingsError(
                f"{task.name}.partition = {task.partition!r} leaves client {client} of "
                f"{task.num_clients} without training data"
            )
        labelled = np.ones(len(share.rows), dtype=np.bool_)
        if task.labels_on == "first":
            labelled = ~seen[share.rows]
            seen[share.rows] = True
        result.append((share, labelled))
    return result


def _dealt(task: HybridTask, data: Samples) -> list[Share]:
    samples, groups = task._groups()
    columns, tests = len(data.names), len(data.labels) - data.num_train
    for what, wanted, there in (
        ("sample", samples, data.num_train),
        ("feature", groups, columns),
    ):
        if wanted > there:
            raise SettingsError(
                f"{task.num_clients} clients are too many for task {task.name!r}: they "
                f"form {wanted} {what} groups, and it has {there} {what}s"
            )
    train = sample_groups(
        data.num_train, samples, generator(task.seed, "hybrid training samples")
    )
    test = sample_groups(tests, samples, generator(task.seed, "hybrid test samples"))
    rows = [
        np.concatenate([own, data.num_train + others])
        for own, others in zip(train, test, strict=True)
    ]
    if task.partition == "entries":
        rng = generator(task.seed, "hybrid entries")
        return deal_entries(_as_csr(task), rows, groups, rng)
    if data.side and groups == 4:
        return deal_blocks(rows, quadrants(data.side, columns))
    return deal_blocks(rows, column_groups(columns, groups))


def _from_file(task: HybridTask, data: Samples) -> list[Share]:
    for key, groups in (
        ("sample-groups", task.sample_groups),
        ("feature-groups", task.feature_groups),
    ):
        if groups:
            raise SettingsError(
                f"{task.name}.{key} = {groups} does not suit {task.name}.partition = "
                "'file'; allowed: 0"
            )
    key = f"{task.name}.partition-file"
    if not task.partition_file:
        raise FileNotFoundError(f"{key} is empty; it must name the partition's file")
    path = data_path(key, task.partition_file)
    shares = read_partition_file(path, task.num_clients, data.num_rows, data.names)
    # from rows of the data set to samples; a limit has left some out
    position = np.full(data.num_rows, -1, dtype=np.intp)
    position[data.rows] = np.arange(len(data.rows))
    moved = [np.sort(position[share.rows]) for share in shares]
    return [
        share._replace(rows=rows[rows >= 0])
        for share, rows in zip(shares, moved, strict=True)
    ]


@lru_cache(maxsize=2)
def _as_csr(task: HybridTask) -> Any:
    features = _data(task).features
    return scipy.sparse.csr_array(features)


@lru_cache(maxsize=16_384)
def _client_data(task: HybridTask, client: int, test: bool) -> ClientData:
    data = _data(task)
    share, labelled = _shares(task)[client]
    own = (share.rows >= data.num_train) == test
    rows = share.rows[own]
    if share.entries is None:
        features = data.features[rows][:, share.columns]
        if isinstance(features, np.ndarray):
            features.setflags(write=False)
    else:
        features = selected_entries(_as_csr(task), rows, share.columns, share.entries)
    labels = np.where(labelled[own], data.labels[rows], np.nan)
    labels.setflags(write=False)
    return ClientData(
        features,
        tuple(data.names[column] for column in share.columns),
        tuple(str(row) for row in data.rows[rows]),
        # whether it has any does not depend on which samples are asked for
        labels if labelled.any() else None,
    )


@lru_cache(maxsize=2)
def _objective(task: HybridTask) -> RegularizedLoss:
    data = _data(task)
    return RegularizedLoss(
        data.features[: data.num_train],
        data.labels[: data.num_train],
        task.make_loss(),
        task.regularization,
    )


@lru_cache(maxsize=2)
def _test_objective(task: HybridTask) -> RegularizedLoss:
    data = _data(task)
    return RegularizedLoss(
        data.features[data.num_train :],
        data.labels[data.num_train :],
        task.make_loss(),
        task.regularization,
    )


@lru_cache(maxsize=4)
def _optimum(task: HybridTask) -> Optimum:
    return central_optimum(_objective(task))
