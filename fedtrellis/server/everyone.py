"""Waves that are asked again of those who are silent, and refusals for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtrellis.server.answers import Answer
from fedtrellis.server.conversation import Conversation
from fedtrellis.settings import SettingsError
from fedtrellis.wire.protocol import identity_order

__all__ = ["SETUP_ATTEMPTS", "ask_again", "ask_everyone"]

#: The clients have to agree before round 1, whatever is lost on the way.
SETUP_ATTEMPTS = 30


def ask_again(
    conversation: Conversation,
    server_round: int,
    kind: str,
    entries: Callable[[str], Mapping[str, Any]],
    take: Callable[[Answer], None],
    timeout: float,
    clients: Sequence[str],
    attempts: int,
    code: str = SettingsError.code,
) -> set[str]:
    """One wave, and again for those whose answer could not be had.

    Parameters
    ----------
    conversation : Conversation
    server_round : int
    kind : str
        The messages' type.
    entries : callable
        What a client is sent, by its name; made anew for each attempt.
    take : callable
        Uses an answer, or raises ValueError with the reason to drop it.
    timeout : float
        Seconds to wait for the answers of one wave.
    clients : sequence of str
    attempts : int
        Waves at most.
    code : str
        Of the refusals that end the run; empty: any does.

    Returns
    -------
    set of str
        The clients whose answers were taken.

    Raises
    ------
    SettingsError
        A client refused: its reason.
    """
    taken: set[str] = set()
    for _ in range(attempts):
        missing = [name for name in clients if name not in taken]
        if not missing:
            break
        before = len(conversation.traffic.rejected)
        wave = {name: entries(name) for name in missing}
        answers = conversation.ask(server_round, kind, wave, timeout)
        for name, why in conversation.traffic.rejected[before:]:
            if why.refusal and code in ("", why.refusal):
                who = f"client {name}"
                raise SettingsError(why if why.startswith(who) else f"{who}: {why}")
        for answer in answers:
            try:
                take(answer)
            except ValueError as error:
                conversation.reject(answer.client, str(error))
            else:
                taken.add(answer.client)
    return taken


def ask_everyone(
    conversation: Conversation,
    kind: str,
    entries: Callable[[str], Mapping[str, Any]],
    take: Callable[[Answer], None],
    timeout: float,
    clients: Sequence[str],
) -> None:
    """Ask before round 1 until each of some clients has answered.

    Parameters are those of :func:`ask_again`.

    Raises
    ------
    SettingsError
        A client refused, whatever the code: its reason.
    TimeoutError
        A client never answered, or never well.
    """
    taken = ask_again(
        conversation, 0, kind, entries, take, timeout, clients, SETUP_ATTEMPTS, ""
    )
    if missing := sorted(set(clients) - taken, key=identity_order):
        names = ", ".join(missing)
        raise TimeoutError(f"client {names} did not answer before round 1 ({kind})")
