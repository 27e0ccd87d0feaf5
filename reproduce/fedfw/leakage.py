"""Figure 1: what attacks make of a gradient, and of an oracle's answer.

Two attacks on one answer. That they fail on an ℓ1 ball proves nothing: what a server
computes from the answers of many rounds is in ``docs/fedfw.md`` under "Privacy".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Item, Options, SkippedError, workers
from reproduce.drawing import table
from tasks.data.datasets import read_cifar

__all__ = ["ITEMS", "attack", "invert", "psnr"]

#: What the attacker sees.
SHARED = {
    "gradient": "raw gradient",
    "l2": "ℓ2 ball's oracle",
    "l1": "ℓ1 ball's oracle",
}
# The first images of the test batch that each attack is tried on, and its iterations.
DEEP, SHORT = 16, 2000
MANY, INVERTING = 50, 600
#: τ, and the first step; τ is the best of four for the gradient of the first image.
SMOOTHNESS, STEP = 1e-3, 0.025
Array = NDArray[np.float64]


def psnr(image: Array, truth: Array) -> float:
    """Return 10 log₁₀ (1 / mean squared error), in decibel; pixels lie in [0, 1]."""
    error = float(np.mean((np.clip(image, 0.0, 1.0) - truth) ** 2))
    return 10.0 * float(np.log10(1.0 / max(error, 1e-12)))


def _network(seed: int) -> Any:
    """Return the attack's network: three convolutions, sigmoids, uniform weights."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(768, 10),
        ).double()
        for parameter in network.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return network


def _seen(gradient: Any, shared: str) -> Any:
    """What the attacker gets: the gradient, or −s/r of an oracle's answer s."""
    import torch

    if shared == "l2":
        return gradient / gradient.norm()
    if shared == "l1":
        one = torch.zeros_like(gradient)
        j = int(gradient.abs().argmax())
        one[j] = gradient[j].sign()
        return one
    return gradient


def attack(
    truth: Array, label: int, shared: str, iterations: int, seed: int
) -> dict[str, Any]:
    """Look for an image that would have made the client send what it sent.

    Minimises ‖g(x) − g‖² for the gradient, ‖g(x)/‖g(x)‖ + s/r‖² for the oracle's
    answer s, which is −r g/‖g‖ on the ℓ2 ball and −r sign(g_j) e_j on the ℓ1 ball,
    with L-BFGS from noise, in so many evaluations. The attacker knows the network and
    the label of the ``truth``, an image of shape (3, 32, 32).
    """
    import torch
    from torch.nn.functional import cross_entropy

    network = _network(0)
    target = torch.tensor([label])

    def gradient(image: Any, graph: bool) -> Any:
        loss = cross_entropy(network(image[None]), target)
        parts = torch.autograd.grad(
            loss, list(network.parameters()), create_graph=graph
        )
        return torch.cat([part.reshape(-1) for part in parts])

    seen = _seen(gradient(torch.tensor(truth), False), shared)
    start = np.random.default_rng(seed).standard_normal(truth.shape)
    image = torch.tensor(start, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS(
        [image],
        lr=1.0,
        max_iter=20,
        history_size=100,
        # what is minimised has another scale for each of the three: no early stop
        tolerance_grad=0.0,
        tolerance_change=0.0,
    )
    best: dict[str, Any] = {"loss": np.inf, "image": start}
    count = 0

    def closure() -> Any:
        nonlocal count
        optimizer.zero_grad()
        made = gradient(image, True)
        if shared != "gradient":
            made = made / made.norm()
        loss = ((made - seen) ** 2).sum()
        loss.backward()
        count += 1
        value = float(loss.detach())
        if value < best["loss"]:
            best["loss"], best["image"] = value, image.detach().numpy().copy()
        return loss

    while count < iterations:
        before = count
        optimizer.step(closure)
        if count - before <= 1 or not bool(torch.isfinite(image).all()):
            break  # converged, or lost
    return best | {"psnr": psnr(best["image"], truth)}


def invert(
    truths: Sequence[Array],
    labels: Sequence[int],
    shared: str,
    iterations: int,
    seed: int,
) -> list[float]:
    """PSNR of what Geiping et al., "Inverting gradients", 2020, find for each image.

    Minimises 1 − cos(g(x), g) + τ TV(x) over images in [0, 1] with the signs of Adam's
    gradients. Their first step, 0.1, is of normalised pixels, whose unit is about a
    quarter; it falls to a tenth after 3/8, 5/8 and 7/8 of all steps. A cosine has no
    use for lengths, so that the ℓ2 oracle's answer is as good as g.
    """
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    network = _network(0)
    weights = {name: p.detach() for name, p in network.named_parameters()}
    target = torch.tensor(list(labels))

    def loss(parameters: Any, image: Any, label: Any) -> Any:
        scores = functional_call(network, parameters, (image[None],))
        return cross_entropy(scores, label[None])

    def gradients(images: Any) -> Any:
        # the attacker tries all images at once, each by its own gradient
        found = vmap(grad(loss), (None, 0, 0))(weights, images, target)
        return torch.cat([part.flatten(1) for part in found.values()], dim=1)

    with torch.no_grad():
        true = gradients(torch.tensor(np.array(truths)))
        seen = torch.stack([_seen(g, shared) for g in true])
    noise = np.random.default_rng(seed).standard_normal((len(truths), *truths[0].shape))
    images = torch.tensor(np.clip(0.5 + 0.25 * noise, 0.0, 1.0), requires_grad=True)
    optimizer = torch.optim.Adam([images], lr=STEP)
    falls = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
    best = torch.full((len(truths),), torch.inf, dtype=torch.float64)
    kept = images.detach().clone()
    for _ in range(iterations):
        cosine = torch.cosine_similarity(gradients(images), seen)
        across = (images[..., 1:] - images[..., :-1]).abs().mean(dim=(1, 2, 3))
        down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean(dim=(1, 2, 3))
        values = 1.0 - cosine + SMOOTHNESS * (across + down)
        (slope,) = torch.autograd.grad(values.sum(), images)
        with torch.no_grad():
            better = values < best
            best[better], kept[better] = values[better], images[better]
        images.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0.0, 1.0)
    return [
        psnr(image, truth) for image, truth in zip(kept.numpy(), truths, strict=True)
    ]


def _alone(job: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """Call a function in a process that shares the cores with others."""
    import torch

    torch.set_num_threads(1)
    return job[0](*job[1])


def _batch(options: Options) -> Any:
    """The test batch of CIFAR-10."""
    if importlib.util.find_spec("torch") is None:
        raise SkippedError("needs the extra torch")
    folder = options.file("cifar10")
    names = [f"test_batch{end}" for end in (".bin", ".bin.xz", ".bin.gz")]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise SkippedError("needs cifar10/test_batch.bin, .bin.xz or .bin.gz")
    return read_cifar(path)


#: The attacks, by their names in the results.
ATTACKS = {
    "deep leakage": "Deep Leakage (L-BFGS)",
    "cosine": "Inverting gradients (cosine, Adam)",
}


def compute(options: Options) -> dict[str, Any]:
    """The first images of the test batch, each attack from one start each."""
    pixels, classes = _batch(options)
    sizes = (2, 40, 3, 40) if options.quick else (DEEP, SHORT, MANY, INVERTING)
    few, iterations, count, steps = sizes
    truths = [pixels[k].astype(np.float64) / 255.0 for k in range(count)]
    labels = [int(label) for label in classes[:count]]
    deep = [
        (attack, (truths[k], labels[k], what, iterations, k))
        for what in SHARED
        for k in range(few)
    ]
    cosine = [(invert, (truths, labels, what, steps, 0)) for what in SHARED]
    with workers(options.jobs) as pool:
        leaked = [one["psnr"] for one in pool.map(_alone, deep)]
        inverted = dict(zip(SHARED, pool.map(_alone, cosine), strict=True))
    return {
        "psnr": {
            "deep leakage": {
                what: leaked[k * few : (k + 1) * few] for k, what in enumerate(SHARED)
            },
            "cosine": inverted,
        },
        "grey": [psnr(np.full(truth.shape, 0.5), truth) for truth in truths],
        "iterations": {"deep leakage": iterations, "cosine": steps},
        "seeds": list(range(few)),
    }


def render(results: dict[str, Any], out: Path) -> str:
    """Write medians and quartiles of PSNR, and how often it beats plain grey."""
    grey, lines = np.array(results["grey"]), []
    for how, title in ATTACKS.items():
        for what, name in SHARED.items():
            values = np.array(results["psnr"][how][what])
            low, middle, high = np.percentile(values, (25, 50, 75))
            above = int(np.sum(values > grey[: len(values)] + 3.0))
            spread = (f"{middle:.1f}", f"{low:.1f} to {high:.1f}")
            ends = (*spread, f"{above} of {len(values)}")
            lines.append((title, results["iterations"][how], name, *ends))
    head = "attack | steps | shared | PSNR, dB: median | quartiles"
    return (
        f"{table(f'{head} | 3 dB above plain grey', lines)}\n\n"
        f"{len(grey)} images, one start each. Plain grey: {np.median(grey):.1f} dB."
    )


ITEMS = {
    "leakage": Item("figure 1's claim on fifty images, two attacks", compute, render),
}
