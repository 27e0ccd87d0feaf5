"""Waves before round 1, which all clients have to answer, and refusals for good."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.protocol import identity_order

__all__ = ["SETUP_ATTEMPTS", "ask_everyone", "refusal", "said_by"]

#: The clients have to agree before round 1, whatever is lost on the way.
SETUP_ATTEMPTS = 30

# What a client raises when its data or its settings do not fit: asking again is no use.
# Ray quotes the end of a traceback, "SettingsError: why"; a deployed SuperNode says
# "<class 'fedtrellis.settings.SettingsError'>:<'why'>".
_REFUSAL = re.compile(
    r"(?P<kind>Alignment|Encryption|Refused|Label|Settings)Error"
    r"(?:: |'>:<')(?P<why>[^\n]*)"
)


def ask_everyone(
    conversation: Conversation,
    kind: str,
    entries: Callable[[str], Mapping[str, Any]],
    take: Callable[[Answer], None],
    timeout: float,
    clients: Sequence[str],
) -> None:
    """Ask until each of some clients has answered.

    Parameters
    ----------
    conversation : Conversation
    kind : str
        The messages' type.
    entries : callable
        What a client is told, by its name.
    take : callable
        Takes an answer, or raises ValueError where it is malformed.
    timeout : float
        Seconds to wait for the answers of one wave.
    clients : sequence of str

    Raises
    ------
    SettingsError
        A client refused: its reason.
    TimeoutError
        A client never answered, or never well.
    """
    waiting = list(clients)
    for _ in range(SETUP_ATTEMPTS):
        before = len(conversation.traffic.rejected)
        wave = {name: entries(name) for name in waiting}
        answers = conversation.ask(0, kind, wave, timeout)
        for name, reason in conversation.traffic.rejected[before:]:
            refused = refusal(reason)
            if refused:
                raise SettingsError(said_by(name, refused))
        for answer in answers:
            try:
                take(answer)
            except ValueError as error:
                conversation.reject(answer.client, str(error))
            else:
                waiting.remove(answer.client)
        if not waiting:
            return
    names = ", ".join(sorted(waiting, key=identity_order))
    raise TimeoutError(f"client {names} did not answer before round 1 ({kind})")


def said_by(name: str, why: str) -> str:
    """A refusal with the name of the client, once."""
    who = f"client {name}"
    return why if why.startswith(who) else f"{who}: {why}"


def refusal(reason: str, kind: str = "") -> str:
    """The message of a client's refusal in an error's reason; empty if it is none.

    ``kind``, where it is given, is the error's name without ``Error``.
    """
    found = list(_REFUSAL.finditer(reason))
    if not found or kind not in ("", found[-1]["kind"]):
        return ""
    return found[-1]["why"].strip().removesuffix("'>")
