"""Waves before round 1, which all clients have to answer, and refusals for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.exchange import Reason
from fedtrellis.wire.protocol import identity_order

__all__ = ["SETUP_ATTEMPTS", "ask_everyone", "raise_refusal"]

#: The clients have to agree before round 1, whatever is lost on the way.
SETUP_ATTEMPTS = 30


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
        raise_refusal(conversation.traffic.rejected[before:])
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


def raise_refusal(rejected: Iterable[tuple[str, Reason]], code: str = "") -> None:
    """Raise the first refusal among dropped answers, in the client's words.

    Parameters
    ----------
    rejected : iterable of (str, Reason)
        Of :class:`~fedtrellis.wire.exchange.Traffic`.
    code : str
        Refusals of this code only; empty: any.

    Raises
    ------
    SettingsError
        Naming the client, once.
    """
    for name, why in rejected:
        if why.refusal and code in ("", why.refusal):
            who = f"client {name}"
            raise SettingsError(why if why.startswith(who) else f"{who}: {why}")
