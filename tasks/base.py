"""The contract of a task: what is learnt, from which data, over which set.

A task is a small frozen dataclass of settings, so that it can be hashed, compared and
sent around. Its data is loaded or generated :func:`once` per process; under Ray
anything else would be copied with every message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.domains import Domain
from fedtrellis.dual.regularized_loss import Optimum
from fedtrellis.extras import need
from fedtrellis.manifolds import Manifold
from fedtrellis.objectives import Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, keys, parse

from .data.settings import NODES, DataSettings

Array = NDArray[np.float64]
Point = Array | Sequence[Array]
P = ParamSpec("P")
R = TypeVar("R")


def once(places: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a function, or a task's method, has returned to the last callers.

    Of so many different arguments, a task among them: of two that are set alike the
    second finds what was made for the first, once per process.
    """
    return cast(Callable[[Callable[P, R]], Callable[P, R]], lru_cache(maxsize=places))


class DataFileError(SettingsError):
    """A data file is not what its setting says; the message names the file."""

    code = "data-file"


@dataclass(frozen=True)
class Depending:
    """A suggestion that depends on how a task is set.

    Parameters
    ----------
    text : str
        What it is, for listings.
    find : callable
        Makes the value of the task and of the names of the strategy's fields that the
        user sets; None: nothing is suggested.
    """

    text: str
    find: Callable[[Any, Collection[str]], Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Task(ABC):
    """What a run learns.

    **Every example counts once**: F is the loss over all training data, the mean or
    the sum as the task says, and the f_i carry the weights that make
    F = (1/n) Σ f_i exact, whatever the sizes of the clients' shares.

    A point is a list of float64 arrays of :meth:`shapes`; tasks with one array take it
    bare, too. The objectives of one-array tasks take the bare array only.

    Parameters
    ----------
    num_clients : int
        n, given by the run.
    seed : int
        The run's seed: same seed, same data, same initial model.
    dtype : str
        The run's: what the clients compute in. F is evaluated in float64.
    values_only : bool
        Whether the clients of the run's method ask for values of their f_i and for no
        gradients: an f_i may then be one that has none and takes less memory.
    nodes : DataSettings
        What a run config says of data that lies on the nodes.

    Attributes
    ----------
    name : str
        What run configurations call the task; its settings' keys start with it.
    summary : str
        One line for listings.
    suggested : mapping
        What suits F for some of a method's settings, where that is not the method's own
        default: by the method's name, then by the name of the strategy's field. FedFW's
        ``penalty`` is λ_0 for about ten clients. A :class:`Depending` is a value that
        depends on how the task is set.
    convex : bool
        Whether F is known to be convex.
    bounded_below : bool
        Whether F has a minimum without a constraint.
    split_data : bool
        Whether clients hold some of the samples and some of the features, so that none
        has a loss of its own; for the methods that work on such data.
    shared : mapping
        Groups of settings that several tasks have, by what their keys begin with.
    on_nodes : bool
        Whether every node has its own data, and the server none.
    of_file : tuple of str
        Fields of :class:`DataSettings` that describe a file of the user's; none of them
        where the task reads none.
    node_examples : int
        How many examples all nodes have together; 0: nobody knows.
    node_metrics : tuple of str
        Those of an objective's metrics whose mean over nodes with data of their own
        means something.
    required_options : tuple of str
        Those of :meth:`method_options` without which a method solves another problem.
    """

    num_clients: int
    seed: int
    dtype: str = field(default="float64", kw_only=True)
    values_only: bool = field(default=False, kw_only=True)
    nodes: DataSettings = field(default=DataSettings(), kw_only=True)

    name: ClassVar[str]
    summary: ClassVar[str]
    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    convex: ClassVar[bool] = True
    bounded_below: ClassVar[bool] = True
    split_data: ClassVar[bool] = False
    shared: ClassVar[Mapping[str, type[Any]]] = {"data": DataSettings}
    on_nodes: ClassVar[bool] = False
    of_file: ClassVar[tuple[str, ...]] = ()
    node_examples: ClassVar[int] = 0
    node_metrics: ClassVar[tuple[str, ...]] = ()
    required_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], num_clients: int, seed: int, **more: Any
    ) -> Self:
        """Make the task from a flat run config, whose keys start with its name.

        ``more`` are fields that are no settings. A SettingsError: a setting that is not
        allowed, or one of nodes' own data although the task brings its own.
        """
        nodes = parse(DataSettings, config, "data.")
        more |= {"num_clients": num_clients, "seed": seed, "nodes": nodes}
        task = parse(cls, config, f"{cls.name}.", **more)
        if not task.on_nodes:
            for key, field in keys(DataSettings, "data.").items():
                value = getattr(nodes, field.name)
                if value != field.default and field.name not in task.of_file:
                    raise SettingsError(
                        f"{key} = {value!r} is for data that lies on the nodes, and "
                        f"{cls.name}.dataset is not {NODES!r}"
                    )
        return task

    def check(self) -> None:
        """Find out, before anything starts, whether the task can be run as set.

        Raises
        ------
        SettingsError
            A setting that is not allowed, more clients than examples, an extra that is
            not installed or a malformed data file, in one line.
        FileNotFoundError
            A data file that is missing, with the key of the setting that names it.
        """
        self.check_clients(self.num_examples(), "examples")

    def check_clients(self, available: int, what: str) -> None:
        """Raise a SettingsError unless there is something for every client."""
        if self.num_clients < 1:
            raise SettingsError(f"{self.num_clients} clients; at least 1 is needed")
        if self.num_clients > available:
            raise SettingsError(
                f"{self.num_clients} clients are too many for task {self.name!r}: it "
                f"has {available} {what}, and every client needs at least one"
            )

    def check_path(self) -> None:
        """Raise a SettingsError unless there is a path where the data set needs one."""
        field = type(self).__dataclass_fields__.get("path")
        only = (field.metadata["only"] if field else None) or {}
        dataset = getattr(self, "dataset", "")
        if dataset in only.get("dataset", ()) and not getattr(self, "path", ""):
            raise SettingsError(
                f"{self.name}.path is empty; for {dataset!r} it must name the data's "
                "file or folder"
            )

    # -- what a task supplies

    @abstractmethod
    def num_examples(self) -> int:
        """Return d, the number of training examples of all clients together."""

    @abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the model's arrays."""

    @abstractmethod
    def domains(self) -> dict[str, float]:
        """Return the domains that fit, by name, with the radius they have by default.

        The first is the default; the radius is 0.0 for a set that has none.
        """

    @abstractmethod
    def _build_objective(self) -> Objective:
        """Make F, over all training data at once."""

    @abstractmethod
    def _build_client_objective(self, client: int) -> Objective:
        """Make f_i, its weight included."""

    def initial_point(self) -> list[Array]:
        """Return where to start; the run projects it into the domain.

        Zeros, or a uniform draw from the manifold where the task has one.
        """
        if (manifold := self.manifold()) is not None:
            return [manifold.random_point(generator(self.seed, "initial point"))]
        return [np.zeros(shape) for shape in self.shapes()]

    def metrics(self, x: Point) -> dict[str, float]:
        """Return measures of quality at x, on test data where the task has some."""
        return {}

    def reference_optimum(self, domain: Domain) -> float | None:
        """Return the minimum of F over a domain where it is known, else None."""
        return None

    def certified_optimum(self) -> Optimum | None:
        """Return the minimum with its certificate, None without a solver for it.

        For tasks that bring a central solver; it may take long.
        """
        return None

    def manifold(self) -> Manifold | None:
        """Return the manifold that the model lives on; None: the task has none.

        Its points are shaped as one array stands for the model
        (:class:`fedtrellis.wire.arrays.Layout`), and :meth:`initial_point` is one of
        them.
        """
        return None

    def suggestions(self, method: str, given: Collection[str] = ()) -> dict[str, Any]:
        """Return what suits the task, as it is set, for a method's settings.

        By the method's name in run configurations; values by the names of the
        strategy's fields, and none for those in ``given``, which the user sets.
        A SettingsError: one depends on what nobody has set.
        """
        values = {
            name: value.find(self, given) if isinstance(value, Depending) else value
            for name, value in self.suggested.get(method, {}).items()
            if name not in given
        }
        return {name: value for name, value in values.items() if value is not None}

    def method_options(self) -> dict[str, Any]:
        """Return what a strategy has to know of the task, by its fields' names.

        Nothing, but for tasks whose samples and features are split, or whose data lies
        on the nodes.
        """
        return {}

    def option_key(self, name: str) -> str:
        """Return the run-config key of a field, or of one of :meth:`method_options`."""
        return f"{self.name}.{name.replace('_', '-')}"

    def refused(self, name: str, why: str) -> SettingsError:
        """Return the error that a field's value is refused with; ``why`` follows it."""
        return SettingsError(f"{self.option_key(name)} = {getattr(self, name)!r} {why}")

    def client_parts(self, client: int) -> dict[str, Any]:
        """Return what client i in [0, n) is made of, by its constructor's arguments.

        Here ``objective``, which is f_i; :class:`tasks.hybrid.HybridTask` has the
        features and labels instead. An IndexError: there is no such client.
        """
        return {"objective": self._client_part(client)}

    # All clients of a large simulation: with fewer places than clients, who are asked
    # in turn, every message would make its objective anew.
    @once(16_384)
    def _client_part(self, client: int) -> Objective:
        return in_dtype(self.client_objective(client), self.dtype)

    # -- where nodes have data of their own: :class:`tasks.data.task.NodeDataTask`

    def node_parts(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the client of a node with its own data is made of.

        As :meth:`client_parts`; ``data`` of the node config names the node's file.

        Raises
        ------
        SettingsError
            The node config does not go with the task.
        FileNotFoundError, DataFileError
            The file is missing or does not hold what it should.
        """
        raise SettingsError(f"task {self.name!r} does not take data of the nodes' own")

    def node_attributes(self, node_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what such a client gets beside its parts, by attributes' names."""
        return {}

    # -- what follows from it

    # More tasks than one are alive in a process only in tests and sweeps.
    @once(4)
    def objective(self) -> Objective:
        """Return F as one objective over all training data, made once per process."""
        self._need_central_data()
        return self._build_objective()

    @once(16_384)
    def client_objective(self, client: int) -> Objective:
        """Return f_i of i in [0, n), made once per process; else an IndexError."""
        self._need_central_data()
        return self._build_client_objective(self._existing(client))

    def _need_central_data(self) -> None:
        if self.on_nodes:
            raise SettingsError(
                f"{self.name}.dataset = {NODES!r}: the data lies on the nodes, and "
                "there is none here to measure anything on"
            )

    def _existing(self, client: int) -> int:
        """Return a client's number, if there is such a client."""
        if not 0 <= client < self.num_clients:
            raise IndexError(
                f"client {client} of task {self.name!r} does not exist: "
                f"there are {self.num_clients}, counted from 0"
            )
        return int(client)

    def value(self, x: Point) -> float:
        """Return F(x) = (1/n) Σ f_i(x)."""
        return self.objective().value(self.argument(x))

    def gradient(self, x: Point) -> Any:
        """Return ∇F(x) = (1/n) Σ ∇f_i(x), in the form of x: an array or a list."""
        result = self.objective().gradient(self.argument(x))
        bare = not isinstance(x, np.ndarray) and not isinstance(result, list)
        return [result] if bare else result

    def argument(self, x: Point) -> Any:
        """Return a point as the task's objectives take it.

        A ValueError: a list with another number of arrays than the model has.
        """
        if isinstance(x, np.ndarray):
            return x
        shapes = self.shapes()
        if len(x) != len(shapes):
            raise ValueError(f"x has {len(x)} arrays; the model has {len(shapes)}")
        return x[0] if len(shapes) == 1 else list(x)


class Nonconvex(Task):
    """A task whose F is not convex, and what suits Frank-Wolfe there."""

    suggested: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {
            "fedfw": {"schedule": "nonconvex"},
            "naive-frank-wolfe": {"schedule": "nonconvex"},
        }
    )
    convex = False


def in_dtype(objective: Objective, dtype: str) -> Objective:
    """Return f_i as a client of a run computes it; halves are computed in float32."""
    return objective if dtype == "float64" else objective.of_dtype(np.float32)


def even_share(total: int, parts: int, index: int) -> slice:
    """Return the part of [0, total) that np.array_split would give, in O(1)."""
    size, longer = divmod(total, parts)
    start = index * size + min(index, longer)
    return slice(start, start + size + (index < longer))


def held_out(count: int, share: float) -> int:
    """Return how many of some examples a share is, at least one on either side."""
    return min(max(1, round(share * count)), count - 1)


def derived_seed(seed: int, purpose: str) -> int:
    """Return a seed in [0, 2³¹) for libraries that want an integer."""
    return int(generator(seed, purpose).integers(2**31))


def toy(name: str, what: str) -> tuple[Any, Any]:
    """Return features and labels of a set that scikit-learn has, for ``what``."""
    need("sklearn", what, "sklearn")
    # half a second that other tasks' nodes need not spend
    from sklearn import datasets

    found: tuple[Any, Any] = getattr(datasets, f"load_{name}")(return_X_y=True)
    return found


def stratified(labels: NDArray[Any], share: float, seed: int) -> Any:
    """Return which examples are for training and, a share of each label, for tests."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    return train_test_split(rows, test_size=share, stratify=labels, random_state=seed)


def check_torch(task: str, what: str, device: str) -> None:
    """Find out whether PyTorch is there, for ``what``, and a task's ``device``."""
    need("torch", what, "torch")
    from fedtrellis.objectives.torch_module import choose_device

    try:
        choose_device(device)
    except ValueError as error:
        raise SettingsError(f"{task}.{error}") from None


def data_path(key: str, value: str, *, folder: bool = False) -> Path:
    """Return the file or folder that a setting names; ``~`` is the user's home.

    A FileNotFoundError, which names the setting, where there is none.
    """
    path = Path(value).expanduser()
    if not (path.is_dir() if folder else path.is_file()):
        kind = "folder" if folder else "file"
        raise FileNotFoundError(
            f"{key} = {value!r}: there is no {kind} {path.resolve()}"
        )
    return path
