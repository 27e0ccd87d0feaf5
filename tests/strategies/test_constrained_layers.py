"""One layer of a PyTorch module in a set, and methods that keep it there."""

from functools import partial
from typing import Any

import cvxpy
import numpy as np
import pytest
from numpy.testing import assert_allclose

from clients import (
    FedFWClient,
    FedLMOClient,
    NaiveFrankWolfeClient,
    ProjectedFedAvgClient,
)
from fedtrellis.domains import (
    Domain,
    L1Ball,
    L2Ball,
    NuclearNormBall,
    Product,
    WholeSpace,
    constrain,
)
from fedtrellis.objectives import LeastSquares
from strategies import FedFW, FedLMO, NaiveFrankWolfe, ProjectedFedAvg
from tests.harness import grid_of, not_daily, play, refused

cp: Any = cvxpy  # its functions are not typed
torch = pytest.importorskip("torch")
RADIUS = 1.5


def module() -> Any:
    """Two layers; the first one's weight begins outside the ball."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers).double()


def losses(count: int) -> list[Any]:
    from fedtrellis.objectives.torch_objective import TorchObjective

    rng, loss = np.random.default_rng(1), torch.nn.CrossEntropyLoss()
    return [
        TorchObjective(
            module(), loss, (rng.normal(size=(20, 6)), rng.integers(3, size=20))
        )
        for _ in range(count)
    ]


def first_layer(rest: Domain | None = None) -> Any:
    return constrain(module(), {"0.weight": NuclearNormBall(RADIUS)}, rest)


def test_layers_are_named_as_the_module_names_them() -> None:
    domain = first_layer()
    assert isinstance(domain, Product)
    assert domain.shapes == ((5, 6), (5,), (3, 5), (3,))
    assert domain.domains == (NuclearNormBall(RADIUS), *[WholeSpace()] * 3)
    assert not domain.bounded
    assert first_layer(L2Ball(9.0)).bounded
    model = module()
    model[0].bias.requires_grad_(False)  # frozen: it is no part of the point
    assert len(constrain(model, {"2.bias": L2Ball(1.0)}).domains) == 3  # type: ignore[attr-defined]
    alone = torch.nn.Linear(3, 2, bias=False)
    assert constrain(alone, {"weight": L2Ball(1.0)}) == L2Ball(1.0)
    refused(
        "'0.weigth' is not known .*'0.weight'",
        lambda: constrain(model, {"0.weigth": L2Ball(1.0)}),
    )
    with pytest.raises(ValueError, match=r"nuclear-norm-ball .*\(3,\)"):
        constrain(model, {"2.bias": NuclearNormBall(1.0)})


def test_what_has_no_oracle_is_refused_and_projects() -> None:
    free = first_layer()
    no_layer = "bounded: FedFW needs a bounded set for at least one layer"
    refused(no_layer, lambda: FedFW(constrain(module(), {})))
    refused("variant = 'plain' needs a bou", lambda: FedFW(free, variant="plain"))
    refused("certificate does not apply", lambda: FedFW(free, certificate=True))
    larger = [first_layer(L2Ball(9.0))]
    refused("client_domains does not", lambda: FedFW(free, client_domains=larger))
    refused("domain = 3.0 must be a fedtrellis Domain", lambda: FedFW(3.0))  # type: ignore[arg-type]
    any_: Any = 3.0
    for client in (FedFWClient, NaiveFrankWolfeClient):
        refused("domain = 3.0 must", partial(client, any_, any_, any_))
    refused("FedFW needs a bounded set for every", lambda: NaiveFrankWolfe(free))
    refused(
        "radius = 2.0 does not go with a domain",
        lambda: FedLMO(domain=first_layer(), radius=2.0),
    )
    domain, x = first_layer(), np.random.default_rng(0).normal(size=first_layer().size)
    refused("whole-space is not bounded", lambda: domain.lmo(x), ValueError)
    assert_allclose(domain.project(x)[30:], x[30:], rtol=0)  # the free layers stay


def test_a_constrained_layer_steps_to_its_extreme_point_and_others_as_before() -> None:
    """FedLMO's rounds with one client, worked out with NumPy's own decomposition."""
    (loss,) = losses(1)
    options: Any = {"local_steps": 3, "batch_size": 0, "momentum": 0.0, "seed": 0}
    options |= {"variant": "local", "step_size": 0.2, "orthogonalization": "svd"}
    domain = first_layer()
    grid = grid_of(FedLMOClient, [loss], domain)
    ran = play(FedLMO(domain=domain, **options), grid, loss.initial_point(), 2)
    W, b, V, c = (x.copy() for x in loss.initial_point())
    W = NuclearNormBall(RADIUS).project(W)
    for gamma in (0.2,) * 3 + (0.1,) * 3:  # γ (1 − (t − 1)/T)
        gW, gb, gV, gc = loss.gradient([W, b, V, c])
        u, _, vt = np.linalg.svd(gW)
        W = W + gamma * (-RADIUS * np.outer(u[:, 0], vt[0]) - W)
        u, _, vt = np.linalg.svd(gV)  # of rank 2: what softmax sees of three scores
        V = V - gamma * np.sqrt(3 / 5) * u[:, :2] @ vt[:2]
        b, c = b - gamma * np.sign(gb), c - gamma * np.sign(gc)
    expected = np.concatenate([x.ravel() for x in (W, b, V, c)])
    assert_allclose(ran.models[-1].ravel(), expected, atol=1e-9)


def test_fedfw_solves_for_a_constrained_and_a_free_layer() -> None:
    """The solution by CVXPY, of least squares whose clients are unlike."""
    rng = np.random.default_rng(3)
    domain = Product([L1Ball(0.8), WholeSpace()], [(4, 3), (5,)])
    A, b = rng.normal(size=(3, 30, 17)), rng.normal(size=(3, 30)) + np.eye(3, 30)
    parts = [LeastSquares(*pair) for pair in zip(A, b, strict=True)]
    strategy, grid = FedFW(domain, tolerance=1e-9), grid_of(FedFWClient, parts, domain)
    ran = play(strategy, grid, np.zeros(17), 2000)
    x = cp.Variable(17)
    total = cp.sum_squares(A.reshape(-1, 17) @ x - b.ravel())
    cp.Problem(cp.Minimize(total), [cp.norm1(x[:12]) <= 0.8]).solve("CLARABEL")
    assert strategy.ending == "converged"
    assert_allclose(ran.model, x.value, atol=1e-6)


def test_a_liar_cannot_take_a_free_layer_out_of_proportion() -> None:
    class Liar(FedFWClient):
        def steps(self, x: Any, config: dict[str, Any]) -> Any:
            arrays, *rest = yield from super().steps(x, config)
            lies = self.client_id == "0"
            return [*arrays[:-1], arrays[-1] * (1e12 if lies else 1.0)], *rest

    domain, strategy = first_layer(), FedFW(first_layer(), schedule="nonconvex")
    parts = losses(3)
    ran = play(strategy, grid_of(Liar, parts, domain), parts[0].initial_point(), 2)
    for record in strategy.history:
        ((who, why),) = record.rejected
        assert who == "0"
        assert "beyond answer-bound" in why
    assert max(np.abs(x).max() for x in ran.arrays) < 100.0


@pytest.mark.parametrize(
    "method",
    ["projected", "corrected", "averaged", "server", "ef21", *not_daily("fedfw")],
)
def test_every_method_keeps_the_layer_in_its_set_and_learns(method: Any) -> None:
    domain, parts = first_layer(), losses(3)
    more: list[Any] = []
    strategy: Any
    if method == "projected":
        strategy = ProjectedFedAvg(domain, local_step_size=0.3)
        client: Any = ProjectedFedAvgClient
    elif method == "fedfw":
        strategy = FedFW(domain, schedule="nonconvex")
        client, more = FedFWClient, [domain]
    else:
        strategy = FedLMO(domain=domain, variant=method, step_size=0.1, batch_size=0)
        client, more = FedLMOClient, [domain]
    start = parts[0].initial_point()
    ran = play(strategy, grid_of(client, parts, *more), start, 20)
    x = np.concatenate([layer.ravel() for layer in ran.arrays])
    assert domain.contains(x, 1e-6)
    losses_of = [[f.value(point) for f in parts] for point in (start, x)]
    assert sum(losses_of[1]) < 0.95 * sum(losses_of[0])
