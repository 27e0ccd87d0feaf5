"""Matrix completion: ratings predicted by a matrix of small nuclear norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedtrellis.objectives import MatrixCompletion as MeanSquaredError
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Point, data_path, even_share
from .data.node_task import NodeDataTask
from .data.ratings import Ratings, read_node_ratings, read_ratings
from .data.settings import NODES, DataSettings, Schema
from .data.table import NodeTable

__all__ = ["MatrixCompletion", "synthetic_ratings"]

# The generated set, small enough for an LMO in milliseconds.
_USERS, _ITEMS, _RANK, _OBSERVED, _NOISE = 60, 50, 3, 0.5, 0.1


@dataclass(frozen=True)
class MatrixCompletion(NodeDataTask):
    """F(X) = mean over the training ratings of (X_user,item − rating)².

    The ratings are shuffled by the seed; ``test-fraction`` of them are test data and
    the rest is dealt evenly. f_i is n·d_i/d times the mean over the client's d_i
    ratings, so that F = (1/n) Σ f_i. (The mean is ours; the paper has the sum, so that
    its λ_0 is d times ours.) With ``centred`` every rating has the training ratings'
    mean taken off, one number that nodes get from their sums and counts; X is then
    about deviations from it, and an RMSE is the same either way.

    Without a file the ratings are generated: half the entries of a 60 × 50 matrix of
    rank 3 with standard normal factors, plus noise of standard deviation 0.1.

    Notes
    -----
    Figure 1c of the FedFW workshop paper (2022): MovieLens-100k (its ``u.data``, see
    F. M. Harper, J. A. Konstan, "The MovieLens datasets: history and context", 2015),
    ‖X‖_* ≤ 7000, 40 clients. Its terms forbid passing the data on, so it is not here.
    """

    name: ClassVar[str] = "matrix-completion"
    summary: ClassVar[str] = "low-rank matrix completion, generated or MovieLens-100k"

    not_on_nodes: ClassVar[tuple[str, ...]] = (
        "path",
        "test_fraction",
        "validation_fraction",
        "centred",
    )

    dataset: str = setting(
        "auto",
        "'auto': path's ratings, or generated ones; 'nodes': every node's own file",
        choices=("auto", NODES),
    )
    path: str = setting("", "u.data of MovieLens-100k; empty for generated ratings")
    test_fraction: float = setting(
        0.2, "share of the ratings kept for testing", above=0.0, maximum=0.9
    )
    validation_fraction: float = setting(
        0.0,
        "share of the training ratings that takes the test ratings' place",
        minimum=0.0,
        maximum=0.9,
    )
    centred: bool = setting(False, "take the training ratings' mean off all ratings")

    users: int = setting(0, "users, with dataset = 'nodes' only", minimum=0)
    items: int = setting(0, "items, with dataset = 'nodes' only", minimum=0)

    def check(self) -> None:  # noqa: D102
        if self.on_nodes:
            self.check_nodes()
            return
        self.check_clients(self.num_examples(), "training ratings")

    def num_examples(self) -> int:  # noqa: D102
        if self.on_nodes:
            return self.nodes.examples
        return len(_data(self)[0].values)

    def check_nodes(self) -> None:  # noqa: D102
        for name, count in (("users", self.users), ("items", self.items)):
            if not count:
                raise SettingsError(
                    f"matrix-completion.{name} = 0: the server has no data to see it "
                    f"from; say how many {name} there are"
                )
        if self.nodes != DataSettings(examples=self.nodes.examples):
            raise SettingsError(
                "task 'matrix-completion' takes data.examples and no other of the "
                "settings data.*: a node's file has users, items and ratings"
            )
        super().check_nodes()

    def node_schema(self) -> Schema:
        """Return the schema of one rating: a user and an item, and the rating."""
        return Schema(2, ("user", "item"), "number")

    def _read_node_file(self, path: Path) -> NodeTable:
        return read_node_ratings(path, self.users, self.items)

    def _build_node_objective(
        self, table: NodeTable, weight: float
    ) -> MeanSquaredError:
        assert table.targets is not None
        rows, columns = table.features.astype(np.intp).T
        shape = (self.users, self.items)
        return MeanSquaredError(rows, columns, table.targets, shape, weight=weight)

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        if self.on_nodes:
            return [(self.users, self.items)]
        return [_data(self)[0].shape]

    def domains(self) -> dict[str, float]:
        """Return the nuclear norm ball.

        Its radius is 7000 for a file, the nuclear norm of the noiseless matrix for
        generated ratings; nodes' own have none.
        """
        if self.on_nodes:
            return {"nuclear-norm-ball": 0.0}
        return {"nuclear-norm-ball": _data(self)[0].radius}

    def _build_objective(self) -> MeanSquaredError:
        return _mean_squared_error(_data(self)[0])

    def _build_client_objective(self, client: int) -> MeanSquaredError:
        self.check()
        train = _data(self)[0]
        # The ratings are shuffled already: equal consecutive shares are random.
        share = even_share(len(train.values), self.num_clients, client)
        own = np.arange(share.start, share.stop)
        weight = self.num_clients * len(own) / len(train.values)
        return _mean_squared_error(train.select(own), weight)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"rmse"`` on the test ratings and ``"rmse-train"``."""
        point = self.argument(x)
        return {
            "rmse": _test_objective(self).metrics(point)["rmse"],
            "rmse-train": math.sqrt(self.value(point)),
        }


def _mean_squared_error(ratings: Ratings, weight: float = 1.0) -> MeanSquaredError:
    rows, columns, values, shape, _ = ratings
    return MeanSquaredError(rows, columns, values, shape, weight=weight)


@lru_cache(maxsize=4)
def _data(task: MatrixCompletion) -> tuple[Ratings, Ratings]:
    """Return the training ratings, and the test or validation ratings."""
    if task.path:
        ratings = read_ratings(data_path("matrix-completion.path", task.path))
    else:
        ratings = synthetic_ratings(generator(task.seed, "matrix-completion"))
    count = len(ratings.values)
    order = generator(task.seed, "matrix-completion split").permutation(count)
    # At least one on either side.
    held_out = min(max(1, round(task.test_fraction * count)), count - 1)
    held, kept = order[:held_out], order[held_out:]
    if task.validation_fraction:
        # the order is random: any share of it will do
        count = min(max(1, round(task.validation_fraction * len(kept))), len(kept) - 1)
        held, kept = kept[:count], kept[count:]
    if task.centred:
        mean = ratings.values[kept].mean()
        ratings = ratings._replace(values=ratings.values - mean)
    parts = ratings.select(kept), ratings.select(held)
    for part in parts:
        for array in part[:3]:
            array.setflags(write=False)
    return parts


@lru_cache(maxsize=4)
def _test_objective(task: MatrixCompletion) -> MeanSquaredError:
    return _mean_squared_error(_data(task)[1])


def synthetic_ratings(rng: np.random.Generator) -> Ratings:
    """Generate noisy ratings of random entries of a 60 × 50 matrix of rank 3."""
    factors = [rng.standard_normal((size, _RANK)) for size in (_USERS, _ITEMS)]
    truth = factors[0] @ factors[1].T
    count = round(_OBSERVED * truth.size)
    entries = np.sort(rng.choice(truth.size, count, replace=False))
    values = truth.flat[entries] + _NOISE * rng.standard_normal(count)
    rows, columns = np.divmod(entries, _ITEMS)
    radius = float(np.linalg.norm(truth, "nuc"))
    return Ratings(rows, columns, values, truth.shape, radius)
