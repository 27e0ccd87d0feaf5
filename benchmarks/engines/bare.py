"""The job as one writes it down without any framework."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .job import CLASSES, LOCAL_STEPS, STEP_SIZE, Job, Run, model_of, timed

__all__ = ["numpy_cohort", "numpy_loop", "torch_loop"]


def numpy_loop(job: Job) -> Callable[[], Run]:
    """One client after the other, in NumPy."""
    data = list(zip(job.with_ones, job.one_hot, strict=True))

    def play() -> np.ndarray:
        x = job.start
        for cohort in job.cohorts:
            total = np.zeros_like(x)
            for client in cohort:
                A, Y = data[client]
                w = x.copy()
                for _ in range(LOCAL_STEPS):
                    P = A @ w
                    P -= P.max(axis=1, keepdims=True)
                    np.exp(P, out=P)
                    P /= P.sum(axis=1, keepdims=True)
                    P -= Y
                    # w ← w − γ (1/d) Aᵀ(softmax(A w) − Y)
                    w -= STEP_SIZE / len(A) * (A.T @ P)
                total += w
            x = total / len(cohort)
        return x

    return lambda: timed(play)


def numpy_cohort(job: Job) -> Callable[[], Run]:
    """All clients of a round at once, in NumPy."""
    features, one_hot = job.with_ones, job.one_hot

    def play() -> np.ndarray:
        x = job.start
        for cohort in job.cohorts:
            A, Y = features[cohort], one_hot[cohort]
            transposed = A.transpose(0, 2, 1)
            w = np.repeat(x[None], len(cohort), axis=0)
            for _ in range(LOCAL_STEPS):
                P = A @ w
                P -= P.max(axis=2, keepdims=True)
                np.exp(P, out=P)
                P /= P.sum(axis=2, keepdims=True)
                P -= Y
                w -= STEP_SIZE / A.shape[1] * (transposed @ P)
            x = w.mean(axis=0)
        return x

    return lambda: timed(play)


def torch_loop(job: Job) -> Callable[[], Run]:
    """One client after the other, as a PyTorch user writes it: a module and SGD."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    features = torch.tensor(job.features, dtype=torch.float32)
    labels = torch.tensor(job.labels)

    def play() -> np.ndarray:
        net = nn.Linear(features.shape[2], CLASSES)
        loss, optimizer = (
            nn.CrossEntropyLoss(),
            torch.optim.SGD(net.parameters(), lr=STEP_SIZE),
        )
        parameters = list(net.parameters())
        x = [torch.zeros_like(p) for p in parameters]
        for cohort in job.cohorts:
            total = [torch.zeros_like(p) for p in parameters]
            for client in cohort:
                with torch.no_grad():
                    for p, value in zip(parameters, x, strict=True):
                        p.copy_(value)
                inputs, targets = features[client], labels[client]
                for _ in range(LOCAL_STEPS):
                    optimizer.zero_grad()
                    loss(net(inputs), targets).backward()
                    optimizer.step()
                with torch.no_grad():
                    for part, p in zip(total, parameters, strict=True):
                        part += p
            x = [part / len(cohort) for part in total]
        return model_of(*(part.numpy() for part in x))

    return lambda: timed(play)
