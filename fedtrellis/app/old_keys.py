"""Run configs of version 0.1, whose keys had no owner; read for one version more.

A field says with ``formerly`` what its flat key was called where that was not its own
name. To go with the next version: this module, ``formerly``, and what calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from fedtrellis.app.registry import Field, Group, Registry
from fedtrellis.app.settings import RunSettings
from fedtrellis.settings import AUTO, SettingsError
from fedtrellis.wire.flower_internals import log

__all__ = ["old_owners", "translate"]


def _old_key(key: str, field: Field) -> str:
    formerly = field.metadata.get("formerly")
    return key.partition(".")[2] if formerly is None else str(formerly)


def old_owners(registry: Registry, old: str) -> list[Group]:
    """The methods and domains whose setting a flat key was."""
    return [
        group
        for group in registry.groups
        if group.kind in ("method", "domain")
        and all(getattr(kind, "flat_keys", True) for kind, _ in group.parts)
        and any(_old_key(key, field) == old for key, field in group.fields.items())
    ]


def _new_value(field: Field, value: Any) -> Any:
    """A value of version 0.1, where a number or an empty text may have meant auto.

    That number was 0, and -1 where 0 is a value like others.
    """
    if field.default is not None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value or AUTO
    least, above = field.metadata.get("minimum"), field.metadata.get("above")
    zero = (least is None or least <= 0) and (above is None or above < 0)
    return AUTO if value == (-1 if zero else 0) else value


def translate(
    registry: Registry, config: Mapping[str, Any], *, drop: bool = False
) -> dict[str, Any]:
    """Give flat keys of methods and domains their owners.

    Parameters
    ----------
    registry : Registry
    config : mapping
        Flat; keys of this version stay as they are.
    drop : bool
        Whether keys of methods that the run does not use are left out, as in a record
        of version 0.1, which has all; otherwise they are an error.

    Raises
    ------
    SettingsError
        A flat key is of another method than the run's; the message says of which.
    """
    method = str(config.get("method", RunSettings.method))
    used_names = {
        "method": method,
        "task": str(config.get("task", RunSettings.task)),
        "domain": str(config.get("domain", RunSettings.domain)),
    }
    translated: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for old, value in config.items():
        owners = [] if old in registry.fields else old_owners(registry, old)
        if not owners:
            foreign = (
                group.kind in used_names and group.owner != used_names[group.kind]
                for group in registry.owners(old)
            )
            if not (drop and any(foreign)):
                translated[old] = value
            continue
        # which set a run has is known only once its task is
        used = [
            group
            for group in owners
            if group.owner == used_names[group.kind]
            or (group.kind == "domain" and not drop)
        ]
        for group in used:
            for key, field in group.fields.items():
                if _old_key(key, field) == old:
                    translated[key] = _new_value(field, value)
                    renamed[old] = key
        if not used and not drop:
            names = ", ".join(repr(group.owner) for group in owners)
            raise SettingsError(
                f"{old} = {value!r} is a setting of method {names}, and this run's "
                f"method is {method!r}"
            )
    if renamed and not drop:
        told = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
        log(WARNING, "keys of version 0.1, which go with the next: %s", told)
    return registry.without_foreign(translated) if drop else translated
