"""The job as one writes it down without any framework."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .job import CLASSES, LOCAL_STEPS, STEP_SIZE, Job, Run, model_of, timed

__all__ = ["numpy_loop", "torch_loop"]


def numpy_loop(job: Job) -> Callable[[], Run]:
    """One client after the other, in NumPy."""
    data = list(zip(job.with_ones, job.labels, strict=True))

    def play() -> np.ndarray:
        x = job.start
        for cohort in job.cohorts:
            models = []
            for client in cohort:
                A, y = data[client]
                w = x.copy()
                for _ in range(LOCAL_STEPS):
                    scores = A @ w
                    P = np.exp(scores - scores.max(axis=1, keepdims=True))
                    P /= P.sum(axis=1, keepdims=True)
                    P[np.arange(len(y)), y] -= 1.0
                    # w ← w − γ (1/d) Aᵀ(softmax(A w) − Y), Y the labels' unit vectors
                    w -= STEP_SIZE / len(y) * (A.T @ P)
                models.append(w)
            x = np.mean(models, axis=0)
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
