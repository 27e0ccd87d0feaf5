"""A small transformer that reads made-up text character by character."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedtrellis.settings import SettingsError, setting

from .base import Array, Nonconvex, check_torch, derived_seed
from .data.partition import PartitionedTask
from .data.task import Dealt, arrange
from .data.text import ALPHABET, LETTERS, SOURCES, passages

__all__ = ["Characters"]

# of the text that the network is trained on before the clients have it
_LETTERS = 2000


@dataclass(frozen=True)
class Characters(PartitionedTask):
    """F = the mean cross-entropy of the next character over all training passages.

    f_i is n·d_i/d times the mean over the client's d_i passages, so that
    F = (1/n) Σ f_i. A passage has ``context`` characters and what follows each.

    The text is made of templates and word lists by the run's seed: recipes, weather
    reports, a station's announcements and games of chess. These four sources are the
    labels that ``partition`` deals by. Letters, a fifth source, are held by no client:
    with ``pretrained-steps`` the network is first trained on them, in one place, and
    the run starts there.

    The model is a transformer in PyTorch with 4 heads a block, causal attention and
    layer norms in front (:class:`~.networks.characters.CharacterTransformer`), in
    float32.
    """

    name: ClassVar[str] = "characters"
    summary: ClassVar[str] = "generated text by characters, a small transformer"
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = Nonconvex.suggested
    convex: ClassVar[bool] = False

    partition: str = setting(
        "iid",
        "how passages are dealt to clients; 'labels': by the sources of the text",
        choices=("iid", "labels", "dirichlet"),
    )
    labels_per_client: int = setting(
        1, "sources, of four, that a client holds, with partition = 'labels'", minimum=1
    )
    train_passages: int = setting(
        2000, "training passages of all clients, as many of each source", minimum=1
    )
    test_passages: int = setting(400, "test passages", minimum=4)
    context: int = setting(32, "characters of a passage", minimum=2)
    width: int = setting(32, "of the transformer, a multiple of 4", minimum=4)
    blocks: int = setting(2, "of the transformer", minimum=1)
    pretrained_steps: int = setting(
        0,
        "steps of Adam on the letters, which no client holds, before the run; 0: the "
        "run starts from random weights",
        minimum=0,
    )
    device: str = setting(
        "auto",
        "where the clients' models are computed: 'cpu', 'cuda', 'cuda:1'; auto: a GPU "
        "where there is one",
    )

    def check_settings(self) -> None:  # noqa: D102
        check_torch(self.name, "task = 'characters'", self.device)
        from .networks.characters import HEADS

        if self.width % HEADS:
            raise SettingsError(
                f"characters.width = {self.width} must be a multiple of {HEADS}, the "
                "number of attention heads"
            )

    def check(self) -> None:  # noqa: D102
        super().check()
        self.deal(_labels(self.train_passages))

    def num_examples(self) -> int:  # noqa: D102
        return self.train_passages

    def shapes(self) -> list[tuple[int, ...]]:  # noqa: D102
        model = self._make_model()
        return [tuple(parameter.shape) for parameter in model.parameters()]

    def initial_point(self) -> list[Array]:
        """Return seeded weights, or those that were trained on the letters."""
        return [array.copy() for array in _initial_point(self)]

    def domains(self) -> dict[str, float]:
        """Return the balls that the task ``classification`` has for its networks."""
        return {"l2-ball": 10.0, "l1-ball": 10.0, "linf-ball": 1.0}

    def _make_model(self) -> Any:
        from .networks.characters import make_transformer

        seed = derived_seed(self.seed, "initial model")
        sizes = (self.context, self.width, self.blocks)
        return make_transformer(len(ALPHABET), *sizes, seed)

    def _load(self) -> Dealt:
        counts = self.train_passages, self.test_passages
        train, test = (_labels(count) for count in counts)
        texts = _text(train, self, "training"), _text(test, self, "test")
        return arrange(texts[0], train, self.deal(train), texts[1], test)

    def _loss(
        self, features: Any, targets: Any, weight: float, values_only: bool = False
    ) -> Any:
        from .networks.objective import network_loss

        # what is to be learnt is the text itself, and not its source
        return network_loss(
            self._make_model,
            (features[:, :-1], features[:, 1:]),
            weight=weight,
            device=self.device,
            values_only=values_only,
        )

    def _client_loss(self, features: Any, targets: Any, weight: float) -> Any:
        return self._loss(features, targets, weight, self.values_only)


def _labels(count: int) -> Any:
    """The sources of ``count`` passages: 0, …, 3, as many of each as can be."""
    return np.sort(np.arange(count) % len(SOURCES))


def _text(labels: Any, task: Characters, part: str) -> Any:
    """Passages of the sources that the labels name."""
    counts = np.bincount(labels, minlength=len(SOURCES)).tolist()
    length = task.context + 1
    texts = [
        passages(source, count, length, task.seed, part)
        for source, count in zip(SOURCES, counts, strict=True)
    ]
    return np.concatenate(texts)


@lru_cache(maxsize=4)
def _initial_point(task: Characters) -> list[Array]:
    """The weights at the start; trained once per process, in about 10 ms a step."""
    model = task._make_model()
    if task.pretrained_steps:
        from .networks.characters import train

        text = passages(LETTERS, _LETTERS, task.context + 1, task.seed, "training")
        seed = derived_seed(task.seed, "letters")
        train(model, text, task.pretrained_steps, seed)
    return [p.detach().numpy().astype(np.float64) for p in model.parameters()]
