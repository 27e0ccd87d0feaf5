"""The settings that a run is agreed on with: all of them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from fedtrellis.dual.agreement import Agreement
from fedtrellis.dual.weights import BALANCED, labels_of
from fedtrellis.settings import SettingsError

__all__ = ["DEFAULTS", "STEPS", "check_settings"]

#: Which phases the iterations of a step have.
STEPS = {
    "bundle": "propose",
    "line-search": "propose",
    "practical": "dual",
    "theoretical": "dual",
}
# What one sum over all clients may be made of, by step.
_HIDDEN = {"bundle": ["proximal"], "line-search": ["coordinate"]}
_KINDS = ("dual-point", "proximal", "coordinate", "passes")


def _number(low: float, high: float = inf) -> Callable[[Any], bool]:
    """Whether something is a number in (low, high]."""
    return lambda x: type(x) in (int, float) and low < x <= high and x < inf


def _count(low: int) -> Callable[[Any], bool]:
    return lambda x: type(x) is int and x >= low


def _text(x: Any) -> bool:
    return type(x) is str


def _kinds(x: Any) -> bool:
    return type(x) is list and all(kind in _KINDS for kind in x)


def _weights(x: Any) -> bool:
    return type(x) is list and all(w == 0 or _number(0.0)(w) for w in x) and any(x)


_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "session": _text,
    "encryption": _text,
    "loss": _text,
    "smoothing": _number(0.0),
    "regularization": _number(0.0),
    "local-fraction": _number(0.0, 1.0),
    "local-passes": _count(0),
    "slots": ("all", "chosen").__contains__,
    "step": lambda x: _text(x) and x in STEPS,
    "secure-sum": lambda x: type(x) is bool,
    "standardize": lambda x: type(x) is bool,
    "proposals": _kinds,
    "local-proposals": _kinds,
    "exposed": _text,
    "least": _count(2),
    "noise": lambda x: x == 0 or _number(0.0)(x),
    "num-clients": _count(1),
    "answers": _count(1),
    "num-samples-all": _count(1),
}

#: Settings that an agreement may leave out: these are their values then, whatever a
#: request says.
DEFAULTS: dict[str, Any] = {
    "classes": 1,
    "l1-ratio": 0.0,
    "free-feature": "",
    "weighted": False,
    "class-weight": "",
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "classes": lambda x: _count(1)(x) and x != 2,
    "l1-ratio": lambda x: type(x) in (int, float) and 0.0 <= x < 1.0,
    "free-feature": _text,
    "weighted": lambda x: type(x) is bool,
    "class-weight": lambda x: x in ("", BALANCED) or _weights(x),
}


def check_settings(agreement: Agreement, who: str) -> None:
    """Raise SettingsError unless an agreement settles all there is to settle.

    What it left out a server could say later, and of each request anew.
    """
    settings = {**DEFAULTS, **agreement.settings}
    known = _SETTINGS | _OPTIONAL
    wrong = sorted(
        key
        for key in {*settings, *known}
        if key not in settings or key not in known or not known[key](settings[key])
    )
    if not wrong:
        kinds = settings["proposals"], settings["local-proposals"]
        expected = _HIDDEN.get(settings["step"], [])
        rule, classes = settings["class-weight"], settings["classes"]
        for key, fits in (
            (
                "class-weight",
                isinstance(rule, str) or len(rule) == len(labels_of(classes)),
            ),
            ("num-clients", settings["num-clients"] == len(agreement.members)),
            (
                "step",
                not (rule or settings["weighted"])
                or (settings["step"] == "bundle" and not settings["local-passes"]),
            ),
            ("proposals", not settings["secure-sum"] or kinds == (expected, expected)),
        ):
            if not fits:
                wrong.append(key)
    if wrong:
        raise SettingsError(
            f"client {who}: the agreement does not settle {', '.join(wrong)} as it must"
        )
