"""The memory of releases: what differs between runs must not be a few rows."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from clients import FedAvgGDClient
from fedtrellis import LocalGrid, SecureSum
from fedtrellis.app.command_line import read_config
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.encryption.releases import OwnRows, ReleaseError, ReleaseMemory
from fedtrellis.objectives import LeastSquares
from strategies import FedAvgGD
from tasks import make_task
from tests.harness import Array, grid_of, play, refused
from tests.strategies.hyfdca_runs import Run, small

P, ROWS = 4, 60
RNG = np.random.default_rng(0)
TABLES = [
    (RNG.standard_normal((ROWS, P)), RNG.standard_normal(ROWS) + 3.0) for _ in range(4)
]
STEP = 0.01
EXTRA = np.array([0.3, -1.2, 2.0, 0.7]), 1.5


class Nodes:
    """Four nodes with one key file, and what they keep between runs."""

    def __init__(self, folder: Path, **config: Any) -> None:
        write_key_pair(folder / "key", folder / "context", "stream")
        self.config = {"key-file": str(folder / "key"), **config}
        self.tables, self.columns = list(TABLES), [str(j) for j in range(P)]

    def run(
        self, there: Sequence[int] = (0, 1, 2, 3), start: Array | None = None
    ) -> Any:
        """One step of gradient descent, of which the server learns the sum."""

        def client(context: Any, table: tuple[Array, Array]) -> Any:
            # of the whole sum: as a mean it tells the same, divided by what is known
            made = FedAvgGDClient(context, LeastSquares(*table, scale="sum"))
            made.rows = OwnRows(tuple(self.columns), table)
            return made

        nodes = [{"client-id": str(i), **self.config} for i in there]
        tables = [self.tables[i] for i in there]
        grid = grid_of(client, tables, node_configs=nodes)
        options: Any = {"local_steps": 1, "seed": 0, "aggregation": SecureSum()}
        strategy = FedAvgGD(step_size=STEP, **options)
        return play(strategy, grid, np.zeros(P) if start is None else start, 1).model

    def gradient(self, there: Sequence[int] = (0, 1, 2, 3)) -> Array:
        """Half the sum of all gradients at 0, of the server's model alone."""
        total: Array = -self.run(there) * len(there) / (2.0 * STEP)
        return total


def unseen(caplog: pytest.LogCaptureFixture, act: Any, why: str) -> None:
    """The server gets a code; the node's log says why."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert why not in refused("its log says why", act)
    assert any(why in record.message for record in caplog.records)


def test_a_row_more_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(tmp_path)
    before = nodes.gradient()
    kept = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.releases")}
    assert np.array_equal(nodes.gradient(), before)  # the same again is no news
    assert kept
    assert kept == {f: f.stat().st_mtime_ns for f in kept}
    A, b = nodes.tables[1]
    nodes.tables[1] = np.vstack([A, EXTRA[0]]), np.append(b, EXTRA[1])
    unseen(caplog, nodes.run, "a difference of 1 rows")
    nodes.config["releases"] = "accept"
    found = before - nodes.gradient()
    assert np.abs(found - EXTRA[0] * EXTRA[1]).max() < 1e-6


def test_a_node_that_is_away_is_refused_and_would_be_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    everybody = nodes.gradient()
    unseen(caplog, lambda: nodes.run((0, 1, 2)), "other clients")
    nodes.config["releases"] = "accept"
    found = everybody - nodes.gradient((0, 1, 2))
    A, b = TABLES[3]
    assert np.abs(found + A.T @ b).max() < 1e-6


def untidy(table: Array) -> sparse.csr_array:
    """Each entry as two halves, the last column first."""
    count, p = table.shape
    halves = np.repeat(table[:, ::-1] / 2.0, 2, axis=1).ravel()
    columns = np.tile(np.repeat(np.arange(p)[::-1], 2), count)
    return sparse.csr_array((halves, columns, 2 * p * np.arange(count + 1)))


LABELLED = 'data.features=4 data.labels="-1,1"'


@pytest.mark.parametrize(
    "second",
    [
        'data.features=4 data.labels="1,-1"',  # in another order
        "data.features=4",  # as numbers
        "none",
        "weights",
        "sparse",  # in another format
    ],
)
def test_the_same_rows_otherwise_read(tmp_path: Path, second: str) -> None:
    """One row more is one row more, whatever a run makes of its label."""
    A, b = TABLES[0][0], np.where(TABLES[0][1] > 3.0, 1.0, -1.0)
    config = Nodes(tmp_path).config

    def rows(how: str, count: int) -> Any:
        table, X, y = tmp_path / f"{how}-{count}.npz", A[:count], b[:count]
        parts: Any = {"none": (X, None), "weights": (X, y, y)}
        parts["sparse"] = untidy(X), y
        if how in parts:
            own = OwnRows(("4",), parts[how])
            own.texts()  # which leaves the table as it is
            assert how != "sparse" or own.parts[0].nnz == 2 * X.size
            return own
        np.savez(table, features=X, labels=y)
        name = "logistic-regression" if "labels" in how else "linear-regression"
        more = read_config([how]) | {f"{name}.dataset": "nodes"}
        task = make_task(name, more, 4, 0)
        return task.node_attributes({"data": str(table)})["rows"]

    def admit(how: str, count: int, least: int = 10) -> None:
        node = NodeSecrets("0", {**config, "least-rows": least})
        ReleaseMemory(node, f"{how} {count}").admit("abc", rows(how, count))

    admit(LABELLED, 59)
    with pytest.raises(ReleaseError) as error:
        admit(second, 60)
    assert "a difference of 1 rows" in error.value.detail
    admit(second, 59)
    admit(second, 60, least=1)


def test_a_changed_column_is_refused_until_the_owner_takes_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    nodes.run()
    nodes.columns[2] = "another"
    unseen(caplog, nodes.run, "other columns")
    nodes.config["releases"] = "once"
    nodes.run()
    nodes.columns[1] = "a third"
    unseen(caplog, nodes.run, "other columns")
    nodes.columns[1] = "1"
    nodes.config["releases"] = "refuse"
    nodes.run()


def test_a_foreign_start_is_refused_and_would_tell_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    model = nodes.run()
    nodes.run(start=model)  # an earlier run's
    foreign = np.array([1.0, 0.0, 0.0, 0.0])
    unseen(caplog, lambda: nodes.run(start=foreign), "begins at a model")
    nodes.config["releases"] = "accept"
    # a column of the block's Gram matrix
    moved = (foreign - nodes.run(start=foreign) + model) * 4 / (2.0 * STEP)
    gram = np.sum([A.T @ A for A, _ in TABLES], axis=0)
    assert np.abs(moved - gram[:, 0]).max() < 1e-6


def test_a_damaged_memory_is_said(tmp_path: Path) -> None:
    def admit(run: str, **config: str) -> None:
        rows = OwnRows((), (np.ones((3, 1)),))
        ReleaseMemory(NodeSecrets("0", config), run).admit("abc", rows)

    config = Nodes(tmp_path).config
    admit("a", **config)
    (file,) = (tmp_path / "key.ledger").glob("*.releases")
    file.write_bytes(file.read_bytes()[:-1])
    refused("damaged", lambda: admit("b", **config))
    refused("'refuse', 'once', 'accept'", lambda: admit("a", releases="yes"))


def test_a_row_that_changes_during_a_run_of_hyfdca(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", tmp_path / "context", "stream")
    split, now = small(parts="horizontal"), [0]

    def change(k: int, client: Any) -> None:
        if k == 0 and now[0] >= 3:
            client.features[3] *= -1.0

    split.change = change
    nodes = [{"client-id": str(i), "key-file": str(tmp_path / "key")} for i in range(6)]
    options: dict[str, Any] = {
        "grid": LocalGrid(split.app(), 6, node_configs=nodes),
        "encryption": "stream",
        "each": lambda _, server_round: now.__setitem__(0, server_round),
    }
    refused("memory of earlier runs refuses", lambda: Run(split, 5, **options))
    assert now == [3]
