"""Figure 1: what Deep Leakage makes of a gradient, and of an oracle's answer.

One attack on one answer. That it fails on an ℓ1 ball proves nothing: what a server
computes from the answers of many rounds is in ``docs/fedfw.md`` under "Privacy".
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.common import Item, Options, SkippedError, workers
from reproduce.drawing import measured, new_figure, save
from tasks.data.cifar import read_cifar

__all__ = ["ITEMS", "attack", "psnr"]

#: What the attacker sees.
SHARED = {
    "gradient": "raw gradient",
    "l2": "ℓ2 ball's oracle",
    "l1": "ℓ1 ball's oracle",
}
# Of the test batch: a ship, a frog.
IMAGES = (1, 7)
RESTARTS = 3
# The first of the test batch, with fewer iterations.
MANY, SHORT = 4, 2000
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


def attack(
    truth: Array, label: int, shared: str, iterations: int, seed: int
) -> dict[str, Any]:
    """Look for an image that would have made the client send what it sent.

    Minimises ‖g(x) − g‖² for the gradient, ‖g(x)/‖g(x)‖ + s/r‖² for the oracle's
    answer s, which is −r g/‖g‖ on the ℓ2 ball and −r sign(g_j) e_j on the ℓ1 ball,
    with L-BFGS from noise. The attacker knows the network and the label.

    Parameters
    ----------
    truth : ndarray of shape (3, 32, 32)
    label : int
    shared : {"gradient", "l2", "l1"}
    iterations : int
        Evaluations of what is minimised.
    seed : int
        Of the noise.

    Returns
    -------
    dict
        ``image``, ``loss`` and, by ``iteration``, ``psnr``.
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

    seen = gradient(torch.tensor(truth), False)
    if shared == "l2":
        seen = seen / seen.norm()
    elif shared == "l1":
        one = torch.zeros_like(seen)
        j = int(seen.abs().argmax())
        one[j] = seen[j].sign()
        seen = one

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
    curve: dict[str, list[float]] = {"iteration": [], "psnr": []}
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
        curve["iteration"].append(count)
        curve["psnr"].append(psnr(best["image"], truth))
        if count - before <= 1 or not bool(torch.isfinite(image).all()):
            break  # converged, or lost
    # a run that ended early stays where it is
    curve["iteration"].append(iterations)
    curve["psnr"].append(psnr(best["image"], truth))
    return {**best, **curve}


def _perform(arguments: tuple[Array, int, str, int, int]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return attack(*arguments)


def _batch(options: Options) -> Any:
    """The test batch of CIFAR-10."""
    if importlib.util.find_spec("torch") is None:
        raise SkippedError("needs the extra torch")
    folder = options.file("cifar10")
    names = [f"test_batch{end}" for end in ("", ".bin", ".bin.xz", ".bin.gz")]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise SkippedError("needs cifar10/test_batch, or .bin, .bin.xz, .bin.gz")
    return read_cifar(path)


def compute(options: Options) -> dict[str, Any]:
    """Attack two images with what is shared; of several starts the lowest loss."""
    batch = _batch(options)
    chosen = IMAGES[:1] if options.quick else IMAGES
    restarts = 1 if options.quick else RESTARTS
    iterations = 60 if options.quick else 5000
    truths = {k: batch.pixels[k].astype(np.float64) / 255.0 for k in chosen}
    cases = [
        (k, what, seed) for k in chosen for what in SHARED for seed in range(restarts)
    ]
    tasks = [
        (truths[k], int(batch.labels[k]), what, iterations, seed)
        for k, what, seed in cases
    ]
    with workers(options.jobs) as pool:
        found = dict(zip(cases, pool.map(_perform, tasks), strict=True))
    images = []
    for k in chosen:
        row: dict[str, Any] = {"index": k, "truth": truths[k].round(4).tolist()}
        for what in SHARED:
            runs = [found[k, what, seed] for seed in range(restarts)]
            best = min(runs, key=lambda run: run["loss"])
            row[what] = {
                "image": np.clip(best["image"], 0.0, 1.0).round(4).tolist(),
                "loss": best["loss"],
                "iteration": best["iteration"],
                "psnr": best["psnr"],
                "all": [run["psnr"][-1] for run in runs],
            }
        # what any guess reaches: the mean grey
        grey = np.full(truths[k].shape, 0.5)
        row["grey"] = psnr(grey, truths[k])
        images.append(row)
    return {"images": images, "iterations": iterations, "restarts": restarts}


def render(results: dict[str, Any], out: Path) -> str:
    """Draw the images side by side, and PSNR over iterations."""
    rows = results["images"]
    figure, axes = new_figure(5, len(rows))
    figure.set_size_inches(13.5, 2.9 * len(rows))
    lines = [
        "| image | shared | PSNR, dB | of all starts | attack's loss |",
        "| --- | --- | --- | --- | --- |",
    ]
    for line, row in zip(axes, rows, strict=True):
        shown = {"the client's image": row["truth"]}
        for what, name in SHARED.items():
            run = row[what]
            shown[f"{name}\n{run['psnr'][-1]:.1f} dB"] = run["image"]
            line[4].plot(run["iteration"], run["psnr"], label=name)
            every = ", ".join(f"{value:.1f}" for value in run["all"])
            lines.append(
                f"| {row['index']} | {name} | {run['psnr'][-1]:.1f} | {every} "
                f"| {run['loss']:.1e} |"
            )
        lines.append(
            f"| {row['index']} | nothing: plain grey | {row['grey']:.1f} | | |"
        )
        for one, (name, pixels) in zip(line, shown.items(), strict=False):
            one.imshow(np.array(pixels).transpose(1, 2, 0), vmin=0.0, vmax=1.0)
            one.set_title(name, fontsize="medium")
            one.grid(False)
            one.set_xticks([])
            one.set_yticks([])
        line[4].axhline(row["grey"], color="k", linestyle=":", label="plain grey")
        line[4].set_xlabel("iteration of the attack")
        line[4].set_ylabel("PSNR (dB)")
        line[4].set_xscale("log")
        line[4].legend(fontsize="small")
    lines += [
        "",
        f"{results['iterations']:,} iterations of L-BFGS, {results['restarts']} "
        f"starts, the one with the lowest loss is shown. {measured(results)}",
    ]
    return f"{save(figure, out, 'figure-1')}\n\n" + "\n".join(lines)


# -------------------------------------------------------------------------- many images


def compute_many(options: Options) -> dict[str, Any]:
    """The first images of the test batch, one start each."""
    batch = _batch(options)
    count, iterations = (3, 40) if options.quick else (MANY, SHORT)
    cases = [(k, what) for k in range(count) for what in SHARED]
    truths = [batch.pixels[k].astype(np.float64) / 255.0 for k in range(count)]
    tasks = [
        (truths[k], int(batch.labels[k]), what, iterations, k) for k, what in cases
    ]
    with workers(options.jobs) as pool:
        found = dict(zip(cases, pool.map(_perform, tasks), strict=True))
    images = [
        {what: found[k, what]["psnr"][-1] for what in SHARED}
        | {"grey": psnr(np.full(truths[k].shape, 0.5), truths[k])}
        for k in range(count)
    ]
    return {"images": images, "iterations": iterations, "seeds": list(range(count))}


def render_many(results: dict[str, Any], out: Path) -> str:
    """Write medians and quartiles of PSNR, and how often it beats plain grey."""
    images = results["images"]
    grey = np.array([row["grey"] for row in images])
    lines = [
        "| shared | PSNR, dB: median | quartiles | 3 dB above plain grey |",
        "| --- | --- | --- | --- |",
    ]
    for what, name in SHARED.items():
        values = np.array([row[what] for row in images])
        low, middle, high = np.percentile(values, (25, 50, 75))
        lines.append(
            f"| {name} | {middle:.1f} | {low:.1f} to {high:.1f} "
            f"| {int(np.sum(values > grey + 3.0))} of {len(images)} |"
        )
    lines += [
        "",
        f"{len(images)} images, {results['iterations']} iterations of L-BFGS from one "
        f"start. Plain grey: {np.median(grey):.1f} dB. {measured(results)}",
    ]
    return "\n".join(lines)


ITEMS = {
    "leakage": Item(
        "figure 1's claim on four images, one start each", compute_many, render_many
    ),
    "figure-1": Item(
        "Deep Leakage: an image from its gradient, and from oracles' answers",
        compute,
        render,
    ),
}
