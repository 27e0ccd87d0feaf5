"""A small transformer that reads made-up text character by character."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedtrellis.objectives import Objective
from fedtrellis.settings import SettingsError, setting

from .base import Array, Point, derived_seed
from .data.partition import LabelledData, PartitionedTask, arrange
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
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedfw": {"schedule": "nonconvex"},
        "naive-frank-wolfe": {"schedule": "nonconvex"},
    }
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

    def check(self) -> None:  # noqa: D102
        if importlib.util.find_spec("torch") is None:
            raise SettingsError(
                "task = 'characters' needs PyTorch: pip install \"fedtrellis[torch]\""
            )
        from fedtrellis.objectives.torch_module import choose_device

        from .networks.characters import HEADS

        if self.width % HEADS:
            raise SettingsError(
                f"characters.width = {self.width} must be a multiple of {HEADS}, the "
                "number of attention heads"
            )
        try:
            choose_device(self.device)
        except ValueError as error:
            raise SettingsError(f"characters.{error}") from None
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

    def metrics(self, x: Point) -> dict[str, float]:
        """Return ``{"accuracy": ...}``, of the next characters of the test passages."""
        return _test_objective(self).metrics(self.argument(x))

    def _make_model(self) -> Any:
        from .networks.characters import make_transformer

        seed = derived_seed(self.seed, "initial model")
        sizes = (self.context, self.width, self.blocks)
        return make_transformer(len(ALPHABET), *sizes, seed)

    def _build_objective(self) -> Objective:
        data = _data(self)
        return self._torch_objective(data.features, 1.0)

    def _build_client_objective(self, client: int) -> Objective:
        data = _data(self)
        return self._torch_objective(
            data.share(client)[0], data.weight(client), self.values_only
        )

    def _torch_objective(
        self, text: Any, weight: float, values_only: bool = False
    ) -> Objective:
        from .networks.objective import network_loss

        return network_loss(
            self._make_model,
            (text[:, :-1], text[:, 1:]),
            weight=weight,
            device=self.device,
            values_only=values_only,
        )


def _labels(count: int) -> Any:
    """The sources of ``count`` passages: 0, …, 3, as many of each as can be."""
    return np.sort(np.arange(count) % len(SOURCES))


def _text(count: int, task: Characters, part: str) -> Any:
    counts = np.bincount(_labels(count), minlength=len(SOURCES))
    length = task.context + 1
    return np.concatenate(
        [
            passages(source, int(many), length, task.seed, part)
            for source, many in zip(SOURCES, counts, strict=True)
        ]
    )


@lru_cache(maxsize=2)
def _data(task: Characters) -> LabelledData:
    labels = _labels(task.train_passages)
    return arrange(
        _text(task.train_passages, task, "training"),
        labels,
        task.deal(labels),
        _text(task.test_passages, task, "test"),
        _labels(task.test_passages),
        len(SOURCES),
    )


@lru_cache(maxsize=2)
def _test_objective(task: Characters) -> Objective:
    return task._torch_objective(_data(task).test_features, 1.0)


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
