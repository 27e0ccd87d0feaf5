"""What a request may hold, and whether one that arrived is right."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedtrellis.wire.arrays import contents

__all__ = [
    "CONFIG",
    "ENTRY_TYPES",
    "MODEL",
    "RESTORE",
    "MissingError",
    "Named",
    "read_request",
]

# Names of the records in a request.
CONFIG, MODEL, RESTORE = "config", "model", "restore"
# What a request's config may say of the protocol, and of which type it is.
_REQUIRED: dict[str, type] = {
    "session": str,
    "server-round": int,
    "model-encoding": str,
    "model-version": int,
}
_OPTIONAL: dict[str, type] = {
    "model-base": int,
    "model-shapes": list,
    "model-dtype": str,
    "keep-model": bool,
    "used-round": int,
    "used-epoch": str,
    "epoch": str,
    "restore": bool,
    "restore-alone": bool,
    "restore-over": bool,
    "restore-as-model": list,
}
#: Of all that is the protocol's, and not the method's.
ENTRY_TYPES = _REQUIRED | _OPTIONAL
_KINDS = {CONFIG: ConfigRecord, MODEL: ArrayRecord, RESTORE: ArrayRecord}
# How often a client is to do something, or how many numbers it is to draw.
_COUNTS = ("local-steps", "samples", "batch-size", "local-passes")
# What a client keeps a number for each of: so many samples in each of so many steps.
_TOGETHER = ("local-steps", "samples")


class MissingError(KeyError):
    """A request, or a client's state, lacks an entry that the client's method needs."""


class Named(dict[str, Any]):
    """A dict that says what it is when something is missing in it (MissingError).

    Parameters
    ----------
    what : str
        Such as ``"the request's config"``.
    items : mapping
    """

    def __init__(self, what: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, key: str) -> Any:
        raise MissingError(f"{self._what} has no {key!r}")


def read_request(content: RecordDict, max_count: int) -> Named:
    """A request's config, once its records and what the protocol needs are right.

    Parameters
    ----------
    content : RecordDict
        What arrived. Nothing in it is trusted.
    max_count : int
        The largest number of local steps, samples or examples that it may ask for, and
        of samples in all local steps together.

    Raises
    ------
    ValueError, KeyError
        A record or an entry is missing or of the wrong type, or a number too large.
    """
    records = contents(content)
    for name, kind in _KINDS.items():
        record = records.get(name)
        if record is None and name != RESTORE:
            raise ValueError(f"the request has no {name!r}")
        if record is not None and not isinstance(record, kind):
            raise ValueError(
                f"the request's {name!r} is a {type(record).__name__}, expected "
                f"{kind.__name__}"
            )
    config = Named("the request's config", contents(records[CONFIG]))
    for key in _REQUIRED:
        config[key]  # which says so if it is missing
    for key, value in config.items():
        expected = ENTRY_TYPES.get(key)
        # True is an int too, but no round
        if expected is not None and type(value) is not expected:
            raise ValueError(
                f"the request has {key} = {value!r}, expected {expected.__name__}"
            )
        # such as a number for each of so many steps
        if isinstance(value, list) and len(value) > max_count:
            raise ValueError(
                f"the request has {len(value)} numbers for {key}; this client takes "
                f"up to {max_count} (client_app's max_count)"
            )
    for key, of in (("model-shapes", int), ("restore-as-model", str)):
        if not all(type(item) is of for item in config.get(key, ())):
            raise ValueError(f"the request has {key} = {config[key]!r}")
    for key in _COUNTS:
        if key in config and not (
            type(config[key]) is int and 0 <= config[key] <= max_count
        ):
            raise ValueError(
                f"the request has {key} = {config[key]!r}; this client takes whole "
                f"numbers up to {max_count} (client_app's max_count)"
            )
    together = prod(config.get(key, 1) for key in _TOGETHER)
    if together > max_count:
        raise ValueError(
            f"the request has {' times '.join(_TOGETHER)} = {together}; this client "
            f"takes up to {max_count} (client_app's max_count)"
        )
    return config
