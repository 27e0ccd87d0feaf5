"""What a client agrees to before a label leaves it: every check, every rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedtrellis import LocalGrid
from fedtrellis.dual.agreement import Agreement
from fedtrellis.settings import SettingsError
from strategies import HyFDCA
from tests.strategies.hyfdca_runs import Run, Split, grid_parts, small

Lie = Callable[[Agreement], Agreement]


def _settings(**changed: Any) -> Lie:
    entries = {key.replace("_", "-"): value for key, value in changed.items()}
    return lambda a: replace(a, settings={**a.settings, **entries})


def _member(i: int, **changed: str) -> Lie:
    def lie(a: Agreement) -> Agreement:
        members = list(a.members)
        members[i] = replace(members[i], **changed)
        return replace(a, members=tuple(members))

    return lie


def _group(holders: Any = None, more: int = 0, digest: str = "") -> Lie:
    def lie(a: Agreement) -> Agreement:
        own, size, known = a.groups[0]
        group = (holders or own, size + more, digest or known)
        return replace(a, groups=(group, *a.groups[1:]))

    return lie


def _features(order: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Lie:
    return lambda a: replace(a, features=order(a.features))


LIES: dict[str, tuple[Lie, str]] = {
    "another session": (_settings(session="other"), "is of another session"),
    "no session": (
        lambda a: replace(
            a, settings={k: v for k, v in a.settings.items() if k != "session"}
        ),
        "is of another session",
    ),
    "another loss": (_settings(loss="squared"), "loss"),
    "an old nonce": (_member(3, nonce="0" * 32), "client 3: the agreement does not"),
    "without it": (_member(0, name="6"), "client 0 is not in the agreement"),
    "somebody's other key": (_member(2, key="0" * 16), "not all clients have one key"),
    "features exchanged": (_features(lambda f: f[::-1]), "other features for it"),
    "a feature twice": (
        _features(lambda f: (*f[:-1], f[0])),
        "other features for it",
    ),
    "another's features": (
        lambda a: replace(a, held=(a.held[1], *a.held[1:])),
        "client 0: the agreement has other features for it",
    ),
    "other samples": (_group(digest="0" * 64), "other samples for it"),
    "one sample more": (_group(more=1), "other samples for it"),
    "a holder more": (_group(holders=(0, 1, 2)), "client 2: the agreement has other"),
    "a holder less": (_group(holders=(0,)), "client 1: the agreement has other samp"),
    "a group less": (lambda a: replace(a, groups=a.groups[1:]), "other samples for it"),
    "a group twice": (
        lambda a: replace(a, groups=(*a.groups, a.groups[0])),
        "other samples for it",
    ),
}


class Traffic(LocalGrid):
    """Notes down the kinds of messages."""

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        self.kinds = {
            *getattr(self, "kinds", ()),
            *(m.metadata.message_type for m in messages),
        }
        return super().push_messages(messages)


@pytest.mark.parametrize("name", LIES)
def test_an_agreement_that_lies_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client checks what concerns itself; no label has been asked for then."""
    lie, reason = LIES[name]
    honest = Agreement.of
    monkeypatch.setattr(Agreement, "of", lambda *said: lie(honest(*said)))
    split = small(n=24)
    grid = Traffic(split.app(loss="hinge"), split.num_clients)
    with pytest.raises(SettingsError, match=reason) as error:
        HyFDCA().start(grid, ArrayRecord([np.zeros(split.p)]), num_rounds=1)
    assert "\n" not in str(error.value)
    assert "train.agree" in grid.kinds
    assert "train.labels" not in grid.kinds


def test_what_others_agreed_to_is_compared_before_labels_leave() -> None:
    """One client is given another agreement, in which it finds nothing wrong."""

    class TwoFaced(HyFDCA):
        def restore(self, client: str) -> Any:
            arrays, entries = super().restore(client)
            if client == "0" and "agreement" in arrays:
                other = _settings(answers=10**6)(self.agreement)
                data = np.frombuffer(other.to_bytes(), dtype=np.uint8)
                arrays["agreement"] = data
            return arrays, entries

    split = small(n=24)
    strategy = TwoFaced()
    grid = Traffic(split.app(), split.num_clients)
    with pytest.raises(SettingsError, match="has not agreed to the same run"):
        strategy.start(grid, ArrayRecord([np.zeros(split.p)]), num_rounds=1)
    assert not strategy._labels
    assert "train.ready" not in grid.kinds


# ------------------------------------------------------------------ a node's own rules


def _rare() -> Split:
    """One client has a feature in two of its samples only."""
    split = small(n=36)
    split.X[split.parts[2][0][2:], 1] = 0.0
    return Split(split.X, split.y, split.parts, "hinge", 1e-2, least=1)


EXPOSED: dict[str, tuple[Callable[[], Split], dict[str, Any], str]] = {
    "features of one holder": (
        lambda: small(parts="vertical", n=24),
        {},
        "feature 'feature-0000' has 1 holder; .*'feature-0003' has 1 holder",
    ),
    "features of two holders": (
        lambda: small(parts=grid_parts(24, 12, 2, 2), n=24),
        {},
        "feature 'feature-0000' has 2 holders",
    ),
    "a group of two": (
        lambda: small(parts=grid_parts(8, 12, 3, 2), n=8),
        {},
        "1 group of samples with the same holders of size 2",
    ),
    "rare entries": (
        _rare,
        {},
        "client 2: .* 'feature-0001' is not zero in 2 of its samples only.*leave-out",
    ),
    "own sums in the clear": (small, {"secure_sum": False}, "secure-sum is off"),
    "three holders where four are wanted": (small, {"least": 4}, "has 3 holders"),
}


@pytest.mark.parametrize("name", EXPOSED)
def test_what_sums_would_give_away_is_refused(name: str) -> None:
    make, options, reason = EXPOSED[name]
    with pytest.raises(SettingsError, match=reason) as error:
        Run(make(), 1, **{"exposed": "refuse", **options})
    text = str(error.value)
    assert "\n" not in text
    assert "exposed = 'accept'" in text
    Run(make(), 1, **{**options, "exposed": "accept"})


def test_rare_entries_are_left_out_where_that_is_the_rule() -> None:
    """The run is that of data without them; the split's own P* has them left out."""
    whole = _rare()
    without = Split(whole.X, whole.y, whole.parts, "hinge", 1e-2)
    assert (whole.X != without.X).sum() == 2
    one = Run(whole, 8, exposed="leave-out")
    other = Run(without, 8)
    assert np.abs(one.model - other.model).max() < 1e-9
    other.check()
