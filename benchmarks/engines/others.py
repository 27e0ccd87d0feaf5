"""The job on JAX, FedJAX and pfl-research, in environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from .job import CLASSES, LOCAL_STEPS, STEP_SIZE, Job, Run, model_of, timed

__all__ = ["fedjax", "jax_vmap", "pfl"]


def _cross_entropy(jnp: Any, logits: Any, labels: Any) -> Any:
    import jax

    scores = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def jax_vmap(job: Job) -> Callable[[], Run]:
    """A round as one compiled call, the clients by ``jax.vmap``; float32."""
    import jax
    import jax.numpy as jnp

    features = jnp.asarray(job.with_ones, dtype=jnp.float32)
    labels = jnp.asarray(job.labels)

    def local(x: Any, A: Any, y: Any) -> Any:
        gradient = jax.grad(lambda w: _cross_entropy(jnp, A @ w, y))
        for _ in range(LOCAL_STEPS):
            x = x - STEP_SIZE * gradient(x)
        return x

    def one_round(x: Any, cohort: Any) -> Any:
        clients = jax.vmap(local, in_axes=(None, 0, 0))
        return clients(x, features[cohort], labels[cohort]).mean(axis=0)

    compiled = jax.jit(one_round)

    def play() -> Any:
        x = jnp.asarray(job.start, dtype=jnp.float32)
        for cohort in job.cohorts:
            x = compiled(x, cohort)
        return np.asarray(x)

    return lambda: timed(play)


def fedjax(job: Job) -> Callable[[], Run]:
    """FedJAX's own federated averaging, with its default backend; float32."""
    import jax
    import jax.numpy as jnp
    from fedjax import ClientDataset, ShuffleRepeatBatchHParams, optimizers
    from fedjax.algorithms import fed_avg

    examples = job.labels.shape[1]
    inputs = job.with_ones.astype(np.float32)
    clients = [
        ClientDataset({"x": A, "y": y}) for A, y in zip(inputs, job.labels, strict=True)
    ]
    algorithm = fed_avg.federated_averaging(
        jax.jit(
            jax.grad(
                lambda w, batch, _: _cross_entropy(jnp, batch["x"] @ w, batch["y"])
            )
        ),
        optimizers.sgd(STEP_SIZE),
        optimizers.sgd(1.0),
        # a batch is all of a client's examples
        ShuffleRepeatBatchHParams(batch_size=examples, num_epochs=LOCAL_STEPS, seed=0),
    )
    key = jax.random.PRNGKey(0)

    def play() -> Any:
        state = algorithm.init(jnp.asarray(job.start, dtype=jnp.float32))
        for cohort in job.cohorts:
            chosen = [(str(c).encode(), clients[c], key) for c in cohort]
            state, _ = algorithm.apply(state, chosen)
        return np.asarray(state.params)

    return lambda: timed(play)


def pfl(job: Job) -> Callable[[], Run]:
    """pfl-research's FederatedAveraging on its simulated backend; PyTorch, float32."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(1)
    features = torch.tensor(job.features, dtype=torch.float32)
    labels = torch.tensor(job.labels)
    datasets = [
        Dataset(raw_data=(A, y), user_id=str(index))
        for index, (A, y) in enumerate(zip(features, labels, strict=True))
    ]

    class Net(torch.nn.Linear):  # type: ignore[misc, unused-ignore]
        def loss(self, inputs: Any, targets: Any) -> Any:
            return cross_entropy(self(inputs), targets)

        def metrics(self, inputs: Any, targets: Any) -> dict[str, Any]:
            loss = float(self.loss(inputs, targets)) * len(targets)
            return {"loss": Weighted(loss, len(targets))}

    def play() -> Any:
        order: Iterator[int] = chain.from_iterable(job.cohorts)
        data = FederatedDataset(lambda user: datasets[user], lambda: next(order))
        net = Net(features.shape[2], CLASSES)
        for p in net.parameters():
            torch.nn.init.zeros_(p)
        model = PyTorchModel(
            model=net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        )
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=job.rounds,
                # before the first round alone
                evaluation_frequency=job.rounds + 1,
                train_cohort_size=job.cohorts.shape[1],
                val_cohort_size=0,
            ),
            SimulatedBackend(training_data=data, val_data=data),
            model,
            NNTrainHyperParams(
                local_num_epochs=LOCAL_STEPS,
                local_learning_rate=STEP_SIZE,
                local_batch_size=None,
            ),
            NNEvalHyperParams(local_batch_size=None),
        )
        return model_of(net.weight.detach().numpy(), net.bias.detach().numpy())

    return lambda: timed(play)
