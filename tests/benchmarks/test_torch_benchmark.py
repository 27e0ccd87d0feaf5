"""The measurements of PyTorch run, and compare like with like."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks import torch_speed  # noqa: E402
from benchmarks.report import Comparison, Spread  # noqa: E402

SIZE = torch_speed.Size(gradients=1, blocks=1, rounds=1, examples=70, jobs=1)


def test_rounds_and_plain_loops_end_at_one_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    monkeypatch.setattr(torch_speed, "_CLIENTS", 2)
    # raises if the models differ by more than 1e-5
    result = torch_speed._rounds(SIZE)
    assert "noise: FEDTRELLIS_DATA names no mnist" in result.about
    assert [row["method"] for row in result.rows] == [
        "LocalSGD, mini-batches",
        "FedAvgGD",
    ]
    for row in result.rows:
        ratio = row["ratio"]
        assert isinstance(ratio, Spread)
        assert ratio.median > 0.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    result = torch_speed.gpu(SIZE)
    assert result.about == "Skipped: PyTorch finds no CUDA GPU on this machine."
    assert not result.rows
    assert not result.aims


def test_what_a_gpu_is_measured_by_runs_on_any_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_speed, "_BLOCK", 0.0)
    result = Comparison("gpu", "", "")
    device = torch.device("cpu")
    # raises if a gradient on the device is another than on the CPU, alone or stacked
    for name, model, inputs, labels in torch_speed._models(device):
        torch_speed._on_device(result, device, name, model, inputs, labels, 1)
    assert len(result.rows) == 3
    assert len(result.aims) == 6
    assert isinstance(result.rows[0]["cohort"], Spread)
    assert result.rows[2]["cohort"] == "not stacked"
