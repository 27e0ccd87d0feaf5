"""Flower's mods that change the model that a client sends: clipping, and local noise.

They get messages as Flower's strategies exchange, made of the model that a client has
received and of its answer, however both travel. So they also run where no message is
made, and before a secure sum hides the answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from numpy.typing import NDArray

from fedtrellis.settings import SettingsError
from fedtrellis.wire.flower_internals import make_message

# Flower's names: of the largest ‖x_i − x‖ in a request's config, and of the metric of
# adaptiveclipping_mod, which is 1 where it clipped, else 0
_NORM, NORM_BIT = "clipping_norm", "norm_bit"
_CLIPPING = fixedclipping_mod, adaptiveclipping_mod
# mods that take the arrays of a message for the model have these in their names
_SUSPECT = "clipping", "LocalDp", "secagg"


def _name(mod: Any) -> str:
    return str(getattr(mod, "__name__", type(mod).__name__))


def parted(mods: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The mods that change a client's model, and those around messages.

    SettingsError: one of Flower's that can be neither.
    """
    of_models = [m for m in mods if m in _CLIPPING or isinstance(m, LocalDpMod)]
    others = [mod for mod in mods if mod not in of_models]
    for mod in others:
        if any(part in _name(mod) for part in _SUSPECT):
            raise SettingsError(
                f"mods has {_name(mod)} of {mod.__module__}, which takes a message's "
                "arrays for the model; of those only fixedclipping_mod, "
                "adaptiveclipping_mod and LocalDpMod of flwr.clientapp.mod are allowed"
            )
    return of_models, others


def check_client(mods: Sequence[Any], client: Any, function: str = "fit") -> None:
    """Raise SettingsError if mods cannot change what a client's function answers."""
    # any NumPy client of Flower's sends a model
    if not mods or (getattr(client, "sends_model", True) and function == "fit"):
        return
    why = "sends something else than a model near the one received"
    if function != "fit":
        why = f"{function} answers unchanged: set what it is for, such as step_size"
    names = ", ".join(map(_name, mods))
    raise SettingsError(f"mods has {names}, and {type(client).__name__} {why}")


def change_model(
    mods: Sequence[Any],
    result: tuple[list[NDArray[Any]], int, dict[str, Any]],
    model: NDArray[Any],
    config: Mapping[str, Any],
    context: Context,
) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
    """What a client's ``fit`` returned, as the mods let it pass; the last comes first.

    ``model`` is what the client received, as it travels. SettingsError: there is no
    ``clipping_norm``; ValueError: the answer has another shape, or is the model.
    """
    arrays, examples, metrics = result
    asked, norm, names = ConfigRecord(), config.get(_NORM), ", ".join(map(_name, mods))
    if norm is not None:
        asked[_NORM] = norm
    if any(mod in _CLIPPING for mod in mods) and not (norm and norm > 0.0):
        how = f"start(..., train_config=ConfigRecord({{{_NORM!r}: 1.0}}))"
        raise SettingsError(f"{names}: {_NORM} = {norm} must be above 0: {how}")
    if len(arrays) != 1 or arrays[0].shape != model.shape:
        shapes = [array.shape for array in arrays]
        raise ValueError(f"{names}: the answer has shapes {shapes}, not {model.shape}")
    if np.array_equal(arrays[0], model):
        raise ValueError(
            f"{names}: the model has not changed, and its change is scaled"
        )

    given = RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
    )

    def following(message: Message, context: Context) -> Message:
        return Message(given, reply_to=message)

    for mod in reversed(mods):
        following = partial(mod, call_next=following)
    # no other place knows of this message: its names and times mean nothing
    place = Metadata(0, "", 0, 0, "", "", time.time(), 3600.0, "train")
    content = RecordDict({"arrays": ArrayRecord([model]), "config": asked})
    reply = following(make_message(place, content, None), context)
    if reply.has_error():
        raise ValueError(str(reply.error.reason))
    records: Any = reply.content
    changed = records["arrays"].to_numpy_ndarrays()[0].astype(model.dtype, copy=False)
    return [changed], examples, dict(records["metrics"].items())
