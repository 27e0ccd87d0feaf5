"""FedLMO against PyTorch's Muon, plain loops, and what fools plain averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import pytest

from clients import CompressedSGDClient, FedLMOClient
from fedtrellis.compressors import Natural, Quantized, Signs, TopK, TopTriples
from fedtrellis.domains import L2Ball
from fedtrellis.layer_steps import LayerOracle, settle_kinds
from fedtrellis.wire.arrays import Layout
from strategies import CompressedSGD, FedLMO
from tests.harness import Array, Distance, Played, grid_of, play, refused

SHAPES = [(6, 4), (4,), (5, 4)]
START = [np.zeros(shape) for shape in SHAPES]


def quadratics(count: int, spread: float = 3.0) -> list[Distance]:
    rng = np.random.default_rng(1)
    return [
        Distance(*(spread * rng.standard_normal(shape) for shape in SHAPES))
        for _ in range(count)
    ]


def lmo_run(losses: Sequence[Any], rounds: int, **how: Any) -> Played[FedLMO]:
    strategy = FedLMO(batch_size=0, **how)
    return play(strategy, grid_of(FedLMOClient, losses), START, rounds)


def polar(matrix: Any) -> Array:
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(u @ vt)


def test_each_oracle_is_the_least_point_of_its_ball() -> None:
    rng = np.random.default_rng(0)
    d = rng.standard_normal((7, 5))
    for kind, norm in (
        ("spectral", lambda s: np.linalg.norm(s, 2) / sqrt(7 / 5)),
        ("sign", lambda s: np.abs(s).max()),
        ("rows", lambda s: np.linalg.norm(s, axis=1).max() / sqrt(5)),
    ):
        [s] = LayerOracle((kind,), orthogonalization="svd")([d])
        assert norm(s) == pytest.approx(1.0)
        others = rng.standard_normal((200, *d.shape))
        assert all(np.vdot(d, s) <= np.vdot(d, o / norm(o)) for o in others)
        [s] = LayerOracle((kind,))([np.zeros((3, 4))])
        assert not s.any()


def test_steps_beyond_a_set_end_in_it() -> None:
    how: Any = {"domain": L2Ball(1.0), "variant": "server", "step_size": 1.7}
    how["step_schedule"] = "constant"
    grid = grid_of(FedLMOClient, [Distance(np.full(3, 9.0))] * 2, L2Ball(1.0))
    model = play(FedLMO(batch_size=0, **how), grid, np.zeros(3), 3).model
    assert L2Ball(1.0).contains(model)


def test_scales_of_convolutions() -> None:
    d = np.random.default_rng(0).standard_normal((8, 3, 2, 2))
    for scaling, scale in (("scion", sqrt(8 / 3) / 4), ("muon", 1.0)):
        [s] = LayerOracle(("spectral",), scaling, "svd")([d])
        assert (
            np.abs(s + scale * polar(d.reshape(8, 12)).reshape(d.shape)).max() < 1e-12
        )


def test_kinds_of_layers() -> None:
    found = settle_kinds("", [(3, 4), (4,), (2, 3, 5, 5), ()])
    assert found == ("spectral", "sign", "spectral", "sign")
    for kinds, words in (
        ("sign", "names 1 layers; the model has 2"),
        ("sign,columns", "'columns'"),
        ("sign,rows", r"not for one of shape \(4,\)"),
    ):
        refused(f"layers.*{words}", partial(settle_kinds, kinds, [(3, 4), (4,)]))
    steps = partial(lmo_run, quadratics(2), 2, layers="spectral,sign")
    refused("layers = 'spectral,sign'", steps)


def test_one_client_takes_the_steps_of_muon() -> None:
    """100 steps in 20 rounds, momentum kept across them, as torch.optim.Muon's."""
    torch = pytest.importorskip("torch")
    from fedtrellis.objectives.torch_objective import TorchObjective

    def network() -> Any:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(m, n, bias=False) for m, n in ((12, 10), (10, 6))]
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])

    torch.manual_seed(1)
    data = (torch.randn(40, 12), torch.randn(40, 6))
    model = network()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02, weight_decay=0.0)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data[0]), data[1]).backward()
        optimizer.step()
    expected = [p.detach().numpy() for p in model.parameters()]

    objective = TorchObjective(network(), torch.nn.MSELoss(), data)
    steps: Any = {"local_steps": 5, "step_size": 0.02, "step_schedule": "constant"}
    muon: Any = {"momentum": 0.95, "nesterov": True, "scaling": "muon"}
    more: Any = {"orthogonalization": "bfloat16", "dtype": "float32"}
    strategy = FedLMO(variant="local", batch_size=0, **steps, **muon, **more)
    start = objective.initial_point()
    run = play(strategy, grid_of(FedLMOClient, [objective]), start, 20)
    for ours, theirs, first in zip(run.arrays, expected, start, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
        assert np.abs(first - theirs).max() > 0.1


def newton_schulz_by_hand(d: Array) -> Array:
    x = d / np.sqrt((d * d).sum())
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.775 * (a @ x) + 2.0315 * (a @ a @ x)
    return np.asarray(x)


Layers = Any  # an array of arrays


def layered(layers: Sequence[Array]) -> Layers:
    """Layers of unlike shapes, which are added and scaled as one array."""
    found = np.empty(len(layers), dtype=object)
    found[:] = layers
    return found


def scion_loop(
    losses: Sequence[Distance],
    sets: Sequence[Sequence[int]],
    variant: str,
    radius: float,
    size_at: Callable[[int], float],
    orthogonal: Callable[[Array], Array],
) -> Layers:
    """The model in the end, by the text of the algorithm; k = 3, γ = 0.2, μ = 0.7."""
    zeros = layered(START)
    n, x, server_m = len(losses), zeros, zeros
    m, c_i = [zeros] * n, [zeros] * n

    def gradient(i: int, at: Layers) -> Layers:
        return layered(losses[i].gradient(list(at)))

    def step(at: Layers, direction: Layers, size: float) -> Layers:
        """By the table: −√(out/in) U Vᵀ and −sign."""
        s = [
            -sqrt(d.shape[0] / d.shape[1]) * orthogonal(d)
            if d.ndim == 2
            else -np.sign(d)
            for d in direction
        ]
        if radius:
            return (1.0 - size) * at + size * radius * layered(s)
        return at + size * layered(s)

    for t, S in enumerate(sets):
        size = 0.2 * size_at(t)
        if variant == "averaged":
            m = [server_m] * n
        c, ends, means = sum(c_i) / n, [], {}
        for i in S:
            x_i, h = x, zeros
            for _ in range(3):
                g = gradient(i, x_i)
                h = h + g / 3
                if variant == "corrected":
                    g = g + c - c_i[i]
                m[i] = 0.7 * m[i] + 0.3 * g
                x_i = step(x_i, m[i], size)
            ends.append(x_i)
            means[i] = h
        if S and variant == "server":
            server_m = 0.7 * server_m + 0.3 * sum(gradient(i, x) for i in S) / len(S)
            x = step(x, server_m, size)
        elif S:
            x, server_m = sum(ends) / len(S), sum(m[i] for i in S) / len(S)
            c_i = [means.get(i, old) for i, old in enumerate(c_i)]
    return x


#: What a step's size is multiplied with in round t, counted from 0, of 12.
SIZES: dict[str, Callable[[int], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1.0 - t / 12,
}


@pytest.mark.parametrize("variant", ["local", "averaged", "corrected", "server"])
@pytest.mark.parametrize(
    ("radius", "how", "schedule"),
    [
        *((0.0, "svd", "constant"), (4.0, "svd", "constant")),
        *((0.0, "newton-schulz", "linear"), (4.0, "newton-schulz", "linear")),
    ],
)
def test_equals_loop(variant: Any, radius: float, how: Any, schedule: Any) -> None:
    # so far away that no entry's sign hangs on its last digit
    losses, exact = quadratics(4, spread=9.0), how == "svd"
    steps: Any = {"local_steps": 3, "step_size": 0.2, "step_schedule": schedule}
    more: Any = {"momentum": 0.7}
    own: Any = {"variant": variant, "radius": radius, "orthogonalization": how}
    run = lmo_run(losses, 12, participation=0.6, seed=2, **steps, **more, **own)
    assert {len(S) for S in run.used} > {1, 2}
    by = polar if exact else newton_schulz_by_hand
    expected = scion_loop(losses, run.used, variant, radius, SIZES[schedule], by)
    for ours, theirs in zip(run.arrays, expected, strict=True):
        assert np.abs(ours - theirs).max() < (1e-10 if exact else 1e-5)
        assert np.abs(theirs).max() > 0.5


@pytest.mark.parametrize("variant", ["averaged", "corrected", "server", "ef21"])
def test_plain_averages_of_lmo_steps_stay_off_the_optimum(variant: Any) -> None:
    """And control variates and server steps do not, of two quadratics.

    A momentum that all begin with is forgotten within a round where μ^k is small.
    """
    losses = quadratics(2)
    centres = zip(losses[0].centre, losses[1].centre, strict=True)
    optimum = [(a + b) / 2 for a, b in centres]
    how: Any = {"step_size": 0.3, "step_schedule": "linear", "momentum": 0.5}
    how |= {"kept_fraction": 0.1} if variant == "ef21" else {}
    run = lmo_run(losses, 300, variant=variant, **how)
    ends = [sum(loss.value(x) for loss in losses) / 2 for x in (run.arrays, optimum)]
    gap = ends[0] - ends[1]
    assert gap > 1.0 if variant == "averaged" else abs(gap) < 1e-3


def test_uncompressed_error_feedback_is_the_server_s_step() -> None:
    """With everybody there the mean of the clients' momenta is the server's."""
    shared: Any = {"nesterov": True, "step_size": 0.2}
    server = lmo_run(quadratics(4), 15, variant="server", **shared)
    ef21 = lmo_run(quadratics(4), 15, variant="ef21", kept_fraction=1.0, **shared)
    for a, b in zip(server.arrays, ef21.arrays, strict=True):
        assert np.abs(a - b).max() < 1e-10


LAYOUT = Layout(((9, 60), (7,), (4, 3, 5, 5)))


def through(by: Any, v: Array, layout: Layout = LAYOUT) -> Array:
    return np.asarray(by.unpack(by.pack(v, layout), layout))


def test_compressors_against_plain_formulas() -> None:
    layout = Layout(((3, 3), (4,)))
    v = np.array([5.0, -0.1, 3, 0, 2, 1, -9, 4, 0.2, 6, -7, 0.3, 8])
    expected = [0, 0, 0, 0, 0, 0, -9, 0, 0, 6, -7, 0, 8]
    assert through(TopK(0.3), v, layout).tolist() == expected
    powers = [4, -0.125, 4, 0, 2, 1, -8, 4, 0.25, 8, -8, 0.25, 8]
    assert through(Natural(), v, layout).tolist() == pytest.approx(powers)
    v = np.random.default_rng(0).standard_normal(52)
    u, sigma, vt = np.linalg.svd(v[:48].reshape(8, 6))
    read = through(TopTriples(2), v, Layout(((8, 6), (4,))))
    best = (u[:, :2] * sigma[:2]) @ vt[:2]
    assert np.abs(read[:48].reshape(8, 6) - best).max() < 1e-12
    assert np.array_equal(read[48:], v[48:])


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (7, 4), (127, 8)])
def test_quantized_entries_are_unbiased_and_near(levels: int, bits: int) -> None:
    rng = np.random.default_rng(0)
    v = np.where(np.arange(LAYOUT.size) < 20, 0.0, rng.standard_normal(LAYOUT.size))
    by = Quantized(levels, rng)
    read = np.array([through(by, v) for _ in range(400)])
    step = np.abs(v).max() / levels
    assert np.abs(read - v).max() <= step * 1.001
    assert not read[:, :20].any()
    assert np.abs(read.mean(axis=0) - v).max() < 5 * step / np.sqrt(400)
    # bits of an entry, and four bytes a bucket of 512
    packed, largest = by.pack(v, LAYOUT)
    assert packed.nbytes == -(-LAYOUT.size * bits // 8)
    assert largest.nbytes == 4 * -(-LAYOUT.size // 512)


@pytest.mark.parametrize(
    "by", [TopK(0.2), TopTriples(2), Natural(), Quantized(1), Quantized(7), Signs()]
)
def test_what_is_malformed_is_refused(by: Any) -> None:
    rng = np.random.default_rng(0)
    maker = Quantized(by.levels, rng) if isinstance(by, Quantized) else by
    good = maker.pack(np.ones(LAYOUT.size), LAYOUT)
    bad: Any = [[], [*good, good[0]], [good[0][:-1], *good[1:]]]
    if isinstance(by, Quantized):
        bad += [[good[0], good[1] * np.float32(wrong)] for wrong in (np.nan, -1.0)]
        bad += [[np.full_like(good[0], 255), good[1]]]  # a level outside
    for wrong in bad:
        with pytest.raises(ValueError, match=r"."):
            by.unpack(wrong, LAYOUT)


LMO: Any = (FedLMO, FedLMOClient, {"variant": "ef21", "batch_size": 0})
SGD: Any = (CompressedSGD, CompressedSGDClient, {"batch_fraction": 1.0})


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        # six bytes for each entry kept
        (LMO, {"compressor": "top-k", "kept_fraction": 0.01}, 200 * 6),
        # two vectors of a matrix, for each rank; a byte an entry; two bits, and one
        (LMO, {"compressor": "rank", "rank": 2}, 2 * 300 * 4),
        (LMO, {"compressor": "natural"}, 20_000),
        (SGD, {"compressor": "qsgd", "levels": 1}, 5_000),
        (SGD, {"compressor": "sign"}, 2_500),
    ],
)
def test_bytes_up(kind: Any, settings: dict[str, Any], size: int) -> None:
    make, client, own = kind
    start = [np.zeros((200, 100)), np.zeros(1)]
    loss = Distance(*(layer + 1.0 for layer in start))
    strategy = make(dtype="float32", **own, **settings)
    run = play(strategy, grid_of(client, [loss, loss]), start, 2)
    assert size < run.strategy.history[-1].bytes_up / 2 < size + 1700
