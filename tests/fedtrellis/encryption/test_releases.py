"""The memory of releases: what differs between runs must not be a few rows."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import sim
from clients import FedAvgGDClient
from deploy.cases import METHODS, NODES, write_data
from deploy.deployment import Deployment
from fedtrellis import LocalGrid, SecureSum, client_app
from fedtrellis.app.command_line import read_config
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.encryption.releases import OwnRows, ReleaseError, ReleaseMemory
from fedtrellis.objectives import LeastSquares
from fedtrellis.settings import SettingsError
from strategies import FedAvgGD
from tasks import make_task
from tests.harness import Array, number_of, play, refused
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
        tables = [self.tables[i] for i in there]

        def client_fn(context: Any) -> Any:
            A, b = tables[number_of(context)]
            # of the whole sum: as a mean it tells the same, divided by what is known
            client = FedAvgGDClient(context, LeastSquares(A, b, scale="sum"))
            client.rows = OwnRows(tuple(self.columns), (A, b))
            return client

        nodes = [{"client-id": str(i), **self.config} for i in there]
        grid = LocalGrid(client_app(client_fn), len(nodes), node_configs=nodes)
        strategy = FedAvgGD(
            step_size=STEP, local_steps=1, seed=0, aggregation=SecureSum()
        )
        return play(strategy, grid, np.zeros(P) if start is None else start, 1).model

    def gradient(self, there: Sequence[int] = (0, 1, 2, 3)) -> Array:
        """Half the sum of all gradients at 0, of the server's model alone."""
        total: Array = -self.run(there) * len(there) / (2.0 * STEP)
        return total

    def add(self, node: int, row: Any = EXTRA) -> None:
        A, b = self.tables[node]
        self.tables[node] = np.vstack([A, row[0]]), np.append(b, row[1])


def unseen(caplog: pytest.LogCaptureFixture, act: Any, why: str) -> None:
    """The server gets a code; the node's log says why."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert why not in refused("its log says why", act)
    assert any(why in record.message for record in caplog.records)


def test_a_row_more_is_refused_and_would_be_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path)
    before = nodes.gradient()
    assert np.array_equal(nodes.gradient(), before)  # the same again is no news
    nodes.add(1)
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


LABELLED = 'data.features=4 data.labels="-1,1"'


@pytest.mark.parametrize(
    "second",
    [
        'data.features=4 data.labels="1,-1"',  # in another order
        "data.features=4",  # as numbers
        None,  # not at all
        "weights",
        "sparse",  # in another format
    ],
)
def test_the_same_rows_otherwise_read(tmp_path: Path, second: str | None) -> None:
    """One row more is one row more, whatever a run makes of its label."""
    A, b = TABLES[0][0], np.where(TABLES[0][1] > 3.0, 1.0, -1.0)
    config = Nodes(tmp_path).config

    def rows(how: str | None, count: int) -> OwnRows:
        table, X, y = tmp_path / f"{how}-{count}.npz", A[:count], b[:count]
        parts: dict[str | None, tuple[Any, ...]] = {
            None: (X, None),
            "weights": (X, y, y),
            "sparse": (sparse.csr_array(X), y),
        }
        if how in parts:
            return OwnRows(("4",), parts[how])
        np.savez(table, features=X, labels=y)
        name = "logistic-regression" if "labels" in str(how) else "linear-regression"
        more = read_config([str(how)]) | {f"{name}.dataset": "nodes"}
        found: OwnRows = make_task(name, more, 4, 0).node_attributes(
            {"data": str(table)}
        )["rows"]
        return found

    def admit(how: str | None, count: int, least: int = 10) -> None:
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


def test_what_a_simulation_keeps_and_what_is_damaged(tmp_path: Path) -> None:
    rows = OwnRows((), (np.ones((3, 1)),))
    ReleaseMemory(NodeSecrets("0", {"ledger": str(tmp_path / "l")}), "a").admit(
        "abc", rows
    )
    assert not (tmp_path / "l").exists()
    nodes = Nodes(tmp_path)
    secrets = NodeSecrets("0", nodes.config)
    ReleaseMemory(secrets, "a").admit("abc", rows)
    (file,) = (tmp_path / "key.ledger").glob("*.releases")
    file.write_bytes(file.read_bytes()[:-1])
    refused("damaged", lambda: ReleaseMemory(secrets, "b").admit("abc", rows))
    wrong = NodeSecrets("0", {"releases": "yes"})
    refused("allowed: 'refuse', 'once', 'accept'", lambda: ReleaseMemory(wrong, "a"))
    assert issubclass(ReleaseError, SettingsError)


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


def test_hyfdca_on_nodes_files_remembers_their_rows(tmp_path: Path) -> None:
    """The same files again; a patient less at both holders; and the owners' word."""
    nodes = Deployment(tmp_path / "nodes")
    write_data(nodes.folder / "data")
    nodes.make_encryption_keys()
    files, settings = METHODS["hyfdca"]

    def run(**more: str | int) -> None:
        config = f'method="hyfdca" {settings} rounds=1 results-dir="{tmp_path}/runs"'
        here = sim.app.default_config() | read_config([config])
        more = {"releases": "refuse", **more}
        configs = [nodes.node_config(node, files) | more for node in NODES]
        grid = LocalGrid(sim.client_app, 4, run_config=here, node_configs=configs)
        sim.app.run(grid, here)

    run()
    run()  # it is no new release
    for node in ("node-1", "node-3"):  # who have the halves of the same patients
        path = nodes.folder / "data" / "blocks" / f"{node}.csv"
        path.write_text(path.read_text().rstrip().rpartition("\n")[0] + "\n")
    refused("memory of earlier runs refuses", run)
    run(releases="once")
