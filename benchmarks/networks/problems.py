"""Who takes part on networks, and on what: ten clients, 5 local steps, float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CONTENDERS", "NODES", "PROBLEMS", "Contender", "Problem"]

#: Clients of every problem.
NODES = 10


@dataclass(frozen=True)
class Contender:
    """A method, and where its grid of ``tuned`` begins; it goes on by factors of 2."""

    method: str
    first: float
    schedules: tuple[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: str = "step-size"


_SGD, _LMO = ("constant", "inverse-sqrt"), ("constant", "linear")
_ADAM = {"optimizer": "adam", "server-step-size": 0.03}
_SIGN = {"compressor": "sign", "step-size": 0.05}


def _sgd(method: str, first: float, **more: Any) -> Contender:
    return Contender(method, first, _SGD, more)


def _lmo(variant: str, first: float, **more: Any) -> Contender:
    return Contender("fedlmo", first, _LMO, {"variant": variant, **more})


#: In the order in which they are measured.
CONTENDERS = {
    "FedAvg": _sgd("local-sgd", 0.1),
    "FedProx, μ = 0.01": _sgd("fedprox", 0.1),
    "FedAvg, server momentum 0.9": _sgd("fedopt", 0.02),
    "FedAdam, server step 0.03": Contender("fedopt", 0.05, _SGD, _ADAM),
    "SCAFFOLD": _sgd("scaffold", 0.1),
    "error feedback, top 5 %": _sgd("compressed-sgd", 0.02, compressor="top-k"),
    "QSGD, one level": _sgd("compressed-sgd", 0.02, compressor="qsgd", levels=1),
    "majority of signs": Contender(
        "compressed-sgd", 5e-4, _SGD, _SIGN, "server-step-size"
    ),
    "fedlmo, local": _lmo("local", 0.01),
    "fedlmo, corrected": _lmo("corrected", 0.01),
    "fedlmo, averaged": _lmo("averaged", 0.01),
    "fedlmo, server": _lmo("server", 0.03),
    "fedlmo, ef21, top 5 %": _lmo("ef21", 0.03),
    "fedlmo, ef21, rank 2": _lmo("ef21", 0.03, compressor="rank", rank=2),
    "fedlmo, ef21, natural": _lmo("ef21", 0.03, compressor="natural"),
}


@dataclass(frozen=True)
class Problem:
    """Images of 10 clients: tuned on one seed with a fifth held out, then measured.

    Parameters
    ----------
    dataset : str
    classes : int
        That a client has; 0: examples are dealt IID.
    goal : float
        The test accuracy that is to be reached.
    rounds : int
        At most, of a run.
    images : int
        For training, where methods are measured; 5 000 where they are tuned. 0: all
        of the digits, by a perceptron with two hidden layers of 100.
    sizes : int
        Step sizes of every contender's grid; more where the best is at an end.
    schedules : int
        Of the two of a contender, how many are tried.
    seeds : int
        Of the runs that are measured, from 1; 0 is what is tuned on.
    first : mapping
        Where the grid of a contender begins, if elsewhere.
    more : mapping
        Of the run config.
    """

    dataset: str
    classes: int
    goal: float
    rounds: int = 60
    images: int = 0
    sizes: int = 4
    schedules: int = 1
    seeds: int = 3
    first: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def config(self, seed: int, *, tuning: bool) -> dict[str, Any]:
        """The run config but for the method and the data's folder."""
        own: dict[str, Any] = {
            "dataset": self.dataset,
            "model": "small-cnn" if self.images else "dnn",
            "partition": "labels" if self.classes else "iid",
            "validation-fraction": 0.2 if tuning else 0.0,
        }
        if self.classes:
            own["labels-per-client"] = self.classes
        if self.images:
            own["train-limit"] = 5000 if tuning else self.images
            own["test-limit"] = 2000
        return {
            "task": "classification",
            **{f"classification.{key}": value for key, value in own.items()},
            "dtype": "float32",
            "evaluate-gap": False,
            "seed": seed,
            **self.more,
        }

    def method(
        self, contender: Contender, size: float, schedule: str, *, tuning: bool
    ) -> dict[str, Any]:
        """The settings of a method, on mini-batches of 32 images or a fifth of digits.

        ``contender.tuned`` is the setting that ``size`` is of.
        """
        lmo = contender.method == "fedlmo"
        own: dict[str, Any] = {"local-steps": 5, "step-schedule": schedule}
        if lmo:
            own["batch-size"] = 32 if self.images else 29
        else:
            each = (4000 if tuning else self.images) / NODES
            own["batch-fraction"] = 32 / each if self.images else 0.2
        own |= {**contender.settings, contender.tuned: size}
        if lmo and self.images:
            # Scion's scale divides a kernel's step by its 25 pixels, and no bias's
            own["scaling"] = "muon"
        named = {f"{contender.method}.{key}": value for key, value in own.items()}
        return {"method": contender.method, "rounds": self.rounds, **named}


# all of the digits' steps are too long for images
_FIRST = {"SCAFFOLD": 0.02}
_CIFAR: dict[str, Any] = {
    "rounds": 40,
    "images": 20_000,
    "sizes": 3,
    "first": {
        "FedAvg": 0.05,
        "FedAvg, server momentum 0.9": 0.01,
        "FedAdam, server step 0.03": 0.025,
        "fedlmo, corrected": 0.005,
        "fedlmo, averaged": 0.005,
    },
    "more": {"classification.partial": True},
}
PROBLEMS = {
    "digits": Problem("digits", 2, 0.95, sizes=5, schedules=2),
    "mnist-labels": Problem("mnist", 2, 0.9, images=10_000, first=_FIRST),
    "mnist-iid": Problem("mnist", 0, 0.95, images=10_000, sizes=3, first=_FIRST),
    "cifar10-labels": Problem("cifar10", 2, 0.25, **_CIFAR),
    "cifar10-iid": Problem("cifar10", 0, 0.35, **_CIFAR),
}
