"""Matrix completion: ratings predicted by a matrix of small nuclear norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtrellis.objectives import MatrixCompletion
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, data_path, held_out, once
from .data.readers import read_ratings
from .data.table import NODES, DataSettings, Schema, Table, fault
from .data.task import Dealt, Task, starts_of

# The generated set, small enough for an LMO in milliseconds.
_USERS, _ITEMS, _RANK, _OBSERVED, _NOISE = 60, 50, 3, 0.5, 0.1
# The radius that the paper takes for MovieLens-100k.
_RADIUS = 7000.0


@dataclass(frozen=True)
class MatrixCompletionTask(Task):
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

    name = "matrix-completion"
    summary = "low-rank matrix completion, generated or MovieLens-100k"

    not_on_nodes = (*Task.not_on_nodes, "centred")

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

    def _read_node_file(self, path: Path) -> Table:
        return read_ratings(path, self.users, self.items)

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        return [(self.users, self.items) if self.on_nodes else self._ratings()[2]]

    def domains(self) -> dict[str, float]:
        """Return the nuclear norm ball.

        Of radius 7000 for a file, of the noiseless matrix's norm for generated ratings.
        """
        return {"nuclear-norm-ball": 0.0 if self.on_nodes else self._ratings()[3]}

    def _loss(self, features: Any, targets: Any, weight: float) -> MatrixCompletion:
        rows, columns = features.astype(np.intp).T
        users, items = self.shapes()[0]
        return MatrixCompletion(rows, columns, targets, (users, items), weight=weight)

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``"rmse"`` on the test ratings and ``"rmse-train"``."""
        train = math.sqrt(self.value(self.argument(x)))
        return {**super().metrics(x), "rmse-train": train}

    def _load(self) -> Dealt:
        cells, values = self._ratings()[:2]
        split = generator(self.seed, "matrix-completion split")
        held = kept = split.permutation(len(values))
        # the order is random: any share of it will do
        for share in filter(None, (self.test_fraction, self.validation_fraction)):
            held, kept = np.split(kept, [held_out(len(kept), share)])
        if self.centred:
            values = values - values[kept].mean()
        # The ratings are shuffled already: equal consecutive shares are random.
        starts = starts_of(np.array_split(kept, self.num_clients))
        return Dealt(cells[kept], values[kept], starts, cells[held], values[held])

    @once(4)
    def _ratings(self) -> tuple[Any, Array, tuple[int, int], float]:
        """Return users and items, their ratings, the matrix's shape and a radius."""
        if not self.path:
            return synthetic_ratings(self.seed)
        path = data_path("matrix-completion.path", self.path)
        cells, values, *_ = read_ratings(path)
        if len(values) < 2:
            fault(path, f"{len(values)} ratings; at least 2 are needed")
        users, items = (int(number) + 1 for number in cells.max(axis=0))
        return cells, values, (users, items), _RADIUS


def synthetic_ratings(seed: int) -> tuple[Any, Array, tuple[int, int], float]:
    """Generate noisy ratings of random entries of a 60 × 50 matrix of rank 3.

    Return users and items of shape (1500, 2), counted from 0, values of shape (1500,),
    the matrix's shape, and its nuclear norm without noise.
    """
    rng = generator(seed, "matrix-completion")
    factors = [rng.standard_normal((size, _RANK)) for size in (_USERS, _ITEMS)]
    truth = factors[0] @ factors[1].T
    count = round(_OBSERVED * truth.size)
    entries = np.sort(rng.choice(truth.size, count, replace=False))
    values = truth.flat[entries] + _NOISE * rng.standard_normal(count)
    cells = np.column_stack(np.divmod(entries, _ITEMS))
    radius = float(np.linalg.norm(truth, "nuc"))
    return cells, values, (_USERS, _ITEMS), radius
