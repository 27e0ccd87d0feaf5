"""FedGiA's benchmarks run, at sizes that mean nothing, and their sides agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from benchmarks import __main__, fedgia, fedgia_sparse, fedgia_step, fedgia_stop
from benchmarks.report import Comparison, Row, Spread
from fedtrellis.objectives import Logistic

TINY = fedgia.Cases(
    stop=(fedgia_stop.Case("tiny", lambda: fedgia_stop.v1(4), 12, turns=2),),
    step=(fedgia_step.Case(6, 9, blocks=2, calls=3),),
    sparse=fedgia_sparse.Case(50, 20, 5, nodes=2),
)


def row_of(result: Comparison, method: str, k: int) -> Row:
    (row,) = (row for row in result.rows if (row["method"], row["k_0"]) == (method, k))
    return row


def test_rounds_and_seconds_to_the_stop_rule() -> None:
    result = fedgia_stop.compare(TINY.stop)
    assert len(result.rows) == 4 * 3
    for row in result.rows:
        seconds = row["seconds"]
        assert isinstance(seconds, Spread)
        assert len(seconds.values) == (2 if "FedGiA" in str(row["method"]) else 1)
        # F* is the minimum
        assert float(str(row["F − F*"])) >= -1e-12
    # with four clients FedAvg and mini-batches are far off after so few rounds
    assert row_of(result, "FedAvg", 1)["rounds"] == "not in 12"
    assert row_of(result, "LocalSGD", 1)["a"] == "0.005, log"
    ratio = row_of(result, "FedGiA_D", 5)["/ FedGiA_D, k_0 = 5"]
    assert isinstance(ratio, Spread)
    assert ratio.values == (1.0, 1.0)
    (aim,) = result.aims
    assert "has not arrived after" in aim.measured


@pytest.mark.parametrize(
    ("make", "nodes"), [(fedgia_stop.v1, 64), (fedgia_stop.breast_cancer, 10)]
)
def test_the_examples_have_a_minimum_where_fedgia_ends(
    make: Callable[[], fedgia_stop.Example], nodes: int
) -> None:
    example = make()
    assert example.nodes == nodes
    (method,) = (
        method
        for method in fedgia_stop.methods(example)
        if (method.name, method.local_steps) == ("FedGiA_D", 5)
    )
    # others of this process may have asked the shared objectives for theirs
    before = ["_lipschitz" in vars(f) for f in example.objectives]
    run = fedgia_stop.run(example, method, 300)
    assert run.arrived
    assert 0.0 <= run.excess < 1e-4
    # the shared objectives were copied: a factor or r_i kept there would be for free
    assert ["_lipschitz" in vars(f) for f in example.objectives] == before


def test_fedavg_with_one_constant_step_is_as_soon_there_as_gradient_descent() -> None:
    example = fedgia_stop.v1()
    (method,) = (
        method
        for method in fedgia_stop.methods(example)
        if (method.name, method.local_steps) == ("FedAvg", 1)
    )
    run = fedgia_stop.run(example, method, 30)
    x, rounds = np.zeros(100), 0
    while np.sum((slope := example.mean.gradient(x)) ** 2) > 1e-7:
        x, rounds = x - 0.25 * slope, rounds + 1
    assert run.arrived
    # 7 broadcasts of x, the first one and the one that passes among them
    assert run.rounds == rounds == 6


@pytest.mark.parametrize("shape", [(9, 6), (6, 9)])
@pytest.mark.parametrize("hessian", ["gram", "diagonal"])
def test_the_bare_client_solves_its_systems(
    shape: tuple[int, int], hessian: str
) -> None:
    rng = np.random.default_rng(1)
    A, b, u = rng.standard_normal(shape), np.ones(shape[0]), np.ones(shape[1])
    H = A.T @ A / shape[0]
    r = float(np.linalg.eigvalsh(H)[-1])
    if hessian == "diagonal":
        H = r * np.eye(shape[1])
    bare = fedgia_step.BareClient(A, b, hessian, 0.3, r)
    expected = np.linalg.solve(H / 64 + 0.3 * np.eye(shape[1]), u)
    np.testing.assert_allclose(bare.solve(u), expected, rtol=1e-10)


def test_the_bare_client_is_fedgia() -> None:
    # compare() raises if the two z_i differ by more than 1e-9
    cases = [*TINY.step, fedgia_step.Case(9, 6, blocks=2, calls=3)]
    result = fedgia_step.compare(cases)
    assert len(result.rows) == len(result.aims) == 2 * 2 * 3
    for row in result.rows:
        ratio = row["FedGiA / NumPy"]
        assert isinstance(ratio, Spread)
        assert len(ratio.values) == 2
        assert float(str(row["difference"])) <= 1e-9


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fedgia_step.BareClient.fit
    monkeypatch.setattr(
        fedgia_step.BareClient, "fit", lambda *arguments: fit(*arguments) + 1e-6
    )
    with pytest.raises(AssertionError, match="differ by"):
        fedgia_step.compare(TINY.step)


def test_sparse_data() -> None:
    case = fedgia_sparse.Case(50, 20, 5, nodes=2)
    shares = fedgia_sparse.sparse_data(case)
    assert len(shares) == 2
    for A, b in shares:
        assert isinstance(A, scipy.sparse.csr_array)
        assert A.shape == (20, 50)
        assert set(b) == {0.0, 1.0}
    A = shares[0][0]
    assert fedgia_sparse.data_bytes(shares[:1]) == (
        8 * A.nnz + A.indices.itemsize * (A.nnz + 21)
    )


def test_memory_and_seconds_on_sparse_data() -> None:
    # wide enough for conjugate gradients, and for data that outweigh Python's objects
    case = fedgia_sparse.Case(2_000, 600, 100, nodes=2, rounds=2)
    result = fedgia_sparse.compare(case)
    assert [row["method"] for row in result.rows] == ["FedGiA_G (CG)", "FedGiA_D"]
    for row in result.rows:
        seconds, kept = row["seconds a round"], row["kept / data"]
        peak, total = row["peak / data"], row["in all"]
        assert isinstance(seconds, Spread)
        assert isinstance(kept, Spread)
        assert isinstance(peak, Spread)
        assert isinstance(total, Spread)
        assert len(seconds.values) == 2
        data = 600 * 100 * 12
        # π_i at the least, of 8 bytes for each of 2000 features
        assert kept.median * data > 16_000
        assert peak.median * data > 16_000
        assert total.median == pytest.approx(1.0 + kept.median + peak.median)
        before, after = map(float, str(row["F before, after"]).split(", "))
        assert before == pytest.approx(np.log(2.0), abs=1e-5)
        assert after < before
    assert len(result.aims) == 2


def test_what_a_client_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # objectives that copy their data keep as much again, and a little more
    case = fedgia_sparse.Case(2_000, 600, 100, nodes=2, rounds=1)
    shares = fedgia_sparse.sparse_data(case)
    plain = fedgia_sparse.memory(case, shares, "diagonal").kept
    monkeypatch.setattr(
        fedgia_sparse, "Logistic", lambda A, b, l2: Logistic(A.copy(), b, l2=l2)
    )
    copied = fedgia_sparse.memory(case, shares, "diagonal").kept
    data = fedgia_sparse.data_bytes(shares)
    assert copied - plain == pytest.approx(data, rel=0.05)


def test_the_command_prints_three_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fedgia, "QUICK", TINY)
    out = tmp_path / "out.json"
    assert __main__.main(["--quick", "--only", "fedgia", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("FedGiA / NumPy", "not in 12", "peak / data"):
        assert text in printed
    names = [entry["name"] for entry in json.loads(out.read_text())["comparisons"]]
    assert names == ["fedgia-stop", "fedgia-step", "fedgia-sparse"]
