"""The task ``quadratic-assignment``."""

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import tasks.data
from fedtrellis.settings import SettingsError
from tasks import QuadraticAssignmentTask
from tests.tasks.data.node_files import refused


def test_the_stored_permutation_costs_9552() -> None:
    task = QuadraticAssignmentTask(num_clients=72, seed=0)
    text = resources.files(tasks.data).joinpath("chr12a.json").read_text()
    permutation = np.array(json.loads(text)["permutation"]) - 1
    x = np.eye(len(permutation))[permutation]
    assert task.value(x) == task.cost(permutation) == 9552.0
    metrics = {"assignment-cost": 9552.0, "assignment-excess": 0.0}
    assert task.metrics([x]) == metrics
    # rounding forgives what is not quite a permutation
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, x.shape)
    assert task.metrics(x + noise) == metrics
    # the barycentre
    np.testing.assert_array_equal(task.initial_point()[0], np.full((12, 12), 1 / 12))


def write_instance(path: Path, A: np.ndarray, B: np.ndarray) -> str:
    lines = [" ".join(f"{v:g}" for v in row) for M in (A, B) for row in M]
    path.write_text(f"{len(A)}\n\n" + "\n".join(lines) + "\n")
    return str(path)


def test_the_entries_of_A_are_dealt_where_it_has_more(  # noqa: N802
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(1)
    A, B = rng.integers(1, 9, (5, 5)), np.diag([1, 2, 0, 0, 0])
    path = write_instance(tmp_path / "five.dat", A, B)
    task = QuadraticAssignmentTask(num_clients=25, seed=0, path=path)
    task.check()
    x = rng.standard_normal((5, 5))
    parts = [task.client_objective(i) for i in range(25)]
    assert np.mean([f.value(x) for f in parts]) == pytest.approx(task.value(x))
    assert all(f.num_examples == 1 for f in parts)


def test_a_solution_beside_the_file_is_read(tmp_path: Path) -> None:
    A = np.array([[0, 3], [1, 0]])
    path = write_instance(tmp_path / "two.dat", A, A)
    (tmp_path / "two.sln").write_text("2  6\n 2,1\n")
    task = QuadraticAssignmentTask(num_clients=2, seed=0, path=path)
    assert task.instance().optimum == 6.0
    assert task.cost(np.array([1, 0])) == 6.0
    assert task.metrics(np.eye(2))["assignment-excess"] == pytest.approx(10 / 6 - 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with the order"),
        ("2.5 1 1", "must start with the order"),
        ("2\n1 2 3 4\n5 6 7", "asks for 8 entries of A and B, the file has 7"),
        ("2\n1 2 3 4\n5 6 7 8 9", "the file has 9"),
        ("2\n1 2 3 4\n5 x 7 8", "finite numbers, and nothing else"),
        ("2\n1 2 3 4\n5 nan 7 8", "finite"),
        ("2\n1 2 3 4\n0 0 0 0", "zeros only"),
    ],
)
def test_malformed_instances(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.dat"
    path.write_text(text)
    task = QuadraticAssignmentTask(num_clients=1, seed=0, path=str(path))
    assert "bad.dat" in refused(SettingsError, message, task)
