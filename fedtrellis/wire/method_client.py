"""What a client of one of fedtrellis's methods is, beside a Flower ``NumPyClient``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from flwr.app import (
    Context,
    RecordDict,
)
from flwr.client import Client, NumPyClient
from numpy.typing import NDArray

from fedtrellis.wire.arrays import (
    FloatArray,
    Layout,
)
from fedtrellis.wire.local_work import Steps, run_alone
from fedtrellis.wire.protocol import (
    PHASE,
    RESTORE,
    client_identity,
)

__all__ = [
    "MethodClient",
    "StatefulClient",
    "evaluate_objective",
    "speaks_for",
    "takes_steps",
]

#: Phases of rounds of several waves that the clients' classes defined so far have, as
#: keys: a message of type ``train.NAME`` is for a client's ``fit_NAME``.
PHASES: dict[str, None] = {}


class MethodClient(NumPyClient):
    """A NumPy client of one of fedtrellis's methods.

    It works with :func:`fedtrellis.client_app` only: Flower's
    ``ClientApp(client_fn=...)`` knows neither the messages of these methods nor where
    their clients keep state.

    A method ``fit_NAME(parameters, config)`` of a subclass is a phase of its own, for
    messages of type ``train.NAME``: every app that is made once the class is defined
    takes them.

    A subclass writes its local work as :meth:`steps`, and clients of a
    ``LocalGrid(..., batched=True)`` then compute together; or it overrides ``fit``, and
    is called alone.

    Attributes
    ----------
    objective : object
        The client's loss f_i, which a subclass sets: it answers what the steps ask for.
    layout : Layout
        Of the model, known from the moment :meth:`steps` is called.
    announcement : mapping
        Told to the server before round 1, beside what ``get_properties`` answers.
    weigh_evaluation : callable or None
        Given the loss, the number of examples and the metrics that ``evaluate``
        returned, returns the loss and the metrics to be sent.

    Examples
    --------
    A client that sends the gradient of f_i(x) = ‖x‖²/2:

    >>> from fedtrellis import MethodClient
    >>> class GradientClient(MethodClient):
    ...     def fit(self, parameters, config):
    ...         return [parameters[0]], 1, {}
    >>> GradientClient().fit([2.0], {})
    ([2.0], 1, {})
    """

    # of any kind of loss, with mini-batches, bounds or stacks, or none of them
    objective: Any
    layout: Layout
    announcement: Mapping[str, Any] = MappingProxyType({})
    weigh_evaluation: (
        Callable[[float, int, dict[str, Any]], tuple[float, dict[str, Any]]] | None
    ) = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Note the phases of a subclass, for the apps to come."""
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith(PHASE) and callable(getattr(cls, name)):
                PHASES[name.removeprefix(PHASE)] = None

    def steps(self, x: FloatArray, config: dict[str, Any]) -> Steps:
        """The client's local work, a generator.

        It yields what it asks its loss for, such as :class:`~fedtrellis.Gradient`, and
        is sent the answer. Clients side by side take turns: a context such as
        ``np.errstate`` must not span a ``yield``.

        Parameters
        ----------
        x : ndarray of shape ``layout.point_shape``
            The model, in one read-only array; of several arrays, the vector of all
            their entries.
        config : dict
            What the server sent; not to be changed.

        Returns
        -------
        ndarray or tuple
            A point, which is sent in the model's shape and dtype; or all that ``fit``
            returns.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither steps nor fit")

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Take the steps alone.

        Returns
        -------
        (list of ndarray, int, dict)
            What is sent, the number of examples (0: not revealed), and metrics.

        Raises
        ------
        Exception
            What the steps raise.
        """
        arrays, examples, metrics = run_alone(self, parameters, config)
        return list(arrays), examples, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """f_i(x), the number of examples and the objective's metrics."""
        if not hasattr(self, "objective"):
            found: tuple[float, int, dict[str, Any]]
            found = super().evaluate(parameters, config)
            return found
        return evaluate_objective(self.objective, parameters)

    def to_client(self) -> Client:
        """Refuse Flower's older API, which calls this itself, with the way out.

        Raises
        ------
        TypeError
            Always.
        """
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be converted with .to_client(), and "
            "flwr.client.ClientApp(client_fn=...) cannot run it: return the "
            f"{name} itself from client_fn, make the ClientApp with "
            "app = fedtrellis.client_app(client_fn), and start a strategy of "
            "fedtrellis.strategies on the server"
        )


class StatefulClient(MethodClient):
    """A NumPy client whose method keeps state from one round to the next.

    Parameters
    ----------
    context : Context
        The context that ``client_fn`` was given.

    Attributes
    ----------
    state : dict of str to ndarray
        What the method keeps. Read-only arrays when :meth:`fit` starts: the state
        after the last of this client's rounds that the server used. What ``fit``
        leaves here is the state after this round, should the server use it.
    numbers : ndarray of float64 or None
        A short vector that ``fit`` may leave here to be sent beside its arrays: it
        travels without the half kilobyte that an array has around it.
    client_id : str
        The stable identity, see :func:`fedtrellis.wire.protocol.client_identity`.

    Examples
    --------
    A client that counts those of its rounds that the server used:

    >>> import numpy as np
    >>> from fedtrellis import StatefulClient
    >>> class Counting(StatefulClient):
    ...     def fit(self, parameters, config):
    ...         self.state["rounds"] = self.state.get("rounds", np.zeros(1)) + 1
    ...         return parameters, 1, {"rounds": float(self.state["rounds"][0])}
    """

    #: Names of the arrays that a server may give back; None: any.
    restorable: ClassVar[frozenset[str] | None] = None

    def __init__(self, context: Context) -> None:
        self.context = context
        self.client_id = client_identity(context)
        self.state: dict[str, FloatArray] = {}
        self.numbers: FloatArray | None = None

    def check_restored(self, content: RecordDict) -> None:
        """Raise ValueError if a server gives back what this client does not take.

        Parameters
        ----------
        content : RecordDict
            A request. Its record of what is restored may be missing.
        """
        given = content.get(RESTORE)
        if self.restorable is None or given is None:
            return
        strange = sorted(set(given) - self.restorable)
        if strange:
            raise ValueError(f"a client of this method takes no {strange[0]!r} back")


def takes_steps(client: NumPyClient) -> bool:
    """Whether a client's work is its ``steps``, and no ``fit`` of its own."""
    return type(client).fit is MethodClient.fit


def speaks_for(kind: Any, many: str, one: str) -> bool:
    """Whether a class's method for many clients does what its method for one does.

    It is not if a subclass has overridden the latter alone.
    """
    return _speaks_for(kind, many, one)


@lru_cache(maxsize=1024)
def _speaks_for(kind: type, many: str, one: str) -> bool:
    def place(name: str) -> int:
        return next((i for i, c in enumerate(kind.__mro__) if name in vars(c)), -1)

    return 0 <= place(many) <= place(one)


def evaluate_objective(
    objective: Any, parameters: Sequence[NDArray[Any]]
) -> tuple[float, int, dict[str, Any]]:
    """What ``NumPyClient.evaluate`` returns: value, examples, metrics of an objective.

    Parameters
    ----------
    objective : object
        With ``value(x)`` and ``num_examples``, and if it has any, ``metrics(x)``.
    parameters : list of ndarray
        The model's arrays.
    """
    layout = Layout.of(parameters)
    x = layout.objective_point(layout.point(parameters))
    metrics = getattr(objective, "metrics", None)
    extra = metrics(x) if metrics is not None else {}
    return float(objective.value(x)), int(objective.num_examples), extra
