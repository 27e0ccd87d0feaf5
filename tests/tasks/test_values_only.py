"""Networks of a zeroth-order run: the same loss, in the memory of inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sim

pytest.importorskip("torch")
from fedtrellis.objectives.torch_forward import TorchForward
from fedtrellis.objectives.torch_objective import TorchObjective
from tasks.networks import FORWARD_FROM


@pytest.mark.parametrize("task", ["characters", "classification"])
def test_a_large_network_keeps_no_parameters_where_values_are_all(task: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        # of 113 000 parameters
        "characters": {"width": 96, "blocks": 1, "train-passages": 40},
        # of 18 000
        "classification": {"dataset": "digits", "model": "dnn"},
    }
    config = {"task": task} | {f"{task}.{k}": v for k, v in settings[task].items()}
    runs = {
        method: sim.app.experiment({**config, "method": method}, 4)
        for method in ("zeroth-order-sgd", "local-sgd")
    }
    found = {
        method: run.task.client_parts(1)["objective"] for method, run in runs.items()
    }
    size = sum(int(np.prod(s)) for s in runs["local-sgd"].task.shapes())
    kind = TorchForward if size >= FORWARD_FROM else TorchObjective
    assert isinstance(found["zeroth-order-sgd"], kind)
    assert isinstance(found["local-sgd"], TorchObjective)
    assert (task == "characters") == (kind is TorchForward)
    start = runs["local-sgd"].task.initial_point()
    values = [objective.value(start) for objective in found.values()]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    for own in (objective.initial_point() for objective in found.values()):
        assert all(map(np.allclose, own, start))
    # the server measures a gradient all the same
    assert np.isfinite(
        runs["zeroth-order-sgd"].task.objective().gradient(start)[0]
    ).all()
